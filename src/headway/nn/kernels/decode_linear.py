"""A linear layer for the few rows of a decode step, fused with norm, bias, activation and residual, in Triton.

    y = act(F.linear(norm(x), weight, bias))                norm, bias and activation are optional
    gate, up = F.linear(norm(x), weight, bias).chunk(2);  y = F.silu(gate) * up                      SwiGLU
    y = residual + F.linear(x, weight, bias)

A decode step takes as long as reading the weights, so every program reads a band of rows of the weight once, and
everything else is done on the way: the norm while x is loaded (each program computes its statistics again, from the L2
cache), bias, activation and residual before y is stored. One row is multiplied on the CUDA cores, which reads at
the full bandwidth of the memory; more rows go to the tensor cores, with the weight as the left factor: its rows fill a
tile of 32 or 64, where x has few. Sums are in float32; float32 products are exact float32, not TF32.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from headway.nn.kernels.decode_parts import norm_parameters

MIN_DOT = 16  # least size of a side of tl.dot
N_SMS = 132  # of an H200


@triton.jit
def _normalised(x, gamma, beta, k, mean, rstd, K: tl.constexpr, NORM: tl.constexpr, HAS_BETA: tl.constexpr):
    """x at the columns k, as float32."""
    if NORM != "none":
        x = (x - mean) * rstd * tl.load(gamma + k, mask=k < K, other=0.0).to(tl.float32)
        if HAS_BETA:
            x += tl.load(beta + k, mask=k < K, other=0.0).to(tl.float32)
    return x


@triton.jit
def _activated(y, ACT: tl.constexpr):
    if ACT == "relu":
        y = tl.maximum(y, 0.0)
    elif ACT == "relu2":
        y = tl.maximum(y, 0.0)
        y = y * y
    elif ACT == "gelu":
        y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    elif ACT == "gelu-tanh":  # (1 + tanh u) / 2 = sigmoid(2u), as in nn/feedforward.py
        y = y * tl.sigmoid(1.5957691216057308 * (y + 0.044715 * y * y * y))
    elif ACT == "silu":
        y = y * tl.sigmoid(y)
    return y


@triton.jit
def _one_row_kernel(
    x, gamma, beta, weight, bias, residual, y, N, eps,
    K: tl.constexpr, NORM: tl.constexpr, HAS_BETA: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    ACT: tl.constexpr, GATED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """x (K,), weight (N, K) → y (N,); with GATED weight is (2N, K)."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = tl.arange(0, BLOCK_K)
    mean = 0.0
    rstd = 1.0
    if NORM != "none":
        total = tl.zeros([BLOCK_K], tl.float32)
        if NORM == "layer":
            for start in range(0, K, BLOCK_K):
                k = start + columns
                total += tl.load(x + k, mask=k < K, other=0.0).to(tl.float32)
            mean = tl.sum(total) / K
            total = tl.zeros([BLOCK_K], tl.float32)
        for start in range(0, K, BLOCK_K):
            k = start + columns
            centred = tl.where(k < K, tl.load(x + k, mask=k < K, other=0.0).to(tl.float32) - mean, 0.0)
            total += centred * centred
        rstd = 1.0 / tl.sqrt(tl.sum(total) / K + eps)
    products = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    gates = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + columns
        is_inside = (n[:, None] < N) & (k[None, :] < K)
        row = tl.load(x + k, mask=k < K, other=0.0).to(tl.float32)
        row = _normalised(row, gamma, beta, k, mean, rstd, K, NORM, HAS_BETA)
        offsets = n[:, None].to(tl.int64) * K + k[None, :]
        if GATED:
            gates += tl.load(weight + offsets, mask=is_inside, other=0.0).to(tl.float32) * row[None, :]
            offsets += N * K
        products += tl.load(weight + offsets, mask=is_inside, other=0.0).to(tl.float32) * row[None, :]
    result = tl.sum(products, axis=1)
    if HAS_BIAS:
        shift = N if GATED else 0
        result += tl.load(bias + shift + n, mask=n < N, other=0.0).to(tl.float32)
    if GATED:
        gate = tl.sum(gates, axis=1)
        if HAS_BIAS:
            gate += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)
        result *= _activated(gate, "silu")
    else:
        result = _activated(result, ACT)
    if HAS_RESIDUAL:
        result += tl.load(residual + n, mask=n < N, other=0.0).to(tl.float32)
    tl.store(y + n, result.to(y.dtype.element_ty), mask=n < N)


@triton.jit
def _rows_kernel(
    x, weight, bias, residual, y, partial_sums, arrivals, M, N,
    K: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr,
    SPLIT_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """x (M, K), weight (N, K) → y (M, N); with GATED weight is (2N, K). If there are too few bands of the weight to
    fill the GPU, `SPLIT_K` programs share a band, and the last of them to finish adds their sums, always in the same
    order."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    split = tl.program_id(2)
    columns = tl.arange(0, BLOCK_K)
    n_blocks: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    per_split: tl.constexpr = (n_blocks + SPLIT_K - 1) // SPLIT_K
    products = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    gates = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for i in range(per_split):
        k = (split * per_split + i) * BLOCK_K + columns
        block = tl.load(x + m[None, :] * K + k[:, None], mask=(m[None, :] < M) & (k[:, None] < K), other=0.0)
        is_inside = (n[:, None] < N) & (k[None, :] < K)
        offsets = n[:, None].to(tl.int64) * K + k[None, :]
        if GATED:
            gates = tl.dot(tl.load(weight + offsets, mask=is_inside, other=0.0), block, gates, input_precision="ieee")
            offsets += N * K
        band = tl.load(weight + offsets, mask=is_inside, other=0.0)
        products = tl.dot(band, block, products, input_precision="ieee")

    offsets = m[None, :].to(tl.int64) * N + n[:, None]
    is_inside = (m[None, :] < M) & (n[:, None] < N)
    is_last = True
    if SPLIT_K > 1:
        size = M * N
        tl.store(partial_sums + split * size + offsets, products, mask=is_inside)
        if GATED:
            tl.store(partial_sums + (SPLIT_K + split) * size + offsets, gates, mask=is_inside)
        tl.debug_barrier()  # all threads have stored before one of them counts the program
        tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        is_last = tl.atomic_add(arrivals + tile, 1) == SPLIT_K - 1
        if is_last:
            products = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
            gates = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
            for other in range(SPLIT_K):  # past the L1 cache: other programs wrote them
                products += tl.load(
                    partial_sums + other * size + offsets, mask=is_inside, other=0.0, cache_modifier=".cg"
                )
                if GATED:
                    gates += tl.load(
                        partial_sums + (SPLIT_K + other) * size + offsets, mask=is_inside, other=0.0,
                        cache_modifier=".cg",
                    )  # fmt: skip
            tl.store(arrivals + tile, 0)  # for the next launch
    if is_last:
        if HAS_BIAS:
            shift = N if GATED else 0
            products += tl.load(bias + shift + n, mask=n < N, other=0.0).to(tl.float32)[:, None]
        if GATED:
            if HAS_BIAS:
                gates += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[:, None]
            products *= _activated(gates, "silu")
        else:
            products = _activated(products, ACT)
        if HAS_RESIDUAL:
            products += tl.load(residual + offsets, mask=is_inside, other=0.0).to(tl.float32)
        tl.store(y + offsets, products.to(y.dtype.element_ty), mask=is_inside)


class SplitKWorkspace:
    """Scratch memory of products whose columns are split among programs. One per stream: concurrent launches would
    overwrite each other's sums."""

    def __init__(self) -> None:
        self.sums = torch.empty(0, dtype=torch.float32)
        self.arrivals = torch.empty(0, dtype=torch.int32)

    def get(self, n_sums: int, n_tiles: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Space for so many sums, and a zero for each tile."""
        if self.sums.numel() < n_sums or self.sums.device != device:
            self.sums = torch.empty(n_sums, dtype=torch.float32, device=device)
        if self.arrivals.numel() < n_tiles or self.arrivals.device != device:
            self.arrivals = torch.zeros(n_tiles, dtype=torch.int32, device=device)
        return self.sums, self.arrivals


def fused_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    norm: nn.Module | None = None,
    activation: str = "none",
    gated: bool = False,
    residual: Tensor | None = None,
    dtype: torch.dtype | None = None,
    scratch: SplitKWorkspace | None = None,
) -> Tensor:
    """x (M, K) → residual + act(norm(x) Wᵀ + b), (M, N), in `dtype`, by default that of the weight. All are contiguous.

    weight (N, K). With `gated` it is (2N, K), gate before up, and the result SiLU(gate) · up. Without gradients. One
    row is normalised on the way; several have to be before (`norm_rows`), and have the dtype of the weight.
    """
    M, K = x.shape
    N = weight.shape[0] // 2 if gated else weight.shape[0]
    y = torch.empty(M, N, dtype=dtype or weight.dtype, device=x.device)
    flags = {
        "K": K,
        "HAS_BIAS": bias is not None,
        "HAS_RESIDUAL": residual is not None,
        "ACT": activation,
        "GATED": gated,
    }
    weight_and_more = [tensor if tensor is not None else x for tensor in (weight, bias, residual)]
    if M == 1:
        kind, gamma, beta, eps = norm_parameters(norm)
        norm_tensors = [tensor if tensor is not None else x for tensor in (gamma, beta)]
        blocks = one_row_blocks(N, K, kind != "none", gated)
        _one_row_kernel[(triton.cdiv(N, blocks["BLOCK_N"]),)](
            x, *norm_tensors, *weight_and_more, y, N, eps, NORM=kind, HAS_BETA=beta is not None, **flags, **blocks
        )
        return y
    assert norm is None
    blocks = row_blocks(M, N, K, gated, weight.dtype.itemsize)
    n_bands, n_row_blocks = triton.cdiv(N, blocks["BLOCK_N"]), triton.cdiv(M, blocks["BLOCK_M"])
    split_k = blocks["SPLIT_K"]
    sums, arrivals = x, x
    if split_k > 1:
        n_sums = split_k * M * N * (2 if gated else 1)
        sums, arrivals = (scratch or SplitKWorkspace()).get(n_sums, n_bands * n_row_blocks, x.device)
    _rows_kernel[(n_bands, n_row_blocks, split_k)](x, *weight_and_more, y, sums, arrivals, M, N, **flags, **blocks)
    return y


# ── sizes of blocks: the best of about ten for each shape of GPT-2 small and of a 7B model, on an H200 ──────────────


def one_row_blocks(N: int, K: int, has_norm: bool, gated: bool) -> dict[str, int]:
    """Rows of the weight per program, and the columns that it reads at a time. The statistics of a norm are computed by
    every program, so there should not be too many."""
    if not has_norm:
        block_n, block_k, n_warps = 1, 1024, 4
    elif K <= 1024:
        block_n, block_k, n_warps = 8, 256, 2
    else:
        block_n, block_k, n_warps = (4, 512, 2) if gated else (4, 2048, 8)
    return {"BLOCK_N": block_n, "BLOCK_K": min(block_k, triton.next_power_of_2(K)), "num_warps": n_warps}


def row_blocks(M: int, N: int, K: int, gated: bool, itemsize: int) -> dict[str, int]:
    """Rows of x and of the weight per program, the columns that it reads at a time, and the programs per band."""
    block_m = min(64, max(MIN_DOT, triton.next_power_of_2(M)))
    block_n = 32 if N <= 1024 else 64
    block_k = min(128 if itemsize == 2 else 32, max(MIN_DOT, triton.next_power_of_2(K)))
    n_programs = triton.cdiv(N, block_n) * triton.cdiv(M, block_m)
    split_k = 1
    while n_programs * split_k < N_SMS and split_k < 8 and 4 * split_k * block_k <= K:
        split_k *= 2
    return {
        "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "SPLIT_K": split_k,
        "num_warps": 4, "num_stages": 3 if gated else 4,
    }  # fmt: skip

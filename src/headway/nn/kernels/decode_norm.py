"""The norm of a few rows, as one Triton kernel that rounds its result.

    norm(x).to(dtype)                                       what `norm_rows` computes

Every program of a matrix product reads all its rows. One row is normalised by decode_linear.py as it is loaded; several
are normalised once, here.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from headway.nn.kernels.decode_parts import norm_parameters


@triton.jit
def _norm_kernel(
    x, gamma, beta, y, eps, K: tl.constexpr, NORM: tl.constexpr, HAS_BETA: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program per row."""
    k = tl.arange(0, BLOCK_K)
    is_inside = k < K
    start = tl.program_id(0).to(tl.int64) * K
    row = tl.load(x + start + k, mask=is_inside, other=0.0).to(tl.float32)
    if NORM == "layer":
        row = tl.where(is_inside, row - tl.sum(row) / K, 0.0)
    if NORM != "none":
        row *= 1.0 / tl.sqrt(tl.sum(row * row) / K + eps)
        row *= tl.load(gamma + k, mask=is_inside, other=0.0).to(tl.float32)
        if HAS_BETA:
            row += tl.load(beta + k, mask=is_inside, other=0.0).to(tl.float32)
    tl.store(y + start + k, row.to(y.dtype.element_ty), mask=is_inside)


def norm_rows(x: Tensor, norm: nn.Module, dtype: torch.dtype) -> Tensor:
    """x (M, K) → norm(x) in `dtype`."""
    M, K = x.shape
    y = torch.empty(M, K, dtype=dtype, device=x.device)
    kind, gamma, beta, eps = norm_parameters(norm)
    block_k = triton.next_power_of_2(K)
    _norm_kernel[(M,)](
        x, x if gamma is None else gamma, x if beta is None else beta, y, eps,
        K=K, NORM=kind, HAS_BETA=beta is not None, BLOCK_K=block_k, num_warps=4 if block_k <= 2048 else 8,
    )  # fmt: skip
    return y

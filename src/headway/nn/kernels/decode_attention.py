"""Attention of one new token per row over its KV cache, as one Triton kernel.

    q, k, v = transform(q, k, v)                            rotary or per-layer positions
    keys[:, :, length], values[:, :, length] = k, v         append to the cache
    softmax(q keysᵀ / √K + bias) values                     over the keys up to and including the new one

A row has few heads and many keys, so the keys are split among programs, as in Flash-Decoding (Dao et al. 2023): each
computes the maximum, the sum of exponentials and the weighted sum of its keys, and the last program of a head to
finish merges them, always in the same order, so results do not depend on timing. Heads that share keys (grouped
queries) are computed by one program, which reads the keys once.
"""

import math
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from headway.nn.kernels.decode_parts import PositionTables

MIN_DOT = 16  # least size of a side of tl.dot
BLOCK_S = 64  # keys read at a time
MAX_ONE_WARP_WIDTH = 128  # one warp needs no barriers: at 256 rows of GPT-2 small, 1.15 ms a step instead of 1.48
MAX_SPLITS = 32
LOG2_E = math.log2(math.e)
DEFAULT_STAGES = 3  # Triton's
USABLE_SHARED_MEMORY = 0.8  # of a program's, by keys and values
MIN_SHARED_MEMORY = 48 * 1024  # bytes: of every GPU
H200_SHARED_MEMORY = 227 * 1024  # bytes


@triton.jit
def _attend_kernel(
    qkv, keys, values, lengths, cos, sin, offsets, bias, out, partial_sums, partial_max, partial_total, arrivals,
    batch_stride, head_stride, capacity, bias_width, bias_start, scale,
    G: tl.constexpr, R: tl.constexpr, K: tl.constexpr, IS_ROTARY: tl.constexpr, HAS_OFFSETS: tl.constexpr,
    HAS_BIAS: tl.constexpr, N_SPLITS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_S: tl.constexpr,
    HALF: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program per split, and per row and key/value head. R query heads share a key/value head; the width of a head,
    K, is handled as two halves, since rotary positions pair dimension i with i + K/2."""
    split = tl.program_id(0)
    group = tl.program_id(1)
    b, g = group // G, group % G
    pos = tl.minimum(tl.load(lengths + b).to(tl.int32), capacity - 1)  # the slot of the new token
    half = tl.arange(0, HALF)
    is_half = half < K // 2
    columns = tl.arange(0, BLOCK_K)
    is_column = columns < K
    r = tl.arange(0, BLOCK_R)

    # The new queries (R, K), key and value (K,).
    row = qkv + b * (G * (R + 2) * K)
    q_start = row + (g * R + r[:, None]) * K + half[None, :]
    is_query = (r[:, None] < R) & is_half[None, :]
    q1 = tl.load(q_start, mask=is_query, other=0.0).to(tl.float32)
    q2 = tl.load(q_start + K // 2, mask=is_query, other=0.0).to(tl.float32)
    k_start = row + (G * R + g) * K + half
    k1 = tl.load(k_start, mask=is_half, other=0.0).to(tl.float32)
    k2 = tl.load(k_start + K // 2, mask=is_half, other=0.0).to(tl.float32)
    v = tl.load(row + (G * (R + 1) + g) * K + columns, mask=is_column, other=0.0).to(tl.float32)
    if IS_ROTARY:
        c = tl.load(cos + pos * (K // 2) + half, mask=is_half, other=0.0)
        s = tl.load(sin + pos * (K // 2) + half, mask=is_half, other=0.0)
        k1, k2 = k1 * c - k2 * s, k2 * c + k1 * s
        q1, q2 = q1 * c[None, :] - q2 * s[None, :], q2 * c[None, :] + q1 * s[None, :]
    if HAS_OFFSETS:  # per-layer positions
        o1 = tl.load(offsets + pos * K + half, mask=is_half, other=0.0).to(tl.float32)
        o2 = tl.load(offsets + pos * K + K // 2 + half, mask=is_half, other=0.0).to(tl.float32)
        k1 += o1
        k2 += o2
        q1 += o1[None, :]
        q2 += o2[None, :]
        v += tl.load(offsets + pos * K + columns, mask=is_column, other=0.0).to(tl.float32)
    k1, k2, v = k1.to(keys.dtype.element_ty), k2.to(keys.dtype.element_ty), v.to(keys.dtype.element_ty)

    # The keys of this split; the new one belongs to the last split that is not empty.
    chunk = tl.cdiv(tl.cdiv(pos + 1, BLOCK_S), N_SPLITS) * BLOCK_S
    start = split * chunk
    end = tl.minimum(start + chunk, pos)
    base = b.to(tl.int64) * batch_stride + g.to(tl.int64) * head_stride
    maximum = tl.full([BLOCK_R], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_R], tl.float32)
    sums = tl.zeros([BLOCK_R, BLOCK_K], tl.float32)
    for first in range(start, end, BLOCK_S):
        slots = first + tl.arange(0, BLOCK_S)
        is_slot = slots < end
        tile = keys + base + slots[:, None] * K + half[None, :]
        is_key = is_slot[:, None] & is_half[None, :]
        tile1 = tl.load(tile, mask=is_key, other=0.0)
        tile2 = tl.load(tile + K // 2, mask=is_key, other=0.0)
        if BLOCK_R == 1:
            scores = tl.sum(tile1.to(tl.float32) * q1 + tile2.to(tl.float32) * q2, axis=1)[None, :]
        else:
            scores = tl.dot(q1.to(tile1.dtype), tl.trans(tile1), input_precision="ieee")
            scores = tl.dot(q2.to(tile2.dtype), tl.trans(tile2), scores, input_precision="ieee")
        scores *= scale  # (BLOCK_R, BLOCK_S), to base 2: for exp2
        if HAS_BIAS:
            at = bias + (g * R + r[:, None]) * bias_width + bias_start + slots[None, :] - pos
            is_bias = (r[:, None] < R) & is_slot[None, :]
            scores += 1.4426950408889634 * tl.load(at, mask=is_bias, other=0.0).to(tl.float32)
        scores = tl.where(is_slot[None, :], scores, -float("inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
        decay = tl.exp2(maximum - new_maximum)
        weights = tl.exp2(scores - new_maximum[:, None])
        total = total * decay + tl.sum(weights, axis=1)
        value = tl.load(
            values + base + slots[:, None] * K + columns[None, :], mask=is_slot[:, None] & is_column[None, :], other=0.0
        )
        sums *= decay[:, None]
        if BLOCK_R == 1:
            sums += tl.sum(tl.trans(weights) * value.to(tl.float32), axis=0)[None, :]
        else:
            sums = tl.dot(weights.to(value.dtype), value, sums, input_precision="ieee")
        maximum = new_maximum

    if (start <= pos) & (pos < start + chunk):
        new = base + pos * K
        tl.store(keys + new + half, k1, mask=is_half)
        tl.store(keys + new + K // 2 + half, k2, mask=is_half)
        tl.store(values + new + columns, v, mask=is_column)
        score = scale * tl.sum(q1 * k1.to(tl.float32)[None, :] + q2 * k2.to(tl.float32)[None, :], axis=1)
        if HAS_BIAS:
            at = bias + (g * R + r) * bias_width + bias_start
            score += 1.4426950408889634 * tl.load(at, mask=r < R, other=0.0).to(tl.float32)
        new_maximum = tl.maximum(maximum, score)
        decay = tl.exp2(maximum - new_maximum)
        weight = tl.exp2(score - new_maximum)
        total = total * decay + weight
        sums = sums * decay[:, None] + weight[:, None] * v.to(tl.float32)[None, :]
        maximum = new_maximum

    is_output = (r[:, None] < R) & is_column[None, :]
    out_start = out + (group * R + r[:, None]) * K + columns[None, :]
    if N_SPLITS == 1:
        tl.store(out_start, (sums / total[:, None]).to(out.dtype.element_ty), mask=is_output)
    else:
        part = (group * N_SPLITS + split) * BLOCK_R + r
        tl.store(partial_max + part, maximum)
        tl.store(partial_total + part, total)
        tl.store(partial_sums + part[:, None] * BLOCK_K + columns[None, :], sums)
        tl.debug_barrier()  # all threads have stored before one of them counts the program
        if tl.atomic_add(arrivals + group, 1) == N_SPLITS - 1:
            maximum = tl.full([BLOCK_R], -float("inf"), tl.float32)
            total = tl.zeros([BLOCK_R], tl.float32)
            sums = tl.zeros([BLOCK_R, BLOCK_K], tl.float32)
            for other in range(N_SPLITS):  # past the L1 cache: other programs wrote them
                part = (group * N_SPLITS + other) * BLOCK_R + r
                part_maximum = tl.load(partial_max + part, cache_modifier=".cg")
                part_sums = tl.load(partial_sums + part[:, None] * BLOCK_K + columns[None, :], cache_modifier=".cg")
                new_maximum = tl.maximum(maximum, part_maximum)  # of the first split it is finite
                decay = tl.exp2(maximum - new_maximum)
                weight = tl.exp2(part_maximum - new_maximum)
                total = total * decay + weight * tl.load(partial_total + part, cache_modifier=".cg")
                sums = sums * decay[:, None] + weight[:, None] * part_sums
                maximum = new_maximum
            tl.store(out_start, (sums / total[:, None]).to(out.dtype.element_ty), mask=is_output)
            tl.store(arrivals + group, 0)  # for the next launch


class DecodeAttention:
    """Callable: attention of one decode step of a layer. Scratch memory is allocated once for all layers."""

    def __init__(
        self, batch_size: int, n_heads: int, n_kv_heads: int, d_head: int, capacity: int, tables: PositionTables,
        device: torch.device,
    ):  # fmt: skip
        self.n_heads, self.n_kv_heads, self.d_head, self.capacity = n_heads, n_kv_heads, d_head, capacity
        self.tables = tables
        self.n_shared = n_heads // n_kv_heads
        self.block_r = 1 if self.n_shared == 1 else max(MIN_DOT, triton.next_power_of_2(self.n_shared))
        self.block_k = max(MIN_DOT, triton.next_power_of_2(d_head))
        n_groups = batch_size * n_kv_heads
        self.n_splits = choose_n_splits(n_groups, capacity)
        parts = (n_groups, self.n_splits, self.block_r)
        floats: dict[str, Any] = {"dtype": torch.float32, "device": device}
        self.partial_sums = torch.empty(*parts, self.block_k, **floats)
        self.partial_max, self.partial_total = torch.empty(parts, **floats), torch.empty(parts, **floats)
        self.arrivals = torch.zeros(n_groups, dtype=torch.int32, device=device)

    def __call__(self, qkv: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
        """qkv (B, (H + 2G) · K) of the new tokens; keys, values (B, G, capacity, K) of one layer, written at `lengths`
        (B,) → the outputs of all heads side by side (B, H · K)."""
        B, K, t = len(qkv), self.d_head, self.tables
        out = torch.empty(B, self.n_heads * K, dtype=qkv.dtype, device=qkv.device)
        _attend_kernel[(self.n_splits, B * self.n_kv_heads)](
            qkv, keys, values, lengths,
            *(tensor if tensor is not None else qkv for tensor in (t.cos, t.sin, t.offsets, t.bias)),
            out, self.partial_sums, self.partial_max, self.partial_total, self.arrivals,
            keys.stride(0), keys.stride(1), self.capacity,
            0 if t.bias is None else t.bias.stride(0), 0 if t.bias is None else t.bias.shape[1] - 1,
            LOG2_E / math.sqrt(K),
            G=self.n_kv_heads, R=self.n_shared, K=K, IS_ROTARY=t.cos is not None, HAS_OFFSETS=t.offsets is not None,
            HAS_BIAS=t.bias is not None, N_SPLITS=self.n_splits, BLOCK_R=self.block_r, BLOCK_S=BLOCK_S,
            HALF=max(MIN_DOT, triton.next_power_of_2(K // 2)), BLOCK_K=self.block_k,
            num_stages=self._n_stages(keys.element_size()),
            num_warps=1 if self.block_r == 1 and self.block_k <= MAX_ONE_WARP_WIDTH else 4,
        )  # fmt: skip
        return out

    def _n_stages(self, itemsize: int) -> int:
        """Blocks of keys and values in flight. Of heads that share keys they are kept in shared memory, where those of
        wide heads have space for fewer than Triton's default."""
        block_bytes = BLOCK_S * 2 * self.block_k * itemsize
        if self.block_r == 1:
            return DEFAULT_STAGES
        n_blocks = int(USABLE_SHARED_MEMORY * shared_memory(self.arrivals.device) / block_bytes)
        return max(1, min(DEFAULT_STAGES, 1 + n_blocks))


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes that a program may use; without a GPU, where kernels are only compiled or interpreted, an H200's."""
    if device.type != "cuda":
        return H200_SHARED_MEMORY
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", MIN_SHARED_MEMORY))


def choose_n_splits(n_groups: int, capacity: int, n_programs: int = 264) -> int:
    """The largest power of two with at most two programs per SM of an H200 and at least 64 keys for each."""
    most = min(MAX_SPLITS, triton.cdiv(capacity, BLOCK_S), max(1, n_programs // n_groups))
    return 1 << (most.bit_length() - 1)

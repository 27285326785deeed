"""GPU kernels in Triton, imported where they are used: there is no Triton on a machine without a GPU."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rising(x):
    """Integers in the order of the floats; + 0.0: there is a −0, and it equals 0."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
def _shortest_prefix(
    key, weight, need, at_least, keep, N, need_stride, least_stride, BLOCK: tl.constexpr, WAYS: tl.constexpr
):  # fmt: skip
    """One program per row. The last key of the prefix is the highest t with Σ weight[key ≥ t] ≥ need: found by cutting
    the interval it lies in into `WAYS` parts with every reading of the row. Then equals of t are kept by order."""
    row = tl.program_id(0).to(tl.int64)
    key += row * N
    weight += row * N
    keep += row * N
    wanted = tl.load(need + row * need_stride).to(tl.float32)
    least = tl.load(at_least + row * least_stride).to(tl.float32)
    columns = tl.arange(0, BLOCK)
    cuts = tl.arange(0, WAYS)
    low = tl.full([], -(2**31), tl.int64)  # everything reaches this
    high = tl.full([], 2**31 - 1, tl.int64)
    while low < high:
        step = (high - low + WAYS - 1) // WAYS
        levels = tl.minimum(low + (cuts + 1) * step, high)  # rising, the last one is high
        mass = tl.zeros([WAYS], tl.float32)
        count = tl.zeros([WAYS], tl.float32)
        for at in range(0, N, BLOCK):
            inside = at + columns < N
            x = _rising(tl.load(key + at + columns, mask=inside, other=-float("inf")))
            w = tl.load(weight + at + columns, mask=inside, other=0.0).to(tl.float32)
            reaches = (x[:, None] >= levels[None, :]) & inside[:, None]
            mass += tl.sum(tl.where(reaches, w[:, None], 0.0), axis=0)
            count += tl.sum(reaches.to(tl.float32), axis=0)
        enough = (mass >= wanted) & (count >= least)
        reached = tl.max(tl.where(enough, levels, low))  # the highest level with enough above it
        above = tl.min(tl.where(enough, high + 1, levels))  # the lowest without
        low = reached
        high = tl.maximum(tl.minimum(high, above - 1), low)
    mass_above = tl.full([], 0.0, tl.float32)
    count_above = tl.full([], 0.0, tl.float32)
    for at in range(0, N, BLOCK):
        inside = at + columns < N
        x = _rising(tl.load(key + at + columns, mask=inside, other=-float("inf")))
        w = tl.load(weight + at + columns, mask=inside, other=0.0).to(tl.float32)
        better = (x > low) & inside
        mass_above += tl.sum(tl.where(better, w, 0.0))
        count_above += tl.sum(better.to(tl.float32))
    for at in range(0, N, BLOCK):
        inside = at + columns < N
        x = _rising(tl.load(key + at + columns, mask=inside, other=-float("inf")))
        w = tl.load(weight + at + columns, mask=inside, other=0.0).to(tl.float32)
        equal = (x == low) & inside
        weights = tl.where(equal, w, 0.0)
        counts = equal.to(tl.float32)
        before = mass_above + tl.cumsum(weights, 0) - weights
        rank = count_above + tl.cumsum(counts, 0) - counts
        chosen = (x > low) | (equal & ((before < wanted) | (rank < least)))
        tl.store(keep + at + columns, chosen, mask=inside)
        mass_above += tl.sum(weights)
        count_above += tl.sum(counts)


def shortest_prefix(key: Tensor, weight: Tensor, need: Tensor, at_least: Tensor | int) -> Tensor:
    """See ranking.py: key, weight (B, N), need (B or 1, 1) → (B, N)."""
    B, N = key.shape
    keep = torch.empty(B, N, dtype=torch.bool, device=key.device)
    if isinstance(at_least, int):
        at_least = torch.full((1, 1), at_least, device=key.device)
    with torch.cuda.device(key.device):
        _shortest_prefix[(B,)](
            key.contiguous(), weight.contiguous(), need, at_least, keep, N,
            int(need.shape[0] > 1), int(at_least.shape[0] > 1),
            BLOCK=8192, WAYS=4, num_warps=16,
        )  # fmt: skip
    return keep

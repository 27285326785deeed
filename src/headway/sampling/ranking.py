"""The canonical ranking: values descending, ties by lower column; and the two queries that filters make of it.

    ranked(key, n)                      which columns are the first n?
    shortest_prefix(key, weight, need)  which columns form the shortest prefix whose weights sum to `need`?

`shortest_prefix_by_sorting` is the definition. Sorting the vocabulary to keep forty tokens would take most of a
sampler's time, so the fast paths never do. The first n columns of a row lie in the n blocks whose maxima rank first
(each of these n blocks holds a value that beats everything outside them), so two small selections replace a large one.
Rows of few columns on a GPU are compared pair by pair; long rows on a GPU use kernels.py.
"""

import torch
from torch import Tensor

from headway.sampling.distribution import gpu_kernels, on_host

PAIRWISE_COLUMNS = 64  # widest row that a GPU compares pair by pair
INITIAL_PREFIX = 256  # columns ranked in the first attempt to find a prefix; each further attempt ranks 8 times as many


def ranked(key: Tensor, n: int) -> Tensor:
    """key (B, N) → (B, n): the columns of the first n, in order."""
    N = key.shape[1]
    n = min(n, N)
    block = 1 << max(
        0, (N // max(n, 1)).bit_length() // 2
    )  # ≈ √(N/n) balances the two selections: N/block maxima, then n · block columns
    n_blocks = N // block
    if 4 * n >= n_blocks:
        return _first(key, n)
    n_even = n_blocks * block
    best_blocks = _first(_block_max(key, block), n).sort(dim=-1).values  # (B, n)
    offset = torch.arange(block, device=key.device)
    columns = (best_blocks[:, :, None] * block + offset).flatten(1)  # (B, n · block), ascending
    if n_even < N:
        tail = torch.arange(n_even, N, device=key.device).expand(key.shape[0], -1)
        columns = torch.cat((columns, tail), dim=1)
    return columns.gather(1, _first(key.gather(1, columns), n))


def _block_max(key: Tensor, block: int) -> Tensor:
    if kernels := gpu_kernels(key):
        return kernels.block_max(key, block)
    n_blocks = key.shape[1] // block
    return key[:, : n_blocks * block].unflatten(1, (n_blocks, block)).amax(dim=-1)


def _first(key: Tensor, n: int) -> Tensor:
    """The first n columns by value, ties by lower column."""
    N = key.shape[1]
    if n == N or (key.dtype != torch.float32 and not on_host(key)):
        return key.sort(dim=-1, descending=True, stable=True).indices[:, :n]
    if on_host(key):
        values, columns = key.topk(n + 1)
        # Without ties the order is unique. A NaN ranks first, and the caller refuses it.
        if bool((values[:, 1:] < values[:, :-1]).all()) or bool(values[:, 0].isnan().any()):
            return columns[:, :n]
        if key.dtype != torch.float32:
            return key.sort(dim=-1, descending=True, stable=True).indices[:, :n]
    bits = (key + 0.0).view(torch.int32)  # + 0.0 turns −0 into 0, its equal
    sortable = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()  # integers in the order of the floats
    column = torch.arange(N, device=key.device)
    return N - 1 - ((sortable << 32) + (N - 1 - column)).topk(n).values.bitwise_and(0xFFFFFFFF)


def shortest_prefix(key: Tensor, weight: Tensor, need: Tensor, at_least: Tensor | int = 1) -> Tensor:
    """key, weight (B, N), need (B or 1, 1) → (B, N): True for the columns of the shortest prefix of the ranking whose
    weights sum to `need` or more, and for the first `at_least`."""
    N = key.shape[1]
    if key.is_cuda and N <= PAIRWISE_COLUMNS:
        return _by_pairs(key, weight, need, at_least)
    if not on_host(key):
        return shortest_prefix_by_sorting(key, weight, need, at_least)
    n = INITIAL_PREFIX
    while 8 * n <= N:
        order = ranked(key, n)
        mass = weight.gather(1, order).sum(dim=-1, keepdim=True, dtype=torch.float64)
        if bool(((mass >= need) & torch.as_tensor(at_least <= n)).all()):
            return _mark_prefix(order, weight, need, at_least)
        n *= 8
    return shortest_prefix_by_sorting(key, weight, need, at_least)


def shortest_prefix_by_sorting(key: Tensor, weight: Tensor, need: Tensor, at_least: Tensor | int = 1) -> Tensor:
    return _mark_prefix(key.sort(dim=-1, descending=True, stable=True).indices, weight, need, at_least)


def _mark_prefix(order: Tensor, weight: Tensor, need: Tensor, at_least: Tensor | int) -> Tensor:
    """Mark the columns of `order` (B, n) whose predecessors' weights sum to less than `need`."""
    sums = weight.gather(1, order).cumsum(dim=-1, dtype=torch.float64)
    above = torch.nn.functional.pad(sums[:, :-1], (1, 0))
    rank = torch.arange(order.shape[1], device=order.device)
    keep = (above < need) | (rank < at_least)
    return torch.zeros_like(weight, dtype=torch.bool).scatter_(1, order, keep)


def _by_pairs(key: Tensor, weight: Tensor, need: Tensor, at_least: Tensor | int) -> Tensor:
    """Each column sums the weights that rank above it: N² comparisons, no sort."""
    row, column = key[:, :, None], key[:, None, :]  # (B, N, 1), (B, 1, N)
    index = torch.arange(key.shape[1], device=key.device)
    is_above = (column > row) | ((column == row) & (index < index[:, None]))  # (B, N, N)
    above = (is_above * weight.double()[:, None, :]).sum(dim=-1)
    return (above < need) | (is_above.sum(dim=-1) < at_least)

"""The canonical ranking: values from high to low, equal ones by lower column; and the two questions filters ask of it.

    ranked(key, n)                      which are the first n?
    shortest_prefix(key, weight, need)  which make up the shortest prefix whose weights reach `need`?

`shortest_prefix_by_sorting` is the definition. Sorting a vocabulary to keep forty tokens is most of what samplers spend
their time on, so the fast forms never do. The first n of a row lie in the n blocks of columns whose largest values rank
first (n other blocks each hold something better than all the rest), so two small selections replace a large one. And
of few columns each can simply look at all others. A GPU has kernels.py for long rows.
"""

import torch
from torch import Tensor

from headway.sampling.distribution import gpu_kernels, on_host

FEW = 64  # columns that a GPU compares pair by pair
GUESS = 256  # how long a prefix is first expected to be


def ranked(key: Tensor, n: int) -> Tensor:
    """key (B, N) → (B, n): the columns of the first n, in order."""
    N = key.shape[1]
    n = min(n, N)
    block = 1 << max(0, (N // max(n, 1)).bit_length() // 2)  # about √(N/n): as many blocks as columns in n of them
    n_blocks = N // block
    if 4 * n >= n_blocks:
        return _first(key, n)
    even = n_blocks * block
    best = _first(_block_max(key, block), n).sort(dim=-1).values  # (B, n)
    inside = torch.arange(block, device=key.device)
    columns = (best[:, :, None] * block + inside).flatten(1)  # (B, n · block), ascending
    if even < N:
        rest = torch.arange(even, N, device=key.device).expand(key.shape[0], -1)
        columns = torch.cat((columns, rest), dim=1)
    return columns.gather(1, _first(key.gather(1, columns), n))


def _block_max(key: Tensor, block: int) -> Tensor:
    if kernels := gpu_kernels(key):
        return kernels.block_max(key, block)
    n_blocks = key.shape[1] // block
    return key[:, : n_blocks * block].unflatten(1, (n_blocks, block)).amax(dim=-1)


def _first(key: Tensor, n: int) -> Tensor:
    """The first n columns by value, equal ones by lower column."""
    N = key.shape[1]
    if n == N or (key.dtype != torch.float32 and not on_host(key)):
        return key.sort(dim=-1, descending=True, stable=True).indices[:, :n]
    if on_host(key):
        values, columns = key.topk(n + 1)
        # No equals, so there is one order only; or a NaN, which comes first and which the caller refuses.
        if bool((values[:, 1:] < values[:, :-1]).all()) or bool(values[:, 0].isnan().any()):
            return columns[:, :n]
        if key.dtype != torch.float32:
            return key.sort(dim=-1, descending=True, stable=True).indices[:, :n]
    bits = (key + 0.0).view(torch.int32)  # + 0.0: there is a −0, and it equals 0
    rising = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()  # integers in the order of the floats
    column = torch.arange(N, device=key.device)
    return N - 1 - ((rising << 32) + (N - 1 - column)).topk(n).values.bitwise_and(0xFFFFFFFF)


def shortest_prefix(key: Tensor, weight: Tensor, need: Tensor, at_least: Tensor | int = 1) -> Tensor:
    """key, weight (B, N), need (B or 1, 1) → (B, N) True for the columns of the shortest prefix of the ranking whose
    weights sum to `need` or more, and for the first `at_least`."""
    N = key.shape[1]
    if key.is_cuda and N <= FEW:
        return _by_pairs(key, weight, need, at_least)
    if not on_host(key):
        return shortest_prefix_by_sorting(key, weight, need, at_least)
    n = GUESS
    while 8 * n <= N:
        order = ranked(key, n)
        reached = weight.gather(1, order).sum(dim=-1, keepdim=True, dtype=torch.float64)
        if bool(((reached >= need) & torch.as_tensor(at_least <= n)).all()):
            return _mark(order, weight, need, at_least)
        n *= 8
    return shortest_prefix_by_sorting(key, weight, need, at_least)


def shortest_prefix_by_sorting(key: Tensor, weight: Tensor, need: Tensor, at_least: Tensor | int = 1) -> Tensor:
    return _mark(key.sort(dim=-1, descending=True, stable=True).indices, weight, need, at_least)


def _mark(order: Tensor, weight: Tensor, need: Tensor, at_least: Tensor | int) -> Tensor:
    """Of the columns in `order` (B, n), those before which the sum of weights has not reached `need`."""
    sums = weight.gather(1, order).cumsum(dim=-1, dtype=torch.float64)
    above = torch.nn.functional.pad(sums[:, :-1], (1, 0))
    rank = torch.arange(order.shape[1], device=order.device)
    keep = (above < need) | (rank < at_least)
    return torch.zeros_like(weight, dtype=torch.bool).scatter_(1, order, keep)


def _by_pairs(key: Tensor, weight: Tensor, need: Tensor, at_least: Tensor | int) -> Tensor:
    """Each column adds up what ranks above it: N² comparisons, no sort."""
    mine, other = key[:, :, None], key[:, None, :]  # (B, N, 1), (B, 1, N)
    column = torch.arange(key.shape[1], device=key.device)
    is_above = (other > mine) | ((other == mine) & (column < column[:, None]))  # (B, N, N)
    above = (is_above * weight.double()[:, None, :]).sum(dim=-1)
    return (above < need) | (is_above.sum(dim=-1) < at_least)

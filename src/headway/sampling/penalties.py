"""Penalties: tokens already said become less likely. Rows l (B, V), columns (B, 1), history as `History` has it."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from headway.sampling.distribution import alive
from headway.sampling.history import History, members


def repetition_penalty(
    l: Tensor,
    penalty: Tensor,
    window: Tensor,
    scope: Tensor,
    *,
    history: History,
) -> Tensor:
    """Logits of tokens seen are divided by θ, or multiplied where negative (Keskar et al. 2019; all split by sign)."""
    if not history.ids.shape[1]:
        return l
    ids, real = _seen(l, history, window, scope)
    there = l.gather(1, ids).double()
    scaled = torch.where(there < 0, there * penalty, there / penalty)
    return l.scatter(1, ids, _kept(there, torch.where(real.any(dim=-1, keepdim=True), scaled, there), l.dtype))


def frequency_penalty(
    l: Tensor,
    penalty: Tensor,
    window: Tensor,
    scope: Tensor,
    *,
    history: History,
) -> Tensor:
    """l − penalty · (how often the token was said)."""
    return _less(l, history, window, scope, lambda count: penalty * count)


def presence_penalty(
    l: Tensor,
    penalty: Tensor,
    window: Tensor,
    scope: Tensor,
    *,
    history: History,
) -> Tensor:
    """l − penalty, once, for every token said."""
    return _less(l, history, window, scope, lambda count: penalty * count.clamp(max=1))


def _seen(l: Tensor, history: History, window: Tensor, scope: Tensor) -> tuple[Tensor, Tensor]:
    """(B, T) ids of a scope and which are real. The others repeat one that is, so writing them changes nothing."""
    real = history.inside(window, scope) & (history.ids >= 0) & (history.ids < l.shape[1])
    one = history.ids.gather(1, real.int().argmax(dim=-1, keepdim=True))
    return torch.where(real, history.ids, one).clamp(0, l.shape[1] - 1), real


def _less(l: Tensor, history: History, window: Tensor, scope: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """The row with `loss(how often it is there)` taken from each token of a scope."""
    if not history.ids.shape[1]:
        return l
    ids, real = _seen(l, history, window, scope)
    counts = torch.zeros_like(l).scatter_add_(1, ids, real.to(l.dtype)).gather(1, ids)
    there = l.gather(1, ids).double()
    return l.scatter(1, ids, _kept(there, there - loss(counts.double()), l.dtype))


def _kept(before: Tensor, after: Tensor, dtype: torch.dtype) -> Tensor:
    """A penalty removes nobody: what was alive stays so, however large the penalty."""
    limit = torch.finfo(dtype)
    return torch.where(alive(before), after.clamp(limit.min, limit.max), before).to(dtype)


def dry(
    l: Tensor,
    multiplier: Tensor,
    base: Tensor,
    allowed_length: Tensor,
    window: Tensor,
    breakers: Tensor,
    *,
    history: History,
) -> Tensor:
    """Don't Repeat Yourself: a token that would go on with a verbatim repeat of m tokens loses
    multiplier · base^(m − allowed_length)."""
    if history.ids.shape[1] < 2:
        return l
    longest = repeats(history, window, breakers, l.shape[1])
    excess = ((longest - allowed_length) * base.log()).clamp(max=60).exp()
    counts = (longest > 0) & (longest >= allowed_length)
    return torch.where(counts, _kept(l.double(), l.double() - multiplier * excess, l.dtype), l)


def repeats(history: History, window: Tensor, breakers: Tensor, vocab_size: int) -> Tensor:
    """(B, V): the longest verbatim repeat of the end of the history that each token would extend.

    For every position j, how many tokens up to j equal those up to the end, is found by bisection over sums of hashes,
    S_i = Σ x_t b^t mod P: two stretches are equal if their sums are, after moving one onto the other. That is some
    twenty array operations whatever the text, where a suffix automaton would go token by token.
    """
    inside = history.inside(window)
    ids = torch.where(inside, history.ids, -1)
    B, T = ids.shape
    at = torch.arange(T, device=ids.device)[None]
    end = history.lengths - 1  # (B, 1) the last token
    first = torch.where(inside, at, T).amin(dim=-1, keepdim=True)  # where the window begins
    is_breaker = members(ids, breakers, vocab_size)
    broken = torch.where(is_breaker & inside, at, -1).amax(dim=-1, keepdim=True)  # the last breaker
    room = torch.minimum(end - broken, end - first + 1)  # tokens after it
    limit = torch.minimum(room, at - first + 1)
    sums = _sums(ids)
    low, high = torch.zeros_like(ids), limit.clamp(min=0)  # the length is in low … high
    for _ in range(T.bit_length()):
        middle = (low + high + 1) // 2
        same = _equal(sums, at + 1 - middle, end + 1 - middle, middle)
        low, high = torch.where(same, middle, low), torch.where(same, high, middle - 1)
    following = ids.roll(-1, dims=1)
    counts = (
        inside & (at < end) & (low >= 1) & ~is_breaker.roll(-1, dims=1) & (following >= 0) & (following < vocab_size)
    )
    longest = torch.zeros(B, vocab_size, dtype=torch.long, device=ids.device)
    return longest.scatter_reduce_(1, following.clamp(0, vocab_size - 1), torch.where(counts, low, 0), "amax")


P = 2**31 - 1, 2**31 - 19  # two primes whose products fit 64 bits
BASE = 1_103_515_245, 1_566_083_941


def _sums(ids: Tensor) -> list[Tensor]:
    """Per prime (B, T + 1): Σ x_t b^t over the first t tokens."""
    found = []
    for prime, base in zip(P, BASE, strict=True):
        symbol = (ids + 2) * 2_654_435_761 % prime  # so that small ids are not small numbers
        sums = (symbol * _powers(prime, base, ids.shape[1], ids.device) % prime).cumsum(dim=1)
        found.append(torch.nn.functional.pad(sums, (1, 0)))
    return found


def _equal(sums: list[Tensor], a: Tensor, b: Tensor, length: Tensor) -> Tensor:
    """Whether the `length` tokens from a (B, T) on are those from b on; a ≤ b."""
    same = torch.ones_like(a, dtype=torch.bool)
    T = sums[0].shape[1] - 1
    for total, prime, base in zip(sums, P, BASE, strict=True):
        power = _powers(prime, base, T + 1, total.device)
        left, right = (
            (total.gather(1, (start + length).clamp(0, T)) - total.gather(1, start.clamp(0, T))) % prime
            for start in (a, b.expand_as(a))
        )
        same &= left * power[(b - a).clamp(0, T)] % prime == right
    return same


def _powers(prime: int, base: int, n: int, device: torch.device) -> Tensor:
    """1, b, b², … modulo the prime; as many as the next power of two, so that they are made seldom."""
    return _power_table(prime, base, 1 << max(10, (n - 1).bit_length()), device)[:n]


@cache
def _power_table(prime: int, base: int, n: int, device: torch.device) -> Tensor:
    powers = torch.ones(1, dtype=torch.long)
    while len(powers) < n:
        powers = torch.cat((powers, powers * (int(powers[-1]) * base % prime) % prime))
    return powers.to(device)

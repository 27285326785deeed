"""Penalties make tokens of the history less likely. Rows l (B, V), columns (B, 1), history as a `History`."""

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
    """Divide the logits of tokens in scope by θ, or multiply negative ones.

    Keskar et al. 2019 only divide; all implementations split by sign.
    """
    if not history.ids.shape[1]:
        return l
    ids, in_scope = _scoped_ids(l, history, window, scope)
    logits = l.gather(1, ids).double()
    scaled = torch.where(logits < 0, logits * penalty, logits / penalty)
    penalised = torch.where(in_scope.any(dim=-1, keepdim=True), scaled, logits)
    return l.scatter(1, ids, _keep_alive(logits, penalised, l.dtype))


def frequency_penalty(
    l: Tensor,
    penalty: Tensor,
    window: Tensor,
    scope: Tensor,
    *,
    history: History,
) -> Tensor:
    """l − penalty · (count of the token in scope)."""
    return _subtract(l, history, window, scope, lambda count: penalty * count)


def presence_penalty(
    l: Tensor,
    penalty: Tensor,
    window: Tensor,
    scope: Tensor,
    *,
    history: History,
) -> Tensor:
    """l − penalty, once, for every token in scope."""
    return _subtract(l, history, window, scope, lambda count: penalty * count.clamp(max=1))


def _scoped_ids(l: Tensor, history: History, window: Tensor, scope: Tensor) -> tuple[Tensor, Tensor]:
    """Ids (B, T) of the history, and which are in scope. The others repeat one in scope, so scattering them is safe."""
    in_scope = history.in_window(window, scope) & (history.ids >= 0) & (history.ids < l.shape[1])
    stand_in = history.ids.gather(1, in_scope.int().argmax(dim=-1, keepdim=True))
    return torch.where(in_scope, history.ids, stand_in).clamp(0, l.shape[1] - 1), in_scope


def _subtract(l: Tensor, history: History, window: Tensor, scope: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """Subtract `loss(count)` from the logit of each token in scope."""
    if not history.ids.shape[1]:
        return l
    ids, in_scope = _scoped_ids(l, history, window, scope)
    counts = torch.zeros_like(l).scatter_add_(1, ids, in_scope.to(l.dtype)).gather(1, ids)
    logits = l.gather(1, ids).double()
    return l.scatter(1, ids, _keep_alive(logits, logits - loss(counts.double()), l.dtype))


def _keep_alive(logits: Tensor, penalised: Tensor, dtype: torch.dtype) -> Tensor:
    """A penalty removes no token: live logits stay finite, however large the penalty."""
    limit = torch.finfo(dtype)
    return torch.where(alive(logits), penalised.clamp(limit.min, limit.max), logits).to(dtype)


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
    """Don't Repeat Yourself: a token that would extend a verbatim repeat of m tokens loses
    multiplier · base^(m − allowed_length)."""
    if history.ids.shape[1] < 2:
        return l
    longest = repeats(history, window, breakers, l.shape[1])
    excess = ((longest - allowed_length) * base.log()).clamp(max=60).exp()
    is_penalised = (longest > 0) & (longest >= allowed_length)
    return torch.where(is_penalised, _keep_alive(l.double(), l.double() - multiplier * excess, l.dtype), l)


def repeats(history: History, window: Tensor, breakers: Tensor, vocab_size: int) -> Tensor:
    """(B, V): the length of the longest verbatim repeat of the history's end that each token would extend.

    For every position j, the number of tokens up to j that equal those up to the end is found by bisection over
    polynomial hashes, S_i = Σ x_t b^t mod P: two stretches are equal if their hashes are, after shifting one onto the
    other. That takes about twenty tensor operations for any text, where a suffix automaton would go token by token.
    """
    in_window = history.in_window(window)
    ids = torch.where(in_window, history.ids, -1)
    B, T = ids.shape
    position = torch.arange(T, device=ids.device)[None]
    end = history.lengths - 1  # (B, 1) position of the last token
    start = torch.where(in_window, position, T).amin(dim=-1, keepdim=True)  # of the window
    is_breaker = members(ids, breakers, vocab_size)
    last_breaker = torch.where(is_breaker & in_window, position, -1).amax(dim=-1, keepdim=True)
    suffix_length = torch.minimum(end - last_breaker, end - start + 1)  # tokens after the last breaker
    limit = torch.minimum(suffix_length, position - start + 1)
    hashes = _prefix_hashes(ids)
    low, high = torch.zeros_like(ids), limit.clamp(min=0)  # bounds of the match length
    for _ in range(T.bit_length()):
        middle = (low + high + 1) // 2
        matches = _equal(hashes, position + 1 - middle, end + 1 - middle, middle)
        low, high = torch.where(matches, middle, low), torch.where(matches, high, middle - 1)
    following = ids.roll(-1, dims=1)
    is_token = (following >= 0) & (following < vocab_size) & ~is_breaker.roll(-1, dims=1)
    extends = in_window & (position < end) & (low >= 1) & is_token
    longest = torch.zeros(B, vocab_size, dtype=torch.long, device=ids.device)
    return longest.scatter_reduce_(1, following.clamp(0, vocab_size - 1), torch.where(extends, low, 0), "amax")


PRIMES = 2**31 - 1, 2**31 - 19  # their products fit in 64 bits
HASH_BASES = 1_103_515_245, 1_566_083_941


def _prefix_hashes(ids: Tensor) -> list[Tensor]:
    """Per prime (B, T + 1): Σ x_t b^t over the first 0, 1, …, T tokens."""
    hashes = []
    for prime, base in zip(PRIMES, HASH_BASES, strict=True):
        symbols = (ids + 2) * 2_654_435_761 % prime  # spread small ids over the whole range
        sums = (symbols * _powers(prime, base, ids.shape[1], ids.device) % prime).cumsum(dim=1)
        hashes.append(torch.nn.functional.pad(sums, (1, 0)))
    return hashes


def _equal(hashes: list[Tensor], a: Tensor, b: Tensor, length: Tensor) -> Tensor:
    """Whether the `length` tokens from a (B, T) on equal those from b on; a ≤ b."""
    is_equal = torch.ones_like(a, dtype=torch.bool)
    T = hashes[0].shape[1] - 1
    for prefix, prime, base in zip(hashes, PRIMES, HASH_BASES, strict=True):
        power = _powers(prime, base, T + 1, prefix.device)
        left, right = (
            (prefix.gather(1, (start + length).clamp(0, T)) - prefix.gather(1, start.clamp(0, T))) % prime
            for start in (a, b.expand_as(a))
        )
        is_equal &= left * power[(b - a).clamp(0, T)] % prime == right
    return is_equal


def _powers(prime: int, base: int, n: int, device: torch.device) -> Tensor:
    """1, b, b², … modulo the prime; the table has a power-of-two length, so that it is rarely rebuilt."""
    return _power_table(prime, base, 1 << max(10, (n - 1).bit_length()), device)[:n]


@cache
def _power_table(prime: int, base: int, n: int, device: torch.device) -> Tensor:
    powers = torch.ones(1, dtype=torch.long)
    while len(powers) < n:
        powers = torch.cat((powers, powers * (int(powers[-1]) * base % prime) % prime))
    return powers.to(device)

"""Filters keep some tokens as they are and remove the others (−inf). Rows l (B, V), columns p, k, … (B, 1).

Count and mass filters break ties by lower id; threshold filters keep or remove equal logits together. Every filter
keeps at least `min_keep` tokens, the first in its own order.
"""

import math

import torch
from torch import Tensor

from headway.sampling.distribution import alive, entropy, gpu_kernels, on_host, probabilities, widened
from headway.sampling.history import members
from headway.sampling.ranking import ranked, shortest_prefix


def keep(l: Tensor, kept: Tensor) -> Tensor:
    return torch.where(kept, l, -torch.inf)


def top_k(l: Tensor, k: Tensor, min_keep: Tensor | int) -> Tensor:
    """The first k of the ranking (Fan et al. 2018)."""
    return keep(l, _first(l, k.clamp(min=min_keep)))


def top_p(l: Tensor, p: Tensor, min_keep: Tensor | int) -> Tensor:
    """The shortest prefix of the ranking whose probabilities reach p: the nucleus (Holtzman et al. 2019)."""
    if kernels := gpu_kernels(l):
        return kernels.prefix(l, p, min_keep, "mass")
    return keep(l, shortest_prefix(l, probabilities(l), p, min_keep))


def typical(l: Tensor, p: Tensor, min_keep: Tensor | int) -> Tensor:
    """As top_p, ranked by how close a token's surprise −ln p is to its mean, the entropy (Meister et al. 2022). May
    remove the best token."""
    if kernels := gpu_kernels(l):
        return kernels.prefix(l, p, min_keep, "typical")
    log_q = widened(l).log_softmax(dim=-1)
    q = log_q.exp()
    deviation = (log_q + entropy(q).to(q.dtype)).abs()  # |−ln p − H|
    return keep(l, shortest_prefix(-deviation, q, p, min_keep))


def tail_free(l: Tensor, z: Tensor, min_keep: Tensor | int) -> Tensor:
    """Cut where the curve of sorted probabilities flattens: at fraction z of its second differences (Bricken 2019)."""
    n = alive(l).sum(dim=-1, keepdim=True)
    q = probabilities(l).sort(dim=-1, descending=True).values
    curvature = (q[:, :-2] - 2 * q[:, 1:-1] + q[:, 2:]).abs()  # (B, V − 2)
    is_alive = torch.arange(curvature.shape[1], device=l.device) <= n - 3  # second differences of the n live tokens
    curvature = curvature.masked_fill(~is_alive, 0.0)
    total = curvature.sum(dim=-1, keepdim=True)
    fraction = curvature.cumsum(dim=-1) / total
    count = 1 + ((fraction <= z) & is_alive).sum(dim=-1, keepdim=True)
    lowest = l.masked_fill(~alive(l), torch.inf).amin(dim=-1, keepdim=True)
    is_flat = (n <= 2) | (total == 0) | (lowest == l.amax(dim=-1, keepdim=True))
    return torch.where(is_flat, l, keep(l, _first(l, count.clamp(min=min_keep))))


def min_p(l: Tensor, p: Tensor, min_keep: Tensor | int) -> Tensor:
    """Probability at least p times the best: l − max(l) ≥ ln p (Nguyen et al. 2024)."""
    wide = widened(l)
    return _at_least(l, wide - wide.amax(dim=-1, keepdim=True) >= p.log().to(wide.dtype), min_keep)


def top_a(l: Tensor, a: Tensor, min_keep: Tensor | int) -> Tensor:
    """Probability at least a times the square of the best."""
    q = probabilities(l)
    return _at_least(l, q >= a * q.amax(dim=-1, keepdim=True) ** 2, min_keep)


def epsilon_cutoff(l: Tensor, epsilon: Tensor, min_keep: Tensor | int) -> Tensor:
    """Probability at least ε (Hewitt et al. 2022)."""
    return _with_best(l, probabilities(l) >= epsilon, min_keep)


def eta_cutoff(l: Tensor, epsilon: Tensor, min_keep: Tensor | int) -> Tensor:
    """Probability at least min(ε, √ε e^−H): a floor that drops as the entropy grows (Hewitt et al. 2022)."""
    q = probabilities(l)
    return _with_best(l, q >= torch.minimum(epsilon, epsilon.sqrt() * (-entropy(q)).exp()), min_keep)


def top_n_sigma(l: Tensor, n: Tensor, min_keep: Tensor | int) -> Tensor:
    """Within n standard deviations of the best logit, taken over the live tokens (Tang et al. 2024)."""
    is_alive, wide = alive(l), l.double()
    count = is_alive.sum(dim=-1, keepdim=True)
    gap = torch.where(is_alive, wide - wide.amax(dim=-1, keepdim=True), 0.0)  # shifted: large logits lose no digits
    mean = gap.sum(dim=-1, keepdim=True) / count
    sigma = (torch.where(is_alive, gap - mean, 0.0).square().sum(dim=-1, keepdim=True) / count).sqrt()
    return _at_least(l, is_alive & (gap >= -n * sigma), min_keep)


def xtc(
    l: Tensor,
    threshold: Tensor,
    probability: Tensor,
    protected: Tensor,
    min_keep: Tensor | int,
    *,
    uniform: Tensor,
    vocab_size: int,
    ids: Tensor | None = None,
) -> Tensor:
    """Exclude top choices: of the tokens that reach the threshold only the last in the ranking stays, in rows whose
    `uniform` (B, 1) is below `probability`. A row that would lose a protected token stays unchanged."""
    is_choice = probabilities(l) >= threshold
    lowest = l.masked_fill(~is_choice, torch.inf).amin(dim=-1, keepdim=True)
    last = l.shape[1] - 1 - (is_choice & (l == lowest)).flip(1).int().argmax(dim=-1, keepdim=True)
    removed = is_choice.scatter(1, last, False)
    acts = (uniform < probability) & (is_choice.sum(dim=-1, keepdim=True) >= 2)
    acts &= (alive(l) & ~removed).sum(dim=-1, keepdim=True) >= min_keep
    if protected.numel():
        acts &= ~(removed & members(ids, protected, vocab_size)).any(dim=-1, keepdim=True)
    return l.masked_fill(removed & acts, -torch.inf)


def mirostat_v1(
    l: Tensor,
    tau: Tensor,
    eta: Tensor,
    m: Tensor,
    *,
    mu: Tensor,
    vocab_size: int,
    max_m: int,
) -> Tensor:
    """Keep k tokens, with k from the Zipf exponent s of the best m and the surprise mu (Basu et al. 2020).

    `max_m`: the largest m.
    """
    wide = widened(l)
    n = alive(l).sum(dim=-1, keepdim=True)
    best = wide.gather(1, ranked(wide, min(max_m, l.shape[1])))
    i = torch.arange(best.shape[1] - 1, device=l.device)
    in_fit = i < torch.minimum(m - 1, n - 1)  # (B, m − 1)
    t = ((i + 2) / (i + 1)).log().double()
    b = torch.where(in_fit, best[:, :-1] - best[:, 1:], 0.0)
    s = (t * b).sum(dim=-1, keepdim=True) / torch.where(in_fit, t * t, 0.0).sum(dim=-1, keepdim=True).clamp(min=1e-300)
    e, ln_v, ln_2 = s - 1, math.log(vocab_size), math.log(2)
    # ln of e / (1 − V^−e), which is positive on both sides of 0.
    is_near_zero = e.abs() < 1e-9
    safe_e = torch.where(is_near_zero, 1.0, e)
    ln_factor = torch.where(is_near_zero, -math.log(max(ln_v, 1e-300)), (safe_e / -torch.expm1(-safe_e * ln_v)).log())
    safe_s = torch.where(s < 1e-3, 1.0, s)
    ln_k = torch.where(s < 1e-3, mu * ln_2, (ln_factor + mu * ln_2) / safe_s)
    k = torch.where(s < 1e-3, torch.exp2(mu.clamp(max=57.0)), ln_k.clamp(0.0, 40.0).exp())  # exp2: exact at integers
    k = k.floor().long().clamp(min=1)
    return torch.where(n == 1, l, keep(l, _first(l, torch.minimum(k, n))))


def mirostat_v2(l: Tensor, tau: Tensor, eta: Tensor, *, mu: Tensor) -> Tensor:
    """Keep the tokens whose surprise, −log2 p, is at most mu; at least the best (Basu et al. 2020)."""
    bits = -probabilities(l).log2()
    return keep(l, (bits <= mu) | _first(l, torch.ones_like(mu, dtype=torch.long)))


def _first(l: Tensor, count: Tensor) -> Tensor:
    """True for the first `count` (B or 1, 1) of the ranking."""
    if on_host(l):
        order = ranked(l, int(count.max()) if count.numel() else 0)
        kept = torch.arange(order.shape[1]) < count
        return torch.zeros_like(l, dtype=torch.bool).scatter_(1, order, kept.expand_as(order))
    if kernels := gpu_kernels(l):
        return kernels.prefix(l, count, 1, "count") != -torch.inf  # keeps NaN, so that the draw detects it
    return shortest_prefix(l, torch.ones_like(l), count, 1)


def _with_best(l: Tensor, kept: Tensor, min_keep: Tensor | int) -> Tensor:
    """Keep what passed the threshold, and all tokens tied with the best, which the threshold may exceed."""
    return _at_least(l, kept | (l == l.amax(dim=-1, keepdim=True)), min_keep)


def _at_least(l: Tensor, kept: Tensor, min_keep: Tensor | int) -> Tensor:
    """Keep what passed the threshold, and the first `min_keep`."""
    if isinstance(min_keep, int):
        if min_keep <= 1:
            return keep(l, kept)
        min_keep = torch.full((1, 1), min_keep, device=l.device)
    return keep(l, kept | _first(l, min_keep))

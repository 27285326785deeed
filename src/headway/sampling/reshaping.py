"""Samplers that change logits and keep every token. Rows l (B, V); parameters are columns (B, 1).

Results are float64 where that is cheap, so that division never makes different logits equal. The pipeline converts them
back to the dtype of its input.
"""

import torch
from torch import Tensor

from headway.sampling.distribution import alive, entropy, probabilities, widened
from headway.sampling.drawing import GREEDY_BELOW


def temperature(l: Tensor, temperature: Tensor, *, no_greedy_rows: bool = False) -> Tensor:
    """l / T: above 1 flattens the distribution, below 1 sharpens it (Ackley, Hinton & Sejnowski 1985).

    Below `GREEDY_BELOW` only the best token stays, its logit unchanged. Pass `no_greedy_rows=True` to skip that check
    if every temperature is above it.
    """
    wide = widened(l)
    if no_greedy_rows:
        return wide / temperature.to(wide.dtype)
    is_greedy = temperature < GREEDY_BELOW
    return torch.where(is_greedy, best_alone(wide), wide / torch.where(is_greedy, 1.0, temperature).to(wide.dtype))


def best_alone(l: Tensor) -> Tensor:
    """Remove all but the best token."""
    is_best = torch.zeros_like(l, dtype=torch.bool).scatter_(1, l.argmax(dim=-1, keepdim=True), True)
    return l.masked_fill(~is_best, -torch.inf)


def dynamic_temperature(l: Tensor, low: Tensor, high: Tensor, exponent: Tensor) -> Tensor:
    """A temperature between `low` and `high` by the normalised entropy r = H / ln n of the n live tokens."""
    n = alive(l).sum(dim=-1, keepdim=True)
    r = (entropy(probabilities(l)) / n.double().log()).clamp(0, 1)  # 0/0 for one token, which stays as it is below
    scaled = temperature(l, low + (high - low) * r.nan_to_num(0.0) ** exponent)
    return torch.where(n == 1, widened(l), scaled)


def quadratic(l: Tensor, factor: Tensor, curve: Tensor) -> Tensor:
    """A parabola through the best logit M, bent into a cubic by `curve`: gaps near the top shrink, distant ones grow.

    l ← M − f (3 − c)/2 d² + f (c − 1)/2 d³ with d = l − M.
    """
    wide = l.double()
    M = wide.amax(dim=-1, keepdim=True)
    d = torch.where(alive(l), wide - M, 0.0).clamp(min=-1e100)  # its cube is finite
    loss = factor * (d * d * ((3 - curve) / 2 - (curve - 1) / 2 * d))
    lowest = torch.finfo(torch.float64).min  # finite: reshaping removes no token
    return torch.where(alive(l), (M - loss).clamp(min=lowest), wide)

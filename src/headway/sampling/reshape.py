"""Stages that change logits and keep every token. Rows l (B, V); parameters are numbers or columns (B, 1)."""

import torch
from torch import Tensor

from headway.sampling.choose import GREEDY_BELOW
from headway.sampling.distribution import alive, entropy, probabilities


def temperature(l: Tensor, temperature: Tensor, *, is_warm: bool = False) -> Tensor:
    """l / T: above 1 flattens the distribution, below 1 sharpens it (Ackley, Hinton & Sejnowski 1985).

    Below `GREEDY_BELOW` the best token stays, alone and as it is; `is_warm`: no row is that cold.
    """
    if is_warm:
        return l / temperature.to(l.dtype)
    is_cold = temperature < GREEDY_BELOW
    return torch.where(is_cold, best_alone(l), l / torch.where(is_cold, 1.0, temperature).to(l.dtype))


def best_alone(l: Tensor) -> Tensor:
    best = torch.zeros_like(l, dtype=torch.bool).scatter_(1, l.argmax(dim=-1, keepdim=True), True)
    return l.masked_fill(~best, -torch.inf)


def dynamic_temperature(l: Tensor, low: Tensor, high: Tensor, exponent: Tensor) -> Tensor:
    """A temperature between `low` and `high`, by how undecided the row is: r = H / ln n, of the n tokens alive."""
    n = alive(l).sum(dim=-1, keepdim=True)
    r = (entropy(probabilities(l)) / n.double().log()).clamp(0, 1)  # 0/0 for one token: left alone below
    return torch.where(n == 1, l, temperature(l, low + (high - low) * r.nan_to_num(0.0) ** exponent))


def quadratic(l: Tensor, factor: Tensor, curve: Tensor) -> Tensor:
    """A parabola through the best logit M, bent into a cubic by `curve`: near the top differences shrink, far from it
    they grow.  l ← M − f (3 − c)/2 d² + f (c − 1)/2 d³, d = l − M."""
    M = l.amax(dim=-1, keepdim=True).double()
    d = torch.where(alive(l), l.double() - M, 0.0)
    bent = M - factor * (3 - curve) / 2 * d**2 + factor * (curve - 1) / 2 * d**3
    bent = bent.clamp(min=torch.finfo(l.dtype).min).to(l.dtype)  # far below, but still there
    return torch.where(alive(l), bent, l)

"""Stages that change logits and keep every token. Rows l (B, V); parameters are columns (B, 1).

Results are float64 where that costs little: two logits that differ must not become equal by being divided. The pipeline
gives them back in the type they came in.
"""

import torch
from torch import Tensor

from headway.sampling.distribution import alive, entropy, probabilities, widened
from headway.sampling.drawing import GREEDY_BELOW


def temperature(l: Tensor, temperature: Tensor, *, is_warm: bool = False) -> Tensor:
    """l / T: above 1 flattens the distribution, below 1 sharpens it (Ackley, Hinton & Sejnowski 1985).

    Below `GREEDY_BELOW` the best token stays, alone and as it is; `is_warm`: no row is that cold.
    """
    wide = widened(l)
    if is_warm:
        return wide / temperature.to(wide.dtype)
    is_cold = temperature < GREEDY_BELOW
    return torch.where(is_cold, best_alone(wide), wide / torch.where(is_cold, 1.0, temperature).to(wide.dtype))


def best_alone(l: Tensor) -> Tensor:
    best = torch.zeros_like(l, dtype=torch.bool).scatter_(1, l.argmax(dim=-1, keepdim=True), True)
    return l.masked_fill(~best, -torch.inf)


def dynamic_temperature(l: Tensor, low: Tensor, high: Tensor, exponent: Tensor) -> Tensor:
    """A temperature between `low` and `high`, by how undecided the row is: r = H / ln n, of the n tokens alive."""
    n = alive(l).sum(dim=-1, keepdim=True)
    r = (entropy(probabilities(l)) / n.double().log()).clamp(0, 1)  # 0/0 for one token: left alone below
    heated = temperature(l, low + (high - low) * r.nan_to_num(0.0) ** exponent)
    return torch.where(n == 1, widened(l), heated)


def quadratic(l: Tensor, factor: Tensor, curve: Tensor) -> Tensor:
    """A parabola through the best logit M, bent into a cubic by `curve`: near the top differences shrink, far from it
    they grow.  l ← M − f (3 − c)/2 d² + f (c − 1)/2 d³, d = l − M."""
    wide = l.double()
    M = wide.amax(dim=-1, keepdim=True)
    d = torch.where(alive(l), wide - M, 0.0).clamp(min=-1e100)  # its cube is finite
    loss = factor * (d * d * ((3 - curve) / 2 - (curve - 1) / 2 * d))
    return torch.where(alive(l), (M - loss).clamp(min=torch.finfo(torch.float64).min), wide)  # far below, but there

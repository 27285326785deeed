"""Stages that change logits and keep every token."""

import math

from torch import Tensor

from headway.errors import ConfigError


def temperature(logits: Tensor, t: float) -> Tensor:
    """l / T: above 1 flattens the distribution, below 1 sharpens it (Ackley, Hinton & Sejnowski 1985)."""
    check_temperature(t)
    return logits if t == 1.0 else logits / t


def check_temperature(t: float) -> None:
    if not (math.isfinite(t) and t >= 0):
        raise ConfigError(f"temperature={t} must be a number from 0 (greedy) upwards; 1 leaves the model as it is")

"""Learning rates over a run: each schedule is a function of the step and of the share of the run that is done.

All begin with a warm-up that is linear over `warmup_steps`, which multiplies whatever follows: with a schedule that
falls from the start (cosine, linear), long warm-ups peak below `lr`.
"""

import math
from collections.abc import Callable

from headway.config import TrainConfig


def cosine(config: TrainConfig, step: int, share: float) -> float:
    """Half a cosine from `lr` to `min_lr` (Loshchilov & Hutter 2017, eq. 5, without restarts)."""
    return config.min_lr + (config.lr - config.min_lr) * 0.5 * (1 + math.cos(math.pi * share))


def linear(config: TrainConfig, step: int, share: float) -> float:
    return config.lr + (config.min_lr - config.lr) * share


def constant(config: TrainConfig, step: int, share: float) -> float:
    return config.lr


def wsd(config: TrainConfig, step: int, share: float) -> float:
    """Warm-up, stable, decay (Hu et al. 2024, §4): constant, then straight down over the last `decay_share`."""
    left = min(1.0, (1 - share) / config.decay_fraction)
    return config.min_lr + (config.lr - config.min_lr) * left


def inverse_sqrt(config: TrainConfig, step: int, share: float) -> float:
    """Vaswani et al. 2017, eq. 3: up over the warm-up, then down with √step. `lr` is the peak: the paper's for
    d_model = 512 and 4,000 steps of warm-up is (512 · 4000)^−½ = 6.99e-4."""
    return config.lr * math.sqrt(config.warmup_steps / max(step + 1, config.warmup_steps))


def step_decay(config: TrainConfig, step: int, share: float) -> float:
    """Constant until `decay_from`, then times `decay_factor`, and again every `decay_every` steps
    (Zaremba et al. 2014, §4.1: after some epochs, divided by 1.2 after each)."""
    falls = 0 if step < config.decay_from else 1 + (step - config.decay_from) // config.decay_every
    return config.lr * config.decay_factor**falls


SCHEDULES: dict[str, Callable[[TrainConfig, int, float], float]] = {
    "cosine": cosine,
    "linear": linear,
    "constant": constant,
    "wsd": wsd,
    "inverse-sqrt": inverse_sqrt,
    "step": step_decay,
}


def learning_rate(config: TrainConfig, step: int, share: float) -> float:
    """The rate of a step, counted from 0, when this share of the run (0 to 1) is done."""
    warm = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    return warm * SCHEDULES[config.schedule](config, step, min(share, 1.0))

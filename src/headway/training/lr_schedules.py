"""Learning-rate schedules: each is a function of the step and of the fraction of the run that is done.

All start with a linear warm-up over `warmup_steps`, which multiplies the schedule: with one that falls from the start
(cosine, linear), a long warm-up peaks below `lr`.
"""

import math
from collections.abc import Callable

from headway.config import TrainConfig


def cosine(config: TrainConfig, step: int, fraction: float) -> float:
    """Half a cosine from `lr` to `min_lr` (Loshchilov & Hutter 2017, eq. 5, without restarts)."""
    return config.min_lr + (config.lr - config.min_lr) * 0.5 * (1 + math.cos(math.pi * fraction))


def linear(config: TrainConfig, step: int, fraction: float) -> float:
    return config.lr + (config.min_lr - config.lr) * fraction


def constant(config: TrainConfig, step: int, fraction: float) -> float:
    return config.lr


def wsd(config: TrainConfig, step: int, fraction: float) -> float:
    """Warm-up, stable, decay (Hu et al. 2024, §4): constant, then linear over the last `decay_fraction` of the run."""
    decay = min(1.0, (1 - fraction) / config.decay_fraction)
    return config.min_lr + (config.lr - config.min_lr) * decay


def inverse_sqrt(config: TrainConfig, step: int, fraction: float) -> float:
    """Vaswani et al. 2017, eq. 3: up over the warm-up, then down with √step. `lr` is the peak: the paper's for
    d_model = 512 and 4,000 warm-up steps is (512 · 4000)^−½ = 6.99e-4."""
    return config.lr * math.sqrt(config.warmup_steps / max(step + 1, config.warmup_steps))


def step_decay(config: TrainConfig, step: int, fraction: float) -> float:
    """Constant until `decay_from`, then multiplied by `decay_factor` there and every `decay_every` steps after it
    (Zaremba et al. 2014, §4.1: after some epochs, divided by 1.2 after each)."""
    n_decays = 0 if step < config.decay_from else 1 + (step - config.decay_from) // config.decay_every
    return config.lr * config.decay_factor**n_decays


SCHEDULES: dict[str, Callable[[TrainConfig, int, float], float]] = {
    "cosine": cosine,
    "linear": linear,
    "constant": constant,
    "wsd": wsd,
    "inverse-sqrt": inverse_sqrt,
    "step": step_decay,
}


def learning_rate(config: TrainConfig, step: int, fraction: float) -> float:
    """Learning rate of a step, counted from 0, when this fraction of the run (0 to 1) is done."""
    warmup = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    return warmup * SCHEDULES[config.schedule](config, step, min(fraction, 1.0))

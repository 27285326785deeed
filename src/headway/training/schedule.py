"""Learning rates over a run, as functions of how far it is."""

import math


def warmup_cosine(step: int, progress: float, *, lr: float, min_lr: float, warmup_steps: int) -> float:
    """Half a cosine from `lr` to `min_lr` as `progress` goes from 0 to 1 (Loshchilov & Hutter 2017, eq. 5, without
    restarts), times a warm-up that is linear over `warmup_steps`. Long warm-ups therefore peak below `lr`.
    """
    warm = min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
    return warm * (min_lr + (lr - min_lr) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0))))

"""Which learning rate? Raise it from tiny to huge over a few hundred steps and watch the loss (Smith 2017, §3.3).

    lr_i = low · (high / low)^(i / (steps − 1))

The loss first stays, then falls, then bursts. Suggested is the rate at which the smoothed loss falls fastest per factor
of rate: an order of magnitude below the burst, a good peak for a schedule that warms up.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from headway.config import Recipe
from headway.data.loader import prefetch
from headway.data.token_shards import PrepareProgress as Preparing
from headway.devices import parse_device, product_precision
from headway.errors import ConfigError, HeadwayError
from headway.training.distributed import DistContext
from headway.training.objectives import LossModule
from headway.training.optimizers import Optimizer
from headway.training.task import make_model, make_task
from headway.training.train_step import Diverged, TrainStep, iter_step_batches

BURST = 4.0  # times the best loss so far: no more to see


@dataclass(frozen=True)
class LRTrial:
    lr: float
    loss: float  # nats per target of that step
    smooth: float  # over some ten steps


@dataclass(frozen=True)
class LRSweep:
    trials: list[LRTrial]
    suggestion: float


def find_lr(
    recipe: Recipe,
    *,
    low: float = 1e-6,
    high: float = 1.0,
    steps: int = 200,
    report: Callable[[int, LRTrial], None] = lambda step, trial: None,
    say: Callable[[str], None] = lambda line: None,
    preparing: Callable[[Preparing], None] = lambda progress: None,
) -> LRSweep:
    """Sweep the learning rate of a recipe; nothing is written. `report` hears of every step."""
    if not 0 < low < high:
        raise ConfigError(f"low={low}, high={high}: rates from a positive low up to a higher high")
    if steps < 10:
        raise ConfigError(f"steps={steps} are too few to see anything: at least 10")
    device, config = parse_device(recipe.train.device), recipe.train
    task = make_task(recipe, say=say, preparing=preparing)
    torch.manual_seed(config.seed)
    model = make_model(task, device)
    if not list(model.parameters()):
        raise ConfigError("this model counts, and has no learning rate")
    learner = LossModule(model, task.objective, config.label_smoothing, config.rdrop_alpha).train()
    optimizer = Optimizer(model, config, device=device)
    is_bfloat16 = product_precision(device, config.dtype) == "bfloat16"
    step = TrainStep(learner, optimizer, clip=config.grad_clip, autocast=is_bfloat16, device=device)
    trials: list[LRTrial] = []
    average, best = 0.0, math.inf
    work_ahead = prefetch(iter_step_batches(task.loader(DistContext()), 0, config.grad_accum_steps), device=device)
    for i, work in zip(range(steps), work_ahead, strict=False):
        lr = low * (high / low) ** (i / (steps - 1))
        optimizer.set_rate(lr)
        try:
            loss = float(step(work, 1 / max(work.n_targets, 1))[0]) / max(work.n_targets, 1)
        except Diverged:
            break
        average = 0.9 * average + 0.1 * loss
        trial = LRTrial(lr, loss, average / (1 - 0.9 ** (i + 1)))
        if not math.isfinite(loss) or trial.smooth > BURST * best:
            break
        best = min(best, trial.smooth)
        trials.append(trial)
        report(i + 1, trial)
    return LRSweep(trials, suggest_lr(trials))


def suggest_lr(trials: list[LRTrial]) -> float:
    """The rate at which the smoothed loss falls fastest, per factor of rate."""
    if len(trials) < 10:
        raise HeadwayError(f"the loss burst after {len(trials)} steps: sweep from a lower rate")
    width = max(2, len(trials) // 20)  # a slope over a few steps, not over the noise of one
    slopes = [
        (trials[i + width].smooth - trials[i - width].smooth) / math.log(trials[i + width].lr / trials[i - width].lr)
        for i in range(width, len(trials) - width)
    ]
    steepest = min(range(len(slopes)), key=slopes.__getitem__)
    if slopes[steepest] >= 0:
        raise HeadwayError("the loss never falls: sweep further up, or over more steps")
    return trials[steepest + width].lr

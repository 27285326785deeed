"""Learning-rate range test: raise the rate from tiny to huge over a few hundred steps and watch the loss (Smith 2017,
§3.3).

    lr_i = low · (high / low)^(i / (steps − 1))

The loss is flat at first, then falls, then diverges. The suggestion is the rate at which the smoothed loss falls
most steeply against log lr: an order of magnitude below divergence, a good peak for a schedule with a warmup.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from headway.config import Recipe, as_recipe
from headway.data.loader import prefetch
from headway.data.token_shards import OnPrepare
from headway.devices import matmul_dtype, parse_device
from headway.errors import ConfigError, DataError, HeadwayError, count, with_article
from headway.nn.kernels.cpu_linear import use_cpu_training_kernels
from headway.training.distributed import DistContext
from headway.training.failures import DivergenceError
from headway.training.objectives import LossModule
from headway.training.optimizers import Optimizer
from headway.training.progress import OnMessage
from headway.training.task import load_initial_weights, loss_name, make_model, make_task
from headway.training.threads import cpu_threads
from headway.training.train_step import TrainStep, iter_step_batches
from headway.training.trainable import choose_trainable

MIN_STEPS = 10
MAX_STEPS = 100_000  # each is kept for the plot
SMOOTHING = 0.9  # decay of the exponential moving average of the loss, which spans about 10 steps
DIVERGENCE_FACTOR = 4.0  # the sweep ends when the smoothed loss exceeds the best one by this factor


@dataclass(frozen=True)
class LRTrial:
    lr: float
    loss: float  # nats per target of that step
    smooth: float  # exponential moving average


@dataclass(frozen=True)
class LRSweep:
    trials: list[LRTrial]
    suggestion: float
    diverged_at: float | None = None  # the rate that ended the sweep before its last step


def find_lr(
    recipe: Recipe | str | Path,
    *,
    low: float = 1e-6,
    high: float = 1.0,
    steps: int = 200,
    on_step: Callable[[int, LRTrial], None] = lambda step, trial: None,
    on_message: OnMessage = lambda line: None,
    on_prepare: OnPrepare = lambda progress: None,
) -> LRSweep:
    """Sweep the learning rate of a recipe from `low` to `high`; writes nothing to disk. `on_step` gets each trial."""
    if not 0 < low < high:
        raise ConfigError(f"low={low}, high={high}: the sweep goes from a positive low up to a larger high")
    if steps < MIN_STEPS:
        raise ConfigError(f"steps={steps} are too few for a sweep: use at least {MIN_STEPS}")
    if steps > MAX_STEPS:
        raise ConfigError(f"steps={steps} is too many for a sweep: use at most {MAX_STEPS:,}")
    recipe = as_recipe(recipe)
    device, config = parse_device(recipe.train.device), recipe.train
    task = make_task(recipe, on_message=on_message, on_prepare=on_prepare)
    torch.manual_seed(config.seed)
    model = make_model(task, device)
    load_initial_weights(model, task)
    choose_trainable(model, recipe)
    if not list(model.parameters()):
        raise ConfigError(f"{with_article(recipe.model.family)} is fitted by counting: it has no learning rate")
    use_cpu_training_kernels(model)
    loss_module = LossModule(
        model, loss_name(recipe), config.label_smoothing, config.rdrop_alpha, class_weights=task.class_weights
    ).train()
    optimizer = Optimizer(model, config, device=device)
    is_bfloat16 = matmul_dtype(device, config.dtype) == "bfloat16"
    train_step = TrainStep(loss_module, optimizer, clip=config.grad_clip, autocast=is_bfloat16, device=device)
    batches = prefetch(iter_step_batches(task.loader(DistContext()), 0, config.grad_accum_steps), device=device)
    trials: list[LRTrial] = []
    average, best = 0.0, math.inf
    diverged_at: float | None = None
    with cpu_threads(config.threads, device, on_message=on_message):
        for i, batch in zip(range(steps), batches, strict=False):
            lr = low * (high / low) ** (i / (steps - 1))
            optimizer.set_lr(lr)
            if not batch.n_targets:  # of padding or special tokens only: it has no loss
                continue
            try:
                loss = float(train_step(batch, 1 / batch.n_targets)[0]) / batch.n_targets
            except DivergenceError:
                diverged_at = lr
                break
            average = SMOOTHING * average + (1 - SMOOTHING) * loss
            trial = LRTrial(lr, loss, average / (1 - SMOOTHING ** (len(trials) + 1)))  # bias-corrected
            if not math.isfinite(loss) or trial.smooth > DIVERGENCE_FACTOR * best:
                diverged_at = lr
                break
            best = min(best, trial.smooth)
            trials.append(trial)
            on_step(i + 1, trial)
    if diverged_at is None and len(trials) < MIN_STEPS:
        raise DataError(
            f"only {count(len(trials), 'step')} of {steps} had targets to predict, and {MIN_STEPS} are needed: give "
            f"more data, or longer sequences (train.seq_len)"
        )
    return LRSweep(trials, suggest_lr(trials), diverged_at)


def suggest_lr(trials: list[LRTrial]) -> float:
    """The rate at which the smoothed loss falls fastest per factor of rate."""
    if len(trials) < MIN_STEPS:
        raise HeadwayError(f"the loss diverged after {len(trials)} steps: start the sweep at a lower rate")
    radius = max(2, len(trials) // 20)  # slopes span a few steps, to average out the noise
    slopes = [
        (trials[i + radius].smooth - trials[i - radius].smooth)
        / math.log(trials[i + radius].lr / trials[i - radius].lr)
        for i in range(radius, len(trials) - radius)
    ]
    steepest = min(range(len(slopes)), key=slopes.__getitem__)
    if slopes[steepest] >= 0:
        raise HeadwayError("the loss never falls: sweep up to a higher rate, or over more steps")
    return trials[steepest + radius].lr

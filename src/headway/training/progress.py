"""What `headway.train` reports while it runs: smoothed loss, throughput, MFU and time left after each step."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from headway.config import TrainConfig
from headway.evaluation.validation import EvalResult
from headway.training.checkpoint import TrainerProgress
from headway.training.throughput import ThroughputMeter, mfu, peak_memory

SMOOTHING_START = 8  # the average spans about an eighth of the steps so far, until it reaches its full span
LOSS_SMOOTHING = 0.95  # decay of the exponential moving average of the loss, which spans about 20 steps


@dataclass(frozen=True)
class Progress:
    """The state of a run after a step, for `on_step`."""

    step: int  # steps done
    steps: int  # steps in total
    fraction: float  # of the run, 0 to 1: by steps or, with a time limit, by the clock
    seconds: float
    loss: float  # nats per target, smoothed; NaN before the first step that has targets
    lr: float
    grad_norm: float
    tokens_per_second: float
    bits_per_byte: float | None = None  # of the training text, from the smoothed loss
    mfu: float | None = None  # model FLOPs utilisation
    memory: int = 0  # peak bytes in use
    score: EvalResult | None = None  # on the validation set, at the steps that evaluate
    seconds_left: float = math.inf


OnStep = Callable[[Progress], None]
OnMessage = Callable[[str], None]


def progress_fraction(progress: TrainerProgress, config: TrainConfig) -> float:
    """How much of the run is done: by steps or by the clock, whichever is further."""
    limit = config.max_seconds
    return max(progress.step / config.steps, progress.seconds / limit if limit else 0.0)


class ProgressMeter:
    """Derives `Progress` from the numbers of a step.

    `peak_flops` is that of one rank, `peak_source` where the number comes from. A measured peak is too low if the
    machine was busy then: it is raised to the highest rate seen in training, so that MFU never exceeds 100 %.
    `bytes_per_target` turns nats per target into bits per byte, where targets are tokens of text.
    """

    def __init__(
        self,
        config: TrainConfig,
        device: torch.device,
        *,
        flops_per_token: float,
        peak_flops: float,
        peak_source: str,
        n_ranks: int,
        bytes_per_target: float | None,
        tokens_per_target: float = 1.0,
    ):
        self.config, self.device, self.n_ranks = config, device, n_ranks
        self.flops_per_token, self.bytes_per_target = flops_per_token, bytes_per_target
        self.peak_flops, self.peak_source = peak_flops, peak_source
        self.tokens_per_target = tokens_per_target
        self.start(TrainerProgress())

    def start(self, progress: TrainerProgress) -> None:
        """Start the clock, at the first step or at the one a run resumes from."""
        self.smoothed_loss, self.n_losses = math.nan, 0
        self.first_loss = self.last_loss = math.nan  # as they are, not smoothed
        self.start_time, self.start_fraction = time.monotonic(), progress_fraction(progress, self.config)
        self.reset_throughput(progress)

    def reset_throughput(self, progress: TrainerProgress) -> None:
        """Leave the time since the last step, spent on evaluation or on saving, out of the throughput."""
        self.throughput = ThroughputMeter(progress.n_tokens)

    def update(self, progress: TrainerProgress, *, loss: float | None, lr: float, grad_norm: float) -> Progress:
        """The progress after a step; its loss is None if it had no targets and was skipped."""
        if loss is not None:
            self._add_loss(loss)
        tokens_per_second = self.tokens_per_target * self.throughput.mark(progress.n_tokens)
        fraction = min(progress_fraction(progress, self.config), 1.0)
        fraction_done = fraction - self.start_fraction
        elapsed = time.monotonic() - self.start_time
        bits_per_target = self.smoothed_loss / math.log(2)
        self.peak_flops = max(self.peak_flops, tokens_per_second * self.flops_per_token / self.n_ranks)
        return Progress(
            progress.step,
            self.config.steps,
            fraction,
            progress.seconds,
            self.smoothed_loss,
            lr,
            grad_norm,
            tokens_per_second,
            bits_per_byte=bits_per_target / self.bytes_per_target if self.bytes_per_target else None,
            mfu=mfu(tokens_per_second, self.flops_per_token, self.peak_flops * self.n_ranks),
            memory=peak_memory(self.device),
            seconds_left=elapsed * (1 - fraction) / fraction_done if fraction_done > 0 else math.inf,
        )

    def _add_loss(self, loss: float) -> None:
        self.n_losses += 1
        # A loss that falls steeply at the start is averaged over fewer steps.
        decay = min(LOSS_SMOOTHING, self.n_losses / (self.n_losses + SMOOTHING_START))
        is_first = math.isnan(self.smoothed_loss)
        self.first_loss, self.last_loss = (loss if is_first else self.first_loss), loss
        self.smoothed_loss = loss if is_first else decay * self.smoothed_loss + (1 - decay) * loss

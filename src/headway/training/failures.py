"""Failures of a run, explained: what went wrong, which checkpoint is safe, and how to resume."""

import re
from dataclasses import dataclass

import torch

from headway.config import TrainConfig
from headway.entry_points import plugin_options
from headway.errors import HeadwayError
from headway.runs import Run

CONNECTION_ERRORS = ("connection closed", "connection reset", "connection refused", "gloo", "nccl", "broken pipe")


class DivergenceError(HeadwayError):
    """The loss or the gradient norm is not finite."""


def is_lost_contact(error: Exception) -> bool:
    """Whether this is the error that a rank gets when another rank has died."""
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(sign in text for sign in CONNECTION_ERRORS)


@dataclass(frozen=True)
class FailureContext:
    """Where training was when it failed."""

    run: Run
    config: TrainConfig
    step: int  # last step completed
    lr: float
    batch_shape: tuple[int, int]  # rows and tokens of a micro-batch
    device: torch.device
    rank: int


def explain_failure(error: Exception, context: FailureContext) -> Exception:
    """A HeadwayError that tells the user how to continue; an unforeseen error comes back as it is."""
    cause = _describe(error, context)
    if cause is None:
        return error
    cause = re.sub(r"\.(step-\d+)\.[^/]*partial", r"\1", cause)  # not the temporary name of the checkpoint
    steps = context.run.checkpoint_steps()
    if not steps:
        return HeadwayError(f"{cause}. Stopped after step {context.step}; there is no checkpoint yet")
    lower_lr = f" --set train.lr={context.config.lr / 10:.2g}" if isinstance(error, DivergenceError) else ""
    return HeadwayError(
        f"{cause}. Stopped after step {context.step}; the last checkpoint is {context.run.checkpoint_dir(steps[-1])}; "
        f"to resume: headway train {context.run.path} --resume{lower_lr}{plugin_options()}"
    )


def _describe(error: Exception, context: FailureContext) -> str | None:
    config = context.config
    if isinstance(error, DivergenceError):
        return (
            f"{error} (learning rate {context.lr:.2g}): training has diverged; try a smaller train.lr than "
            f"{config.lr} or more train.warmup_steps"
        )
    if isinstance(error, torch.OutOfMemoryError):
        rows, seq_len = context.batch_shape
        return (
            f"{context.device} is out of memory with micro-batches of {rows} x {seq_len} tokens: set "
            f"train.grad_accum_steps={2 * config.grad_accum_steps}, which gives the same steps, or "
            f"train.checkpoint_activations=true"
        )
    if isinstance(error, OSError) and not isinstance(error, HeadwayError):  # such as a full disk, or data that has gone
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    if is_lost_contact(error):
        reason = str(error).strip().splitlines()[0]
        return f"rank {context.rank} lost contact with the other ranks ({reason}): one of them has exited"
    return str(error) if isinstance(error, HeadwayError) else None

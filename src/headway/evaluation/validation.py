"""Validation sets: held-out data that a model is scored on repeatedly while it trains.

A validation set sums a loss function over its batches. Each rank scores its own rows, and the sums are reduced over
ranks. Every result has a `selection_loss`, where smaller is better: training selects checkpoints by it.

A meaningless score is an error: a mean over no targets, or a NaN loss. A loss may be infinite,
since a model may give a token the probability 0, as an n-gram without smoothing does.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from headway.data.loader import Batch
from headway.errors import DataError, HeadwayError

LossOutput = tuple[Tensor, Tensor | None]  # summed loss in nats, and the number of correct predictions where known
LossFn = Callable[[Any], LossOutput]  # batch → its loss

ACCUMULATED_BATCHES = 64  # batches between two transfers of their sums to the host, each of which synchronises


ROUNDING_NATS = 1e-5  # per target: how far below 0 rounding may take the loss of a certain prediction


class NonFiniteLossError(HeadwayError):
    """The loss is NaN, infinite or negative because the model's weights or logits hold NaN or infinity."""


class Ranks(Protocol):
    """This process among all processes, and sums over them (training/distributed.py)."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce_sum(self, *numbers: float) -> list[float]: ...


@dataclass(frozen=True)
class SingleProcess:
    """The only rank."""

    rank: int = 0
    size: int = 1

    def all_reduce_sum(self, *numbers: float) -> list[float]:
        return list(numbers)


class EvalResult(Protocol):
    """What the trainer needs of a score."""

    @property
    def selection_loss(self) -> float: ...

    @property
    def summary(self) -> str: ...

    def to_dict(self) -> dict[str, float]: ...


@dataclass(frozen=True)
class NotScored:
    """In place of a score, where a run was interrupted before its last validation or has no validation set. It is
    false, so `if result.score:` tells."""

    selection_loss: float = math.inf
    summary: str = "not scored"

    def __bool__(self) -> bool:
        return False

    def to_dict(self) -> dict[str, float]:
        return {}


class ValidationSet(Protocol):
    """Held-out examples, ready to be scored again and again."""

    def score(self, loss_fn: LossFn, ranks: Ranks = SingleProcess()) -> EvalResult: ...  # noqa: B008 (frozen)


def sum_losses(loss_fn: LossFn, batches: Iterable[Any], ranks: Ranks) -> tuple[float, int, int | None]:
    """Loss in nats, number of targets and number of correct predictions, summed over all batches and ranks.

    Each rank scores its rows of every batch. The forward pass of a sharded model is collective, so a rank without rows
    scores one of another rank's and drops the result.
    """
    total_nats, total_correct, n_targets = 0.0, 0.0, 0
    pending: list[LossOutput] = []
    has_correct = False
    for batch in batches:
        n_targets += batch.n_targets
        indices = torch.arange(len(batch))[ranks.rank :: ranks.size]
        has_rows = len(indices) > 0
        rows: Batch = batch if ranks.size == 1 else batch.rows(indices if has_rows else torch.arange(1))
        nats, correct = loss_fn(rows)
        if has_rows:
            pending.append((nats.double(), correct))
            has_correct = correct is not None
        if len(pending) == ACCUMULATED_BATCHES:
            total_nats += _sum(nats for nats, _ in pending)
            total_correct += _sum(correct for _, correct in pending)
            pending = []
    total_nats += _sum(nats for nats, _ in pending)
    total_correct += _sum(correct for _, correct in pending)
    total_nats, total_correct, n_ranks_with_correct = ranks.all_reduce_sum(
        total_nats, total_correct, float(has_correct)
    )
    return total_nats, n_targets, int(total_correct) if n_ranks_with_correct else None


def mean_loss(nats: float, n_targets: int, *, no_targets: str) -> float:
    """Nats per target. `no_targets` is the error message if there are none."""
    if not n_targets:
        raise DataError(no_targets)
    mean = nats / n_targets
    if not mean >= -ROUNDING_NATS:  # also if it is NaN
        raise NonFiniteLossError(
            f"the loss is {mean:.4g} nats per target, which is impossible: the weights hold NaN or infinity, "
            f"or the activations overflow; load another checkpoint, or train again with a smaller train.lr"
        )
    return max(mean, 0.0)


def check_infinite_loss(loss: float, model: Any) -> None:
    """Refuse an infinite loss if it comes from weights that are not finite, not from a probability of 0."""
    if not math.isinf(loss) or not isinstance(model, nn.Module):
        return
    name = next((name for name, parameter in model.named_parameters() if not parameter.isfinite().all()), None)
    if name is not None:
        raise NonFiniteLossError(
            f"the loss is infinite, since the weights {name!r} hold NaN or infinity: load another checkpoint, or train "
            f"again with a smaller train.lr"
        )


def _sum(numbers: Iterator[Tensor | None]) -> float:
    tensors = [number for number in numbers if number is not None]
    return float(torch.stack(tensors).sum()) if tensors else 0.0


def exp_or_inf(nats: float) -> float:
    """e^nats, or infinity where it would overflow."""
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf

"""Validation sets: held-out data that a model is scored on again and again while it trains.

A validation set sums a loss function over its batches. Each rank scores its own rows, and the sums are reduced over
ranks. Every result has a `merit`, where smaller is better: training compares checkpoints by it.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from headway.data.loader import Batch

LossOutput = tuple[Tensor, Tensor | None]  # summed loss in nats, and the number of correct predictions where known
LossFn = Callable[[Any], LossOutput]  # batch → its loss


class Ranks(Protocol):
    """Which of how many processes this is, and sums over all of them (training/distributed.py)."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce_sum(self, *numbers: float) -> list[float]: ...


@dataclass(frozen=True)
class SingleProcess:
    rank: int = 0
    size: int = 1

    def all_reduce_sum(self, *numbers: float) -> list[float]:
        return list(numbers)


class EvalResult(Protocol):
    """What the loop asks of a score."""

    @property
    def selection_loss(self) -> float: ...

    @property
    def summary(self) -> str: ...

    def to_dict(self) -> dict[str, float]: ...


class ValidationSet(Protocol):
    """Held-out examples, ready to be asked about again and again."""

    def score(self, ask: LossFn, world: Ranks = SingleProcess()) -> EvalResult: ...  # noqa: B008 (frozen)


def sum_losses(ask: LossFn, batches: Iterator[Any], world: Ranks) -> tuple[float, int, int | None]:
    """Nats, targets and right answers, summed over all batches. Each rank asks about its rows of every batch; one that
    has none asks about another's and forgets the answer, since a sharded model answers only if all ranks ask."""
    total, hits, count = 0.0, 0.0, 0
    kept: list[tuple[Tensor, Tensor | None]] = []
    knows_right = False
    for batch in batches:
        count += batch.n_targets
        own = torch.arange(len(batch))[world.rank :: world.size]
        is_real = len(own) > 0
        rows: Batch = batch if world.size == 1 else batch.rows(own if is_real else torch.arange(1))
        nats, right = ask(rows)
        if is_real:
            kept.append((nats.double(), right))
            knows_right = right is not None
        if len(kept) == 64:  # now and then: reading a number waits for the device
            total, hits = total + _sum(n for n, _ in kept), hits + _sum(r for _, r in kept)
            kept = []
    total, hits = total + _sum(n for n, _ in kept), hits + _sum(r for _, r in kept)
    total, hits, knows = world.all_reduce_sum(total, hits, float(knows_right))
    return total, count, int(hits) if knows else None


def _sum(numbers: Iterator[Tensor | None]) -> float:
    found = [number for number in numbers if number is not None]
    return float(torch.stack(found).sum()) if found else 0.0


def exp_or_inf(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.inf

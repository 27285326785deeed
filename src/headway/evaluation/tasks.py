"""Scores of models on examples with answers: classification, tagging, spans, and sequence-to-sequence pairs."""

from dataclasses import dataclass
from typing import Any

from headway.data.loader import BatchLoader
from headway.evaluation.validation import LossFn, Ranks, SingleProcess, exp_or_inf, sum_losses


@dataclass(frozen=True)
class TaskScore:
    """Of a model on examples with answers."""

    nats_per_target: float
    n_targets: int
    accuracy: float | None = None  # share of the targets that got the highest score, where that is asked
    bleu: float | None = None  # of what the model writes, where that is asked (eval.metric)
    exact: float | None = None  # share of what it writes that is right to the letter, where that is asked

    @property
    def perplexity(self) -> float:
        return exp_or_inf(self.nats_per_target)

    @property
    def selection_loss(self) -> float:
        written = self.bleu if self.bleu is not None else self.exact
        return self.nats_per_target if written is None else -written

    @property
    def summary(self) -> str:
        parts = [f"{self.nats_per_target:.4f} nats per target"]
        parts += [] if self.accuracy is None else [f"{self.accuracy:.2%} right"]
        parts += [] if self.bleu is None else [f"BLEU {self.bleu:.2f}"]
        parts += [] if self.exact is None else [f"{self.exact:.2%} exact"]
        return ", ".join(parts)

    def to_dict(self) -> dict[str, float]:
        found = {"nats_per_target": self.nats_per_target, "n_targets": self.n_targets, "perplexity": self.perplexity}
        asked = {"accuracy": self.accuracy, "bleu": self.bleu, "exact": self.exact}
        return found | {name: value for name, value in asked.items() if value is not None}


class ValidationExamples:
    """Examples of any task, in the order of their batches."""

    def __init__(self, batches: BatchLoader[Any]):
        self.batches = batches

    def score(self, ask: LossFn, world: Ranks = SingleProcess()) -> TaskScore:  # noqa: B008 (frozen)
        nats, count, right = sum_losses(ask, self.batches.epoch(), world)
        return TaskScore(nats / max(count, 1), count, None if right is None else right / max(count, 1))

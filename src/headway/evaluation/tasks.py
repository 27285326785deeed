"""Scores on examples with targets: classification, tagging, spans, and sequence-to-sequence pairs."""

from dataclasses import dataclass
from typing import Any

from headway.data.loader import BatchLoader
from headway.errors import DataError
from headway.evaluation.validation import LossFn, Ranks, SingleProcess, exp_or_inf, sum_losses


@dataclass(frozen=True)
class TaskScore:
    """The score of a model on a validation set of a task."""

    nats_per_target: float
    n_targets: int
    accuracy: float | None = None  # fraction of targets predicted correctly, for tasks that define it
    bleu: float | None = None  # of generated text, with eval.metric = "bleu"
    exact_match: float | None = None  # fraction of generated texts that match exactly, with eval.metric = "exact_match"

    @property
    def perplexity(self) -> float:
        return exp_or_inf(self.nats_per_target)

    @property
    def selection_loss(self) -> float:
        """The loss, or the negated metric of generated text where there is one."""
        metric = self.bleu if self.bleu is not None else self.exact_match
        return self.nats_per_target if metric is None else -metric

    @property
    def summary(self) -> str:
        parts = [f"{self.nats_per_target:.4f} nats per target"]
        parts += [] if self.accuracy is None else [f"{self.accuracy:.2%} right"]
        parts += [] if self.bleu is None else [f"BLEU {self.bleu:.2f}"]
        parts += [] if self.exact_match is None else [f"{self.exact_match:.2%} exact"]
        return ", ".join(parts)

    def to_dict(self) -> dict[str, float]:
        loss = {"nats_per_target": self.nats_per_target, "n_targets": self.n_targets, "perplexity": self.perplexity}
        metrics = {"accuracy": self.accuracy, "bleu": self.bleu, "exact": self.exact_match}
        return loss | {name: value for name, value in metrics.items() if value is not None}


class ValidationExamples:
    """A validation set of any task, read through a data loader."""

    def __init__(self, loader: BatchLoader[Any]):
        self.loader = loader

    def score(self, loss_fn: LossFn, ranks: Ranks = SingleProcess()) -> TaskScore:  # noqa: B008 (frozen)
        nats, n_targets, n_correct = sum_losses(loss_fn, self.loader.epoch(), ranks)
        if not n_targets:
            raise DataError("the validation set has no targets to predict: hold out more data")
        return TaskScore(nats / n_targets, n_targets, None if n_correct is None else n_correct / n_targets)

"""Scores on examples with targets: classification, tagging, spans, and sequence-to-sequence pairs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway.data.loader import BatchLoader
from headway.evaluation.metrics import METRICS
from headway.evaluation.validation import LossFn, Ranks, SingleProcess, exp_or_inf, mean_loss, sum_losses

SCORE_NAMES = ("loss", "nats_per_target", "n_targets", "perplexity", "accuracy", "selection_loss", "exact")
LOG_NAMES = {"exact_match": "exact"}  # in log.jsonl, where it differs from the name of the metric


@dataclass(frozen=True, repr=False)
class TaskScore:
    """The score of a model on a validation set of a task."""

    nats_per_target: float
    n_targets: int
    accuracy: float | None = None  # fraction of targets predicted correctly, for tasks that define it
    metric: str = "loss"  # what selects the best checkpoint: the loss, or a metric of generated text
    metric_value: float | None = None  # None for the loss

    def __repr__(self) -> str:
        return f"TaskScore({self.summary})"

    @property
    def perplexity(self) -> float:
        return exp_or_inf(self.nats_per_target)

    @property
    def bleu(self) -> float | None:
        """BLEU of generated text, with eval.metric = "bleu"."""
        return self.metric_value if self.metric == "bleu" else None

    @property
    def exact_match(self) -> float | None:
        """The fraction of generated texts that match exactly, with eval.metric = "exact_match"."""
        return self.metric_value if self.metric == "exact_match" else None

    @property
    def selection_loss(self) -> float:
        """Lower is better: the loss or, if there is one, the metric of generated text, negated if higher is better."""
        if self.metric_value is None:
            return self.nats_per_target
        return -self.metric_value if METRICS[self.metric].higher_is_better else self.metric_value

    @property
    def summary(self) -> str:
        parts = [f"{self.nats_per_target:.4f} nats per target"]
        parts += [] if self.accuracy is None else [f"accuracy {self.accuracy:.2%}"]
        if self.metric_value is not None:
            summaries = {"bleu": f"BLEU {self.metric_value:.2f}", "exact_match": f"{self.metric_value:.2%} exact"}
            parts.append(summaries.get(self.metric, f"{self.metric} {self.metric_value:.4g}"))
        return ", ".join(parts)

    def to_dict(self) -> dict[str, float]:
        loss = {"nats_per_target": self.nats_per_target, "n_targets": self.n_targets, "perplexity": self.perplexity}
        metrics = {"accuracy": self.accuracy, LOG_NAMES.get(self.metric, self.metric): self.metric_value}
        return loss | {name: value for name, value in metrics.items() if value is not None}

    @classmethod
    def from_dict(cls, table: Mapping[str, float], metric: str = "loss") -> "TaskScore":
        """The score that `to_dict` wrote, with this `eval.metric`."""
        value = table.get(LOG_NAMES.get(metric, metric))
        return cls(table["nats_per_target"], int(table["n_targets"]), table.get("accuracy"), metric, value)


class ValidationExamples:
    """A validation set of any task, read through a data loader."""

    def __init__(self, loader: BatchLoader[Any]):
        self.loader = loader

    def score(self, loss_fn: LossFn, ranks: Ranks = SingleProcess()) -> TaskScore:  # noqa: B008 (frozen)
        nats, n_targets, n_correct = sum_losses(loss_fn, self.loader.epoch(), ranks)
        mean = mean_loss(
            nats,
            n_targets,
            no_targets="the data to score has no targets, so nothing is predicted: give more, or hold out more",
        )
        return TaskScore(mean, n_targets, None if n_correct is None else n_correct / n_targets)

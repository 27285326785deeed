"""Scores on examples with targets: classification, tagging, spans, masked tokens, and sequence-to-sequence pairs.

The loss is a mean over targets. Metrics compare predictions with the truth: a label, an entity, an answer, a generated
text. A `TaskReport` holds them in full, for `headway eval`; a `TaskScore` holds the numbers that training logs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from headway.data.loader import BatchLoader
from headway.evaluation.metrics import METRICS
from headway.evaluation.paired_bootstrap import ResampledScore
from headway.evaluation.validation import LossFn, Ranks, SingleProcess, exp_or_inf, mean_loss, sum_losses

LOSS_NAMES = ("nats_per_target", "n_targets", "perplexity")
SCORE_NAMES = ("loss", *LOSS_NAMES, "accuracy", "selection_loss", "exact")
LOG_NAMES = {"exact_match": "exact"}  # in log.jsonl, where it differs from the name of the metric
METRIC_NAMES = {name: metric for metric, name in LOG_NAMES.items()}
TASK_METRICS: dict[str, tuple[str, ...]] = {  # objective → the metrics of its predictions, beside the loss
    "masked": ("accuracy",),
    "classify": ("accuracy", "macro_f1", "micro_f1"),
    "tag": ("f1", "accuracy"),
    "span": ("f1", "exact_match"),
}


class TaskReport(ResampledScore, Protocol):
    """Predictions compared with the truth; two of them can be compared by `paired_bootstrap`."""

    @property
    def metrics(self) -> Mapping[str, float]:
        """The numbers that training logs, such as {"accuracy": 0.91}; names are those of `TASK_METRICS`."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        ...

    def render(self) -> str:
        """Everything, for a terminal."""
        ...


@dataclass(frozen=True, repr=False)
class TaskScore:
    """The score of a model on a validation set of a task."""

    nats_per_target: float
    n_targets: int
    accuracy: float | None = None  # fraction of targets predicted correctly, for tasks that define it
    metric: str = "loss"  # what selects the best checkpoint: the loss, or a metric
    metrics: Mapping[str, float] = field(default_factory=dict)  # of predictions, by name
    report: TaskReport | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return f"TaskScore({self.summary})"

    @property
    def perplexity(self) -> float:
        return exp_or_inf(self.nats_per_target)

    @property
    def metric_value(self) -> float | None:
        """The metric that selects the best checkpoint; None for the loss."""
        return self.metrics.get(self.metric, self.accuracy if self.metric == "accuracy" else None)

    @property
    def bleu(self) -> float | None:
        """BLEU of generated text, with eval.metric = "bleu"."""
        return self.metrics.get("bleu")

    @property
    def exact_match(self) -> float | None:
        """The fraction of generated texts, or of answers, that match exactly."""
        return self.metrics.get("exact_match")

    @property
    def selection_loss(self) -> float:
        """Lower is better: the loss or, if one was chosen, the metric, negated if higher is better."""
        if self.metric_value is None:
            return self.nats_per_target
        is_loss = self.metric in METRICS and not METRICS[self.metric].higher_is_better
        return self.metric_value if is_loss else -self.metric_value

    @property
    def summary(self) -> str:
        parts = [f"{self.nats_per_target:.4f} nats per target"]
        accuracy = self.metrics.get("accuracy", self.accuracy)  # of predictions, else of targets
        parts += [] if accuracy is None else [f"accuracy {accuracy:.2%}"]
        parts += [_describe(name, value) for name, value in self.metrics.items() if name != "accuracy"]
        return ", ".join(parts)

    def to_dict(self) -> dict[str, float]:
        loss = dict(zip(LOSS_NAMES, (self.nats_per_target, self.n_targets, self.perplexity), strict=True))
        accuracy = {} if self.accuracy is None else {"accuracy": self.accuracy}
        return loss | accuracy | {LOG_NAMES.get(name, name): value for name, value in self.metrics.items()}

    @classmethod
    def from_dict(cls, table: Mapping[str, float], metric: str = "loss") -> "TaskScore":
        """The score that `to_dict` wrote, with this `eval.metric`."""
        known = (*LOSS_NAMES, "accuracy", "selection_loss")
        metrics = {METRIC_NAMES.get(name, name): value for name, value in table.items() if name not in known}
        return cls(table["nats_per_target"], int(table["n_targets"]), table.get("accuracy"), metric, metrics)


DESCRIPTIONS = {  # how the summary writes a metric
    "bleu": "BLEU {:.2f}",
    "exact_match": "{:.2%} exact",
    "gleu": "GLEU {:.2f}",
    "rouge1": "ROUGE-1 {:.2f}",
    "rouge2": "ROUGE-2 {:.2f}",
    "rougeL": "ROUGE-L {:.2f}",
    "f1": "F1 {:.2%}",
    "macro_f1": "macro-F1 {:.2%}",
    "micro_f1": "micro-F1 {:.2%}",
}


def _describe(name: str, value: float) -> str:
    return DESCRIPTIONS[name].format(value) if name in DESCRIPTIONS else f"{name} {value:.4g}"


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

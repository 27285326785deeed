"""Scores of classifiers: accuracy, precision, recall and F1 per label, the confusion matrix, and the calibration error.

    accuracy              texts with the right label; in multi-label data, with exactly the right labels
    macro-F1              the mean of F1 over the labels that are in the data or were predicted
    micro-F1              F1 over all labels of all texts together; with one label per text it is the accuracy
    calibration error     how far probabilities are from frequencies (expected calibration error, Guo et al. 2017):
                          Σ_b n_b / n · |accuracy_b − confidence_b| over 15 bins b of equal width

The confidence is the probability of the predicted label. In multi-label data every label of every text counts on its
own: its probability against whether the text has it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.data.datasets.classification import multi_label_targets, single_label_targets, text_of
from headway.data.records import LabelledText, Record
from headway.evaluation.precision_recall import MatchCounts, macro_scores, total
from headway.models import Classifier, Model
from headway.prediction.classify import DEFAULT_THRESHOLD, label_probabilities
from headway.prediction.heads import require_head
from headway.tables import Column, render_table

N_BINS = 15  # Guo et al. 2017, §5
MAX_MATRIX_LABELS = 12  # more do not fit a terminal: the most frequent confusions are listed instead
MAX_CONFUSIONS = 10
MAX_CELL = 12  # characters of a label above a column of the matrix


def calibration_error(confidences: NDArray[Any], is_correct: NDArray[Any], n_bins: int = N_BINS) -> float:
    """The expected calibration error of N predictions with these confidences (N,), each right or wrong (N,).

    >>> round(calibration_error(np.array([0.9, 0.9, 0.6, 0.6]), np.array([True, True, True, False])), 3)
    0.1
    """
    bins = np.clip(np.ceil(confidences * n_bins) - 1, 0, n_bins - 1).astype(int)  # (0, 1/n], (1/n, 2/n], …
    gaps = np.bincount(bins, is_correct, n_bins) - np.bincount(bins, confidences, n_bins)
    return float(np.abs(gaps).sum() / max(len(confidences), 1))


@dataclass(frozen=True, repr=False)
class ClassificationReport:
    """Predicted labels compared with the truth. Build one with `classification_report`."""

    labels: Sequence[str]
    truth: NDArray[np.bool_]  # (N, C) whether a text has a label
    predicted: NDArray[np.bool_]  # (N, C) whether the model says so
    probabilities: NDArray[np.float64]  # (N, C)
    multi_label: bool = False
    n_truncated: int = 0  # texts that are longer than the context, of which the end was not read

    def __len__(self) -> int:
        return len(self.truth)

    @cached_property
    def is_correct(self) -> NDArray[np.bool_]:
        """(N,) whether all labels of a text are right."""
        return (self.truth == self.predicted).all(axis=1)

    @property
    def accuracy(self) -> float:
        return float(self.is_correct.mean())

    @cached_property
    def counts_by_label(self) -> dict[str, MatchCounts]:
        """The counts of every label, in the model's order."""
        arrays = (self.truth & self.predicted, self.predicted, self.truth)
        columns = zip(*(array.sum(axis=0).tolist() for array in arrays), strict=True)
        return {label: MatchCounts(*numbers) for label, numbers in zip(self.labels, columns, strict=True)}

    @property
    def counts(self) -> MatchCounts:
        """The counts of all labels together."""
        return total(self.counts_by_label.values())

    @property
    def macro_scores(self) -> dict[str, float]:
        """Over the labels that are in the data or were predicted: one with neither has no F1."""
        return macro_scores(c for c in self.counts_by_label.values() if c.n_true or c.n_predicted)

    @property
    def calibration_error(self) -> float:
        if self.multi_label:
            return calibration_error(self.probabilities.ravel(), self.truth.ravel())
        return calibration_error(self.probabilities.max(axis=1), self.is_correct)

    @property
    def confusion_matrix(self) -> NDArray[np.int64]:
        """(C, C) texts by their true label (rows) and the predicted one (columns). For one label per text."""
        matrix = np.zeros((len(self.labels), len(self.labels)), dtype=np.int64)
        np.add.at(matrix, (self.truth.argmax(axis=1), self.predicted.argmax(axis=1)), 1)
        return matrix

    # ── for paired bootstrap ──────────────────────────────────────────────────────────────────────────────────────

    @property
    def statistic_name(self) -> str:
        return "micro-F1" if self.multi_label else "accuracy"

    @property
    def statistics(self) -> NDArray[np.int64]:
        """Counts per text whose sums give `statistic`: labels found, predicted and true (N, 3), or right and 1."""
        if self.multi_label:
            arrays = (self.truth & self.predicted, self.predicted, self.truth)
            return np.stack([array.sum(axis=1) for array in arrays], axis=1)
        return np.stack((self.is_correct, np.ones(len(self))), axis=1).astype(np.int64)

    def statistic(self, sums: NDArray[Any]) -> Any:
        """Micro-F1 or accuracy from sums of `statistics` (…, k)."""
        if self.multi_label:
            return 2 * sums[..., 0] / np.maximum(sums[..., 1] + sums[..., 2], 1)
        return sums[..., 0] / np.maximum(sums[..., 1], 1)

    # ── as numbers and as text ────────────────────────────────────────────────────────────────────────────────────

    @property
    def metrics(self) -> Mapping[str, float]:
        micro = {"micro_f1": self.counts.f1} if self.multi_label else {}
        return {"accuracy": self.accuracy, "macro_f1": self.macro_scores["f1"], **micro}

    def to_dict(self) -> dict[str, Any]:
        by_label = {label: counts.scores | counts._asdict() for label, counts in self.counts_by_label.items()}
        macro = {f"macro_{name}": value for name, value in self.macro_scores.items()}
        table: dict[str, Any] = {"n_texts": len(self), "n_truncated": self.n_truncated, **self.metrics, **macro}
        table |= {"calibration_error": self.calibration_error, "labels": by_label}
        return table if self.multi_label else table | {"confusion_matrix": self.confusion_matrix.tolist()}

    def render(self) -> str:
        right = "with exactly the right labels" if self.multi_label else "with the right label"
        lines = [self._render_labels(), ""]
        lines.append(f"{'accuracy':<20}{self.accuracy:.2%}: {self.is_correct.sum():,} of {len(self):,} texts {right}")
        lines.append(f"{'macro-F1':<20}{self.macro_scores['f1']:.2%}")
        if self.multi_label:
            lines.append(f"{'micro-F1':<20}{self.counts.f1:.2%}")
        lines.append(f"{'calibration error':<20}{self.calibration_error:.4f} ({N_BINS} bins)")
        if self.n_truncated:
            lines.append(f"{'note':<20}{self.n_truncated:,} texts are longer than the context, and lost their end")
        return "\n".join(lines if self.multi_label else [*lines, "", self._render_confusions()])

    def _render_labels(self) -> str:
        rows = [(label, counts.scores, f"{counts.n_true:,}") for label, counts in self.counts_by_label.items()]
        if self.multi_label:
            rows.append(("micro average", self.counts.scores, f"{self.counts.n_true:,}"))
        rows.append(("macro average", self.macro_scores, ""))
        columns = [Column("label", [name for name, *_ in rows], is_text=True)]
        columns += [
            Column(title, [f"{scores[key]:.2%}" for _, scores, _ in rows])
            for title, key in (("precision", "precision"), ("recall", "recall"), ("F1", "f1"))
        ]
        return render_table([*columns, Column("texts", [number for *_, number in rows])])

    def _render_confusions(self) -> str:
        matrix = self.confusion_matrix
        if len(self.labels) <= MAX_MATRIX_LABELS:
            columns = [Column("true \\ predicted", list(self.labels), is_text=True)]
            columns += [
                Column(_shortened(label), [f"{n:,}" for n in column.tolist()])
                for label, column in zip(self.labels, matrix.T, strict=True)
            ]
            return render_table(columns)
        wrong = matrix * ~np.eye(len(self.labels), dtype=bool)
        best = [divmod(int(i), len(self.labels)) for i in np.argsort(-wrong, axis=None, kind="stable")[:MAX_CONFUSIONS]]
        cells = [(i, j) for i, j in best if wrong[i, j]]
        if not cells:
            return "no confusions"
        columns = [
            Column("true label", [self.labels[i] for i, _ in cells], is_text=True),
            Column("predicted as", [self.labels[j] for _, j in cells], is_text=True),
            Column("texts", [f"{wrong[cell]:,}" for cell in cells]),
        ]
        return "most frequent confusions\n" + render_table(columns)


def classification_report(
    model: Model,
    records: Sequence[Record],
    *,
    context: int | None = None,
    batch_size: int = 32,
    threshold: float = DEFAULT_THRESHOLD,
    check_stop: Callable[[], None] = lambda: None,
) -> ClassificationReport:
    """Classify the texts of the records, and compare. `threshold` is that of a multi-label model."""
    classifier = require_head(model, Classifier, "classify")
    texts = [record for record in records if isinstance(record, LabelledText)]
    labels, multi_label = classifier.config.labels, classifier.config.multi_label
    scores = label_probabilities(
        classifier,
        [text_of(record) for record in texts],
        context=context,
        batch_size=batch_size,
        on_progress=lambda n_done: check_stop(),
    )
    probabilities = scores.probabilities.double().numpy()
    if multi_label:
        truth, predicted = multi_label_targets(texts, labels) > 0, probabilities >= threshold
    else:
        one_hot = np.eye(len(labels), dtype=bool)
        truth, predicted = one_hot[single_label_targets(texts, labels)], one_hot[probabilities.argmax(axis=1)]
    return ClassificationReport(labels, truth, predicted, probabilities, multi_label, sum(scores.is_truncated))


def _shortened(label: str) -> str:
    return label if len(label) <= MAX_CELL else f"{label[: MAX_CELL - 1]}…"

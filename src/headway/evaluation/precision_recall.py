"""Precision, recall and F1 from counts: of labels, of entities, of anything that is predicted and may be there."""

from collections.abc import Iterable
from typing import NamedTuple


class MatchCounts(NamedTuple):
    """How many predictions are right, how many there are, and how many should be there."""

    n_correct: int
    n_predicted: int
    n_true: int

    @property
    def precision(self) -> float:
        return self.n_correct / max(self.n_predicted, 1)

    @property
    def recall(self) -> float:
        return self.n_correct / max(self.n_true, 1)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall; 0 if nothing is there and nothing was predicted."""
        return 2 * self.n_correct / max(self.n_predicted + self.n_true, 1)

    @property
    def scores(self) -> dict[str, float]:
        return {"precision": self.precision, "recall": self.recall, "f1": self.f1}


def total(counts: Iterable[MatchCounts]) -> MatchCounts:
    """The sum of counts: micro averages are computed from it."""
    counts = list(counts)
    return MatchCounts(*map(sum, zip(*counts, strict=True))) if counts else MatchCounts(0, 0, 0)


def macro_scores(counts: Iterable[MatchCounts]) -> dict[str, float]:
    """The means of precision, recall and F1 over the counts; 0 if there are none."""
    scores = [one.scores for one in counts]
    return {name: sum(s[name] for s in scores) / max(len(scores), 1) for name in ("precision", "recall", "f1")}

"""Score answers by the rules of SQuAD (Rajpurkar et al. 2016, §6.1; 2018 for questions without an answer).

Answers are compared after normalisation: lower case, without punctuation, articles and superfluous spaces.

    exact match   1 if the answer equals a gold answer
    F1            of the words that the answer and a gold answer share; the best over the gold answers

A question without a gold answer scores 1 on both if the predicted answer is empty, else 0. The rules, and the order of
their steps, are those of the official script for SQuAD 2.0, which is also right for 1.1.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.data.datasets.passage_windows import DEFAULT_OVERLAP_TOKENS
from headway.data.records import Question, Record
from headway.errors import DataError
from headway.models import Model
from headway.prediction.answer import find_answers
from headway.tables import Column, render_table

PUNCTUATION = str.maketrans("", "", string.punctuation)
SUBSET_TITLES = {"all": "all", "has_answer": "HasAns", "no_answer": "NoAns"}  # as the official script calls them
ARTICLES = re.compile(r"\b(a|an|the)\b")

BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]


# ── one answer ────────────────────────────────────────────────────────────────────────────────────────────────────


def normalize_answer(text: str) -> str:
    """What two answers are compared by.

    >>> normalize_answer("The U.S. — a  country!")
    'us — country'
    """
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact_match(answer: str, gold: str) -> float:
    return float(normalize_answer(answer) == normalize_answer(gold))


def word_f1(answer: str, gold: str) -> float:
    """Harmonic mean of precision and recall of the answer's words; 1 if neither has a word.

    >>> word_f1("Barack Obama", "President Barack Obama")
    0.8
    """
    words, gold_words = normalize_answer(answer).split(), normalize_answer(gold).split()
    if not words or not gold_words:
        return float(words == gold_words)
    n_shared = sum((Counter(words) & Counter(gold_words)).values())
    return 2 * n_shared / (len(words) + len(gold_words))


def gold_answers(question: Question) -> list[str]:
    """The gold answers that are left after normalisation; [""] if there are none, so that no answer is right."""
    return [answer.text for answer in question.answers if normalize_answer(answer.text)] or [""]


# ── many answers ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class AnswerScores:
    """Exact match and F1 of an answer to each of N questions."""

    exact_match: FloatArray  # (N,)
    f1: FloatArray  # (N,)
    has_answer: BoolArray  # (N,) whether the question has a gold answer

    def mean(self, subset: BoolArray | None = None) -> dict[str, float]:
        """Exact match and F1 over a subset of the questions, by default all."""
        kept = slice(None) if subset is None else subset
        return {"exact_match": float(self.exact_match[kept].mean()), "f1": float(self.f1[kept].mean())}


def score_answers(answers: Sequence[str], questions: Sequence[Question]) -> AnswerScores:
    """The scores of one answer per question; "" stands for no answer."""
    golds = [gold_answers(question) for question in questions]
    pairs = list(zip(answers, golds, strict=True))
    return AnswerScores(
        exact_match=np.array([max(exact_match(answer, gold) for gold in gold_list) for answer, gold_list in pairs]),
        f1=np.array([max(word_f1(answer, gold) for gold in gold_list) for answer, gold_list in pairs]),
        has_answer=np.array([bool(question.answers) for question in questions], dtype=bool),
    )


@dataclass(frozen=True)
class BestThreshold:
    """The threshold with the highest score, had one known it."""

    score: float
    threshold: float


def best_threshold(scores: FloatArray, empty_scores: FloatArray, margins: FloatArray) -> BestThreshold:
    """The threshold that maximises the mean score of the questions.

    `scores` (N,) are those of the best spans, `empty_scores` (N,) those of an empty answer, and `margins` (N,) those of
    no answer minus those of the best spans: a question is answered if its margin does not exceed the threshold. The
    official script does the same, but would also separate questions of equal margin, which no threshold can.
    """
    order = np.argsort(margins, kind="stable")
    gains = (scores - empty_scores)[order]
    totals = empty_scores.sum() + np.append(0.0, gains.cumsum())  # (N + 1,) with the first n in this order answered
    low, high = np.append(-math.inf, margins[order]), np.append(margins[order], math.inf)  # first n: low ≤ t < high
    is_possible = low < high
    is_possible[-1] = True  # a threshold of ∞ answers all questions
    best = int(np.where(is_possible, totals, -math.inf).argmax())
    return BestThreshold(float(totals[best] / len(scores)), _between(float(low[best]), float(high[best])))


def _between(low: float, high: float) -> float:
    """A threshold in the middle of low ≤ t < high, so that it may be rounded."""
    if math.isinf(low) and math.isinf(high):
        return 0.0 if low < high else low
    if math.isinf(low):
        return high - 1
    if math.isinf(high):
        return low + 1
    middle = (low + high) / 2
    return middle if middle < high else low


# ── the report ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class AnswerReport:
    """Answers to questions, compared with the gold answers. Scores are fractions of 1."""

    ids: list[str]
    answers: list[str]  # "": no answer
    scores: AnswerScores
    threshold: float | None = None  # that chose between answer and no answer; None if it is not known
    best_exact_match: BestThreshold | None = None  # for questions of which some have no answer
    best_f1: BestThreshold | None = None

    @property
    def metrics(self) -> Mapping[str, float]:
        return self.scores.mean()

    @property
    def predictions(self) -> dict[str, str]:
        """Question id → answer: the file that SQuAD's official script reads."""
        return dict(zip(self.ids, self.answers, strict=True))

    @property
    def subsets(self) -> dict[str, BoolArray]:
        """The questions with and without a gold answer, if some have none."""
        has_answer = self.scores.has_answer
        parts = {} if has_answer.all() else {"has_answer": has_answer, "no_answer": ~has_answer}
        return {name: part for name, part in parts.items() if part.any()}

    @property
    def statistics(self) -> FloatArray:
        """Per question (N, 3): 1, its exact match, its F1. Sums over any resample give its scores."""
        return np.stack((np.ones(len(self.ids)), self.scores.exact_match, self.scores.f1), axis=1)

    statistic_name = "F1"

    def statistic(self, sums: FloatArray) -> Any:
        """The F1 of resamples with these sums of `statistics` (…, 3)."""
        return sums[..., 2] / np.maximum(sums[..., 0], 1)

    def to_dict(self) -> dict[str, Any]:
        best = {"best_exact_match": self.best_exact_match, "best_f1": self.best_f1}
        return {
            "n_questions": len(self.ids),
            **self.metrics,
            **({"threshold": self.threshold} if self.best_f1 is not None else {}),
            **{name: {"n_questions": int(kept.sum()), **self.scores.mean(kept)} for name, kept in self.subsets.items()},
            **{name: {"score": b.score, "threshold": b.threshold} for name, b in best.items() if b is not None},
        }

    def render(self) -> str:
        rows = {"all": np.ones(len(self.ids), dtype=bool), **self.subsets}
        means = [self.scores.mean(kept) for kept in rows.values()]
        table = [
            Column("questions", [SUBSET_TITLES[name] for name in rows], is_text=True),
            Column("number", [f"{int(kept.sum()):,}" for kept in rows.values()]),
            Column("exact match", [f"{mean['exact_match']:.2%}" for mean in means]),
            Column("F1", [f"{mean['f1']:.2%}" for mean in means]),
        ]
        lines = [render_table(table)]
        best = {"exact match": self.best_exact_match, "F1": self.best_f1}
        lines += [
            f"best {name} {found.score:.2%} at --threshold {found.threshold:.4g}"
            for name, found in best.items()
            if found is not None
        ]
        return "\n".join(lines)


def score_predictions(predictions: Mapping[str, str], questions: Sequence[Question]) -> AnswerReport:
    """Score answers by question id, such as a file of SQuAD predictions; those of other questions are ignored."""
    missing = [question.id for question in questions if question.id not in predictions]
    if missing:
        raise DataError(
            f"{len(missing):,} of {len(questions):,} questions have no prediction, such as {missing[0]!r}: give every "
            f'question an answer, "" for none'
        )
    if not questions:
        raise DataError("there are no questions to score answers by: check the file")
    answers = [predictions[question.id] for question in questions]
    return AnswerReport([question.id for question in questions], answers, score_answers(answers, questions))


def answer_report(
    model: Model,
    records: Sequence[Record],
    *,
    context: int | None = None,
    overlap: int = DEFAULT_OVERLAP_TOKENS,
    threshold: float | None = None,
    batch_size: int = 32,
    check_stop: Callable[[], None] = lambda: None,
) -> AnswerReport:
    """Answer questions and score the answers. `context` and `overlap` are those of the windows.

    `threshold` is that of `headway.answer`. By default it is 0 if a question has no gold answer (SQuAD 2.0), and
    otherwise every question is answered (SQuAD 1.1).
    """
    questions = [record for record in records if isinstance(record, Question)]
    pairs = [(question.question, question.context) for question in questions]
    texts, margins = [""] * len(questions), np.zeros(len(questions))
    for number, candidates in find_answers(
        model, pairs, window=context, overlap=overlap, batch_size=batch_size, on_progress=lambda n_done: check_stop()
    ):
        texts[number] = candidates.spans[0].text if candidates.spans else ""
        margins[number] = candidates.no_answer_margin
    span_scores, empty_scores = score_answers(texts, questions), score_answers([""] * len(questions), questions)
    has_unanswerable = not span_scores.has_answer.all()
    if threshold is None:
        threshold = 0.0 if has_unanswerable else math.inf
    answers = [text if margin <= threshold else "" for text, margin in zip(texts, margins, strict=True)]
    best: dict[str, BestThreshold] = {}
    if has_unanswerable:
        for name in ("exact_match", "f1"):
            best[f"best_{name}"] = best_threshold(getattr(span_scores, name), getattr(empty_scores, name), margins)
    ids = [question.id for question in questions]
    return AnswerReport(ids, answers, score_answers(answers, questions), threshold, **best)

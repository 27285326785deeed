"""Extractive question answering: find the span of a passage that answers a question, or say that there is none.

    answer = headway.answer(model, "Who sat on the mat?", "The cat sat on the mat.")
    print(answer.text, answer.probability)           # answer.text == "" if the passage has no answer

A passage of any length is read in overlapping windows (data/datasets/passage_windows.py), all windows of all questions
in batches.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headway.data.datasets.passage_windows import (
    DEFAULT_OVERLAP_TOKENS,
    EncodedQuestion,
    PassageWindow,
    encode_questions,
)
from headway.errors import InputError
from headway.models.base import Model
from headway.models.heads import SpanReader
from headway.prediction.batching import DEFAULT_BATCH_SIZE, EncoderInput, run_encoder
from headway.prediction.heads import require_head
from headway.prediction.span_decoding import PassageScores

MAX_ANSWER_TOKENS = 30  # Devlin et al. 2019, released code: max_answer_length


@dataclass(frozen=True)
class PredictedAnswer:
    """A span of the passage, `passage[start:end] == text`, or no answer: text "", start and end 0."""

    text: str
    start: int
    end: int
    score: float  # start score + end score
    probability: float  # among all spans of the passage and no answer
    alternatives: tuple["PredictedAnswer", ...] = ()  # the next best, which may include no answer


@dataclass(frozen=True)
class AnswerCandidates:
    """The best spans of a passage and the score of no answer, from which a threshold chooses."""

    spans: tuple[PredictedAnswer, ...]  # best first; empty if no token of the passage can begin an answer
    no_answer: PredictedAnswer

    @property
    def no_answer_margin(self) -> float:
        """Score of no answer minus that of the best span: the higher, the likelier there is none."""
        return self.no_answer.score - self.spans[0].score if self.spans else math.inf

    def answer(self, threshold: float = 0.0, top: int = 1) -> PredictedAnswer:
        """The best span; no answer if its margin exceeds `threshold`. With `top` − 1 alternatives."""
        ranked = sorted((*self.spans, self.no_answer), key=lambda candidate: -candidate.score)
        is_empty = not self.spans or self.no_answer_margin > threshold
        best = self.no_answer if is_empty else self.spans[0]
        return replace(best, alternatives=tuple(other for other in ranked if other is not best)[: top - 1])


def answer(
    model: Model,
    question: str,
    context: str,
    *,
    top: int = 1,
    threshold: float = 0.0,
    max_answer_tokens: int = MAX_ANSWER_TOKENS,
    window: int | None = None,
    overlap: int = DEFAULT_OVERLAP_TOKENS,
    batch_size: int = DEFAULT_BATCH_SIZE,
) -> PredictedAnswer:
    """The answer to a question in a passage, `context`, with the `top` − 1 next best as its `alternatives`.

    The answer is empty if the score of no answer exceeds that of the best span by more than `threshold`: a higher one
    gives more answers, `math.inf` always one. (The τ of Devlin et al. 2019, §4.3, is −threshold.) `window` is the
    longest input in tokens, by default the model's context; neighbouring windows of a long passage share `overlap`
    tokens.
    """
    [best] = answer_all(
        model,
        [(question, context)],
        top=top,
        threshold=threshold,
        max_answer_tokens=max_answer_tokens,
        window=window,
        overlap=overlap,
        batch_size=batch_size,
    )
    return best


def answer_all(
    model: Model,
    questions: Sequence[tuple[str, str]],
    *,
    top: int = 1,
    threshold: float = 0.0,
    max_answer_tokens: int = MAX_ANSWER_TOKENS,
    window: int | None = None,
    overlap: int = DEFAULT_OVERLAP_TOKENS,
    batch_size: int = DEFAULT_BATCH_SIZE,
    on_progress: Callable[[int], None] = lambda n_done: None,
) -> list[PredictedAnswer]:
    """`answer` for many pairs of question and passage. `on_progress` is called with the number answered so far."""
    for number, (question, context) in enumerate(questions, 1):
        for name, text in (("question", question), ("passage", context)):
            if not text.strip():
                raise InputError(f"the {name} {f'of pair {number} ' * (len(questions) > 1)}is empty: give some text")
    answers: dict[int, PredictedAnswer] = {}
    for number, candidates in find_answers(
        model,
        questions,
        top=top,
        max_answer_tokens=max_answer_tokens,
        window=window,
        overlap=overlap,
        batch_size=batch_size,
    ):
        answers[number] = candidates.answer(threshold, top)
        on_progress(len(answers))
    return [answers[number] for number in range(len(questions))]


def find_answers(
    model: Model,
    questions: Sequence[tuple[str, str]],
    *,
    top: int = 1,
    max_answer_tokens: int = MAX_ANSWER_TOKENS,
    window: int | None = None,
    overlap: int = DEFAULT_OVERLAP_TOKENS,
    batch_size: int = DEFAULT_BATCH_SIZE,
    on_progress: Callable[[int], None] = lambda n_windows: None,
) -> Iterator[tuple[int, AnswerCandidates]]:
    """The number of each pair of question and passage, and its `top` best spans, in the order in which they are found.

    `on_progress` is called after each batch, with the number of windows read so far.
    """
    for name, value in (("top", top), ("max_answer_tokens", max_answer_tokens), ("batch_size", batch_size)):
        if value < 1:
            raise InputError(f"{name}={value} is not at least 1")
    if overlap < 0:
        raise InputError(f"overlap={overlap} is negative: give the tokens that neighbouring windows share, or 0")
    reader = require_head(model, SpanReader, "answer")
    tokenizer = reader.tokenizer
    encoded = encode_questions(questions, tokenizer)
    windows = [
        (number, passage_window)
        for number, question in enumerate(encoded)
        for passage_window in question.windows(tokenizer, _window_tokens(reader, window), overlap)
    ]
    n_left = np.bincount([number for number, _ in windows], minlength=len(encoded))
    scores: dict[int, PassageScores] = {}
    inputs = [EncoderInput(passage_window.ids, passage_window.segments) for _, passage_window in windows]

    def forward(ids: Tensor, mask: Tensor | None, segments: Tensor | None) -> Tensor:
        return reader(ids, mask, segments).float().cpu()  # one transfer per batch, not per row

    for i, logits in run_encoder(reader, inputs, forward, batch_size=batch_size, on_progress=on_progress):
        number, passage_window = windows[i]
        question, passage = encoded[number], questions[number][1]
        if number not in scores:
            scores[number] = PassageScores(_has_visible_text(question, passage), max_answer_tokens)
        _add_window(scores[number], passage_window, logits)
        n_left[number] -= 1
        if not n_left[number]:
            yield number, _candidates(scores.pop(number), question, passage, top)


def _window_tokens(reader: SpanReader, window: int | None) -> int:
    limit, n_special = reader.config.context, len(reader.tokenizer.build_inputs([], [])[0])
    if window is None:
        return limit
    if window > limit:
        raise InputError(f"window={window} exceeds the context of this model: use at most {limit}")
    if window < n_special + 2:
        raise InputError(
            f"window={window} has no space for a question and a passage next to {n_special} special tokens: use at "
            f"least {n_special + 2}"
        )
    return window


def _has_visible_text(question: EncodedQuestion, passage: str) -> NDArray[np.bool_]:
    """Of each token of the passage, whether it covers a character that is not a space."""
    return np.array([bool(passage[start:end].strip()) for start, end in question.offsets.tolist()], dtype=bool)


def _add_window(scores: PassageScores, window: PassageWindow, logits: Tensor) -> None:
    """logits (2, T) of a window: start and end scores, with those of [CLS] in the first column."""
    starts, ends = logits.numpy()
    scores.add_window(window.start, starts[window.columns], ends[window.columns], float(starts[0] + ends[0]))


def _candidates(scores: PassageScores, question: EncodedQuestion, passage: str, top: int) -> AnswerCandidates:
    log_sum = scores.log_sum()

    def candidate(start: int, end: int, score: float) -> PredictedAnswer:
        return PredictedAnswer(passage[start:end], start, end, score, math.exp(score - log_sum))

    spans: dict[tuple[int, int], PredictedAnswer] = {}  # by characters, which two tokens may share
    for span in scores.ranked():
        start, end = int(question.offsets[span.first, 0]), int(question.offsets[span.last, 1])
        start += len(passage[start:end]) - len(passage[start:end].lstrip())  # a token may begin with a space
        end = start + len(passage[start:end].rstrip())
        spans.setdefault((start, end), candidate(start, end, span.score))
        if len(spans) == top:
            break
    return AnswerCandidates(tuple(spans.values()), candidate(0, 0, scores.no_answer))

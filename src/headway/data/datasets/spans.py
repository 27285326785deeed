"""Extractive question answering: the answer is a span of the context (Devlin et al. 2019, §4.2-4.3)."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headway.data.datasets.encoder_inputs import PaddedTexts
from headway.data.datasets.passage_windows import (
    DEFAULT_OVERLAP_TOKENS,
    EncodedQuestion,
    PassageWindow,
    encode_questions,
)
from headway.data.loader import IGNORE_INDEX, Batch, RngKey, count_targets
from headway.data.padding import RaggedArray, pad_mask, pad_rows, pad_rows_and_tokens
from headway.data.records import Question
from headway.data.sampler import Indices
from headway.errors import DataError
from headway.tokenizers import Tokenizer


@dataclass(frozen=True)
class SpanBatch(Batch):
    ids: Tensor  # (B, T)
    mask: Tensor  # (B, T)
    segments: Tensor  # (B, T) 0 for the question, 1 for the context
    starts: Tensor  # (B,) first token of the answer; 0, the first token of the row, if the row does not hold it
    ends: Tensor  # (B,) last token of the answer

    @property
    def n_targets(self) -> int:
        return 2 * count_targets(self.starts)

    def bucketed(self, max_len: int) -> "SpanBatch":
        return SpanBatch(
            pad_rows_and_tokens(self.ids, 0, max_len),
            pad_mask(self.mask, max_len),
            pad_rows_and_tokens(self.segments, 0, max_len),
            pad_rows(self.starts, IGNORE_INDEX),
            pad_rows(self.ends, IGNORE_INDEX),
        )


class SpanDataset(PaddedTexts):
    """Questions with their contexts, [CLS] question [SEP] context [SEP], and the token span of the answer.

    A context that is too long becomes several rows, windows that overlap by `overlap` tokens (passage_windows.py); a
    row without the complete answer counts as unanswerable. `row_origins` maps rows back to their question and columns
    back to tokens of its context.
    """

    def __init__(
        self,
        records: Iterable[Question],
        tokenizer: Tokenizer,
        context: int,
        *,
        overlap: int = DEFAULT_OVERLAP_TOKENS,
    ):
        self.questions = list(records)
        if not self.questions:
            raise DataError("there are no questions to learn from: check data.path and data.format")
        self.encoded = encode_questions(((q.question, q.context) for q in self.questions), tokenizer)
        # Of each row: question number, the columns that hold the context, the context token in the first of them.
        self.row_origins: list[tuple[int, slice, int]] = []
        rows, segments, spans = [], [], []
        for number, (record, encoded) in enumerate(zip(self.questions, self.encoded, strict=True)):
            answer = _answer_tokens(record, encoded)
            for window in encoded.windows(tokenizer, context, overlap):
                rows.append(window.ids)
                segments.append(window.segments)
                spans.append(_columns_of(answer, window))
                self.row_origins.append((number, window.columns, window.start))
        super().__init__(rows, tokenizer)
        self.segments = RaggedArray(segments)
        self.spans = np.array(spans, dtype=np.int64)  # (N, 2)

    def collate(self, indices: Indices, rng: RngKey | None = None) -> SpanBatch:
        ids, mask = self.padded(indices)
        segments, _ = self.segments.padded(indices, 0)
        spans = torch.from_numpy(self.spans[indices])
        return SpanBatch(ids, mask, segments, spans[:, 0], spans[:, 1])

    def text(self, row: int, start: int, end: int) -> str:
        """The context's text from column `start` to column `end` of a row, inclusive; "" if that is no answer."""
        number, columns, first_token = self.row_origins[row]
        if not columns.start <= start <= end < columns.stop:
            return ""
        offsets = self.encoded[number].offsets[first_token:]
        char_start, char_end = offsets[start - columns.start, 0], offsets[end - columns.start, 1]
        return self.questions[number].context[char_start:char_end].strip()


def _answer_tokens(record: Question, encoded: EncodedQuestion) -> tuple[int, int] | None:
    """The first and last context token of the first answer, without the spaces around it, which some tokenizers give
    to no token; None if there is no answer."""
    if not record.answers:
        return None
    answer = record.answers[0]
    start = answer.start + len(answer.text) - len(answer.text.lstrip())
    return encoded.tokens_of(start, start + len(answer.text.strip()))


def _columns_of(answer: tuple[int, int] | None, window: PassageWindow) -> tuple[int, int]:
    """The columns of the answer's first and last token; (0, 0) if the window does not hold all of it."""
    if answer is None or not window.start <= answer[0] <= answer[1] < window.end:
        return 0, 0
    shift = window.first_column - window.start
    return answer[0] + shift, answer[1] + shift

"""A question and its passage as an encoder reads them: [CLS] question [SEP] passage [SEP], in windows if it is long.

A passage that does not fit becomes several windows, and neighbouring windows share tokens (Devlin et al. 2019, released
code: `doc_stride`). With an overlap of n tokens, every answer of up to n + 1 tokens lies whole in some window.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.data.padding import text_capacity
from headway.tokenizers import Tokenizer

DEFAULT_OVERLAP_TOKENS = 128
CACHED_PASSAGES = 16  # questions about one passage follow each other


class PassageWindow(NamedTuple):
    """The question and the tokens `start` to `end` of the passage, `end` exclusive."""

    ids: list[int]
    segments: list[int]  # 0 for the question, 1 for the passage
    first_column: int  # the column of `ids` with the first token of the passage
    start: int
    end: int

    @property
    def columns(self) -> slice:
        """The columns of `ids` that hold the passage."""
        return slice(self.first_column, self.first_column + self.end - self.start)


@dataclass(frozen=True)
class EncodedQuestion:
    """The tokens of a question and of its passage."""

    question_ids: list[int]
    passage_ids: list[int]
    offsets: NDArray[np.int64]  # (S, 2) the characters of the passage that each of its tokens covers, end exclusive

    def windows(self, tokenizer: Tokenizer, context: int, overlap: int) -> Iterator[PassageWindow]:
        """Windows of at most `context` tokens, special tokens included. Neighbours share `overlap` tokens of the
        passage, or half of those in a window if that is less. A question takes at most half of the space."""
        capacity, _ = text_capacity(tokenizer, context, 2)
        question = self.question_ids[: capacity // 2]
        first_column = len(tokenizer.build_inputs(question)[0])
        width = capacity - len(question)  # passage tokens per window
        stride = width - min(overlap, width // 2)
        n_tokens = len(self.passage_ids)
        for start in range(0, max(1, n_tokens - (width - stride)), stride):
            end = min(start + width, n_tokens)
            ids, segments = tokenizer.build_inputs(question, self.passage_ids[start:end])
            yield PassageWindow(ids, segments, first_column, start, end)

    def tokens_of(self, start: int, end: int) -> tuple[int, int] | None:
        """The first and the last token of the passage with a character from `start` to `end`; None if no token has."""
        if start >= end:
            return None
        tokens = np.flatnonzero((self.offsets[:, 0] < end) & (self.offsets[:, 1] > start))
        return (int(tokens[0]), int(tokens[-1])) if len(tokens) else None


def encode_questions(pairs: Iterable[tuple[str, str]], tokenizer: Tokenizer) -> list[EncodedQuestion]:
    """Questions and their passages as tokens. A passage that several questions share is encoded once."""
    pairs = list(pairs)

    @lru_cache(maxsize=CACHED_PASSAGES)
    def encode_passage(text: str) -> tuple[list[int], NDArray[np.int64]]:
        encoding = tokenizer.encode_with_offsets(text)
        return encoding.ids, np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)

    questions = tokenizer.encode_batch([question for question, _ in pairs])
    return [EncodedQuestion(ids, *encode_passage(text)) for ids, (_, text) in zip(questions, pairs, strict=True)]

"""Datasets for an encoder with a head: text classification, tagging, and extractive question answering."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.data.loader import IGNORE_INDEX, Batch, RngKey, count_targets
from headway.data.padding import RaggedArray, text_capacity
from headway.data.records import LabelledText, Question, TaggedSentence
from headway.data.sampler import Indices
from headway.errors import ConfigError, DataError, count, suggest
from headway.tokenizers import Tokenizer

QUOTED_CHARS = 40  # of an example, in errors


@dataclass(frozen=True)
class LabelBatch(Batch):
    ids: Tensor  # (B, T)
    mask: Tensor  # (B, T)
    labels: Tensor  # (B,)

    @property
    def n_targets(self) -> int:
        return len(self)


@dataclass(frozen=True)
class TagBatch(Batch):
    ids: Tensor  # (B, T)
    mask: Tensor  # (B, T)
    tags: Tensor  # (B, T) at the first subword of each word, IGNORE_INDEX elsewhere

    @property
    def n_targets(self) -> int:
        return count_targets(self.tags)


@dataclass(frozen=True)
class SpanBatch(Batch):
    ids: Tensor  # (B, T)
    mask: Tensor  # (B, T)
    segments: Tensor  # (B, T) 0 for the question, 1 for the context
    starts: Tensor  # (B,) first token of the answer; 0, the first token of the row, if the row does not hold it
    ends: Tensor  # (B,) last token of the answer

    @property
    def n_targets(self) -> int:
        return 2 * len(self)


class PaddedTexts:
    """Base of the datasets below: texts as framed rows of ids."""

    def __init__(self, rows: Iterable[Sequence[int]], tokenizer: Tokenizer):
        self.ids, self.tokenizer = RaggedArray(rows), tokenizer
        if not self.ids.lengths.all():
            raise DataError(
                f"example {int(self.ids.lengths.argmin()) + 1} has no tokens: its text is empty, or the tokenizer "
                f"knows none of it; leave it out, or use a tokenizer that adds special tokens, such as wordpiece"
            )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return self.ids.lengths

    def padded(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Ids and mask, (B, T) each."""
        return self.ids.padded(indices, self.tokenizer.pad_id)


def label_names(observed: Iterable[str], names: Sequence[str] | None) -> list[str]:
    """`names` in their order, or the observed names sorted, with integers in numerical order."""

    def sort_key(name: str) -> tuple[bool, int, str]:
        return not name.isdecimal(), len(name) if name.isdecimal() else 0, name

    ordered = sorted(set(observed), key=sort_key) if names is None else list(names)
    if len(set(ordered)) != len(ordered):
        raise ConfigError(f"a label name occurs twice, list each once: {ordered}")
    return ordered


class ClassificationDataset(PaddedTexts):
    """Texts with one label each. `labels` fixes the order of the labels (default: sorted). Long texts are truncated."""

    def __init__(
        self, records: Iterable[LabelledText], tokenizer: Tokenizer, context: int, labels: Sequence[str] | None = None
    ):
        records = list(records)
        if not records:
            raise DataError("there are no labelled texts: check data.path, data.text and data.label")
        capacity, _ = text_capacity(tokenizer, context)
        encoded = tokenizer.encode_batch([record.text for record in records])
        super().__init__((tokenizer.build_inputs(ids[:capacity])[0] for ids in encoded), tokenizer)
        self.labels = label_names((record.label for record in records), labels)
        self.label_ids = np.array(
            [_label_id(record.label, self.labels, i, record.text) for i, record in enumerate(records)], dtype=np.int64
        )

    def collate(self, indices: Indices, rng: RngKey | None = None) -> LabelBatch:
        ids, mask = self.padded(indices)
        return LabelBatch(ids, mask, torch.from_numpy(self.label_ids[indices]))


def _label_id(name: str, names: list[str], index: int, text: str) -> int:
    """The id of a label. The error quotes the example, by its number and its first words."""
    try:
        return names.index(name)
    except ValueError:
        start = text if len(text) <= QUOTED_CHARS else f"{text[:QUOTED_CHARS]}…"
        raise DataError(
            f"example {index + 1}, {start!r}: label {name!r} is not one of {', '.join(names[:20])}."
            + suggest(name, names)
        ) from None


class TaggingDataset(PaddedTexts):
    """Sentences with a tag at the first subword of every word (Devlin et al. 2019, §5.3). Long ones are truncated."""

    def __init__(
        self, records: Iterable[TaggedSentence], tokenizer: Tokenizer, context: int, tags: Sequence[str] | None = None
    ):
        records = list(records)
        if not records:
            raise DataError("there are no tagged sentences: check data.path and data.format")
        capacity, n_leading = text_capacity(tokenizer, context)
        self.tags = label_names((tag for record in records for tag in record.tags), tags)
        rows, targets = [], []
        for i, record in enumerate(records):
            text = " ".join(record.words)
            encoded = tokenizer.encode_with_offsets(text)
            word_of_char = [i for i, word in enumerate(record.words) for _ in f"{word} "]
            row_targets = [IGNORE_INDEX] * n_leading
            last_tagged = -1  # index of the last word with a target
            for start, end in encoded.offsets[:capacity]:
                # A subword may begin with the space before its word; it belongs to the word it ends in.
                word = word_of_char[end - 1] if end > start else last_tagged
                is_first = word > last_tagged and bool(text[start:end].strip())
                row_targets.append(_label_id(record.tags[word], self.tags, i, text) if is_first else IGNORE_INDEX)
                last_tagged = word if is_first else last_tagged
            rows.append(tokenizer.build_inputs(encoded.ids[:capacity])[0])
            targets.append(row_targets + [IGNORE_INDEX] * (len(rows[-1]) - len(row_targets)))
        super().__init__(rows, tokenizer)
        self.targets = RaggedArray(targets)
        if (self.targets.values == IGNORE_INDEX).all():
            raise DataError(
                f"no word of {count(len(records), 'sentence')} has a token, so there is no tag to predict: give other "
                f"text, or a tokenizer trained on text like this"
            )

    def collate(self, indices: Indices, rng: RngKey | None = None) -> TagBatch:
        ids, mask = self.padded(indices)
        tags, _ = self.targets.padded(indices, IGNORE_INDEX)
        return TagBatch(ids, mask, tags)


class SpanDataset(PaddedTexts):
    """Questions with their contexts, [CLS] question [SEP] context [SEP], and the token span of the answer.

    A context that is too long becomes several rows that overlap by `overlap` tokens, or by half a row if that is less;
    a row without the complete answer counts as unanswerable (Devlin et al. 2019, §4.2-4.3). `row_origins` maps rows
    back to their question and tokens back to characters of the context.
    """

    def __init__(self, records: Iterable[Question], tokenizer: Tokenizer, context: int, *, overlap: int = 128):
        self.questions = list(records)
        if not self.questions:
            raise DataError("there are no questions to learn from")
        rows, segments, spans = [], [], []
        # Of each row: question index, column of the first context token, character offsets of the context tokens.
        self.row_origins: list[tuple[int, int, list[tuple[int, int]]]] = []
        capacity, _ = text_capacity(tokenizer, context, 2)
        for number, record in enumerate(self.questions):
            question = tokenizer.encode(record.question)[: capacity // 2]
            encoded = tokenizer.encode_with_offsets(record.context)
            width = capacity - len(question)  # context tokens per row
            stride = max(1, width - min(overlap, width // 2))
            first_column = len(tokenizer.build_inputs(question)[0])
            for start in range(0, max(1, len(encoded.ids) - (width - stride)), stride):
                offsets = encoded.offsets[start : start + width]
                ids, segment = tokenizer.build_inputs(question, encoded.ids[start : start + width])
                rows.append(ids)
                segments.append(segment)
                spans.append(_answer_span(record, offsets, first_column))
                self.row_origins.append((number, first_column, offsets))
        super().__init__(rows, tokenizer)
        self.segments = RaggedArray(segments)
        self.spans = np.array(spans, dtype=np.int64)  # (N, 2)

    def collate(self, indices: Indices, rng: RngKey | None = None) -> SpanBatch:
        ids, mask = self.padded(indices)
        segments, _ = self.segments.padded(indices, 0)
        spans = torch.from_numpy(self.spans[indices])
        return SpanBatch(ids, mask, segments, spans[:, 0], spans[:, 1])

    def text(self, row: int, start: int, end: int) -> str:
        """The context's text from token `start` to token `end` of a row, inclusive; "" if that is no answer."""
        question, first_column, offsets = self.row_origins[row]
        if not first_column <= start <= end < first_column + len(offsets):
            return ""
        char_start, char_end = offsets[start - first_column][0], offsets[end - first_column][1]
        return self.questions[question].context[char_start:char_end].strip()


def _answer_span(record: Question, offsets: list[tuple[int, int]], first_column: int) -> tuple[int, int]:
    """Columns of the first and last token of the first answer; (0, 0) if the row does not hold all of it."""
    if not record.answers:
        return 0, 0
    answer = record.answers[0]
    # Without surrounding spaces, which some tokenizers give to no token.
    char_start = answer.start + len(answer.text) - len(answer.text.lstrip())
    char_end = char_start + len(answer.text.strip())
    overlapping = [i for i, (start, end) in enumerate(offsets) if start < char_end and end > char_start]
    if not overlapping or offsets[overlapping[0]][0] > char_start or offsets[overlapping[-1]][1] < char_end:
        return 0, 0
    return first_column + overlapping[0], first_column + overlapping[-1]

"""Examples for an encoder with a head: a label for a text, a tag for every word, a stretch of text for a question."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.data.loader import IGNORE, Batch, RngKey, count_targets
from headway.data.padding import RaggedArray, room_for
from headway.data.records import Labelled, Question, Tagged
from headway.data.sampler import Indices
from headway.errors import ConfigError, DataError, suggest
from headway.tokenizers import Tokenizer


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
    tags: Tensor  # (B, T) at the first piece of each word, IGNORE elsewhere

    @property
    def n_targets(self) -> int:
        return count_targets(self.tags)


@dataclass(frozen=True)
class SpanBatch(Batch):
    ids: Tensor  # (B, T)
    mask: Tensor  # (B, T)
    segments: Tensor  # (B, T) 0 the question, 1 the context
    starts: Tensor  # (B,) first token of the answer; 0, the first of the row, where the context does not say
    ends: Tensor  # (B,) its last token

    @property
    def n_targets(self) -> int:
        return 2 * len(self)


class PaddedTexts:
    """What the three collections below share: texts as framed rows of ids."""

    def __init__(self, rows: Iterable[Sequence[int]], tokenizer: Tokenizer):
        self.ids, self.tokenizer = RaggedArray(rows), tokenizer

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return self.ids.lengths

    def padded(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Ids and mask, (B, T) each."""
        return self.ids.padded(indices, self.tokenizer.pad_id)


def names_of(found: Iterable[str], given: Sequence[str] | None) -> list[str]:
    """Names in their order: those given, or those found, sorted, numbers by size."""

    def place(name: str) -> tuple[bool, int, str]:
        return not name.isdecimal(), len(name) if name.isdecimal() else 0, name

    names = sorted(set(found), key=place) if given is None else list(given)
    if len(set(names)) != len(names):
        raise ConfigError(f"a name is given twice: {names}")
    return names


class ClassificationDataset(PaddedTexts):
    """Texts with one label each; `labels` fixes their order, else they are sorted. Long texts are cut at their end."""

    def __init__(
        self, records: Iterable[Labelled], tokenizer: Tokenizer, context: int, labels: Sequence[str] | None = None
    ):
        records = list(records)
        if not records:
            raise DataError("there are no labelled texts to learn from")
        room, _ = room_for(tokenizer, context)
        encoded = tokenizer.encode_batch([record.text for record in records])
        super().__init__((tokenizer.frame(ids[:room])[0] for ids in encoded), tokenizer)
        self.labels = names_of((record.label for record in records), labels)
        self.numbers = np.array([_number(record.label, self.labels) for record in records], dtype=np.int64)

    def collate(self, indices: Indices, draw: RngKey | None = None) -> LabelBatch:
        ids, mask = self.padded(indices)
        return LabelBatch(ids, mask, torch.from_numpy(self.numbers[indices]))


def _number(name: str, names: list[str]) -> int:
    try:
        return names.index(name)
    except ValueError:
        raise DataError(f"{name!r} is not one of {', '.join(names[:20])}." + suggest(name, names)) from None


class TaggingDataset(PaddedTexts):
    """Sentences with a tag for every word, at its first piece (Devlin et al. 2019, §5.3); long ones are cut."""

    def __init__(
        self, records: Iterable[Tagged], tokenizer: Tokenizer, context: int, tags: Sequence[str] | None = None
    ):
        records = list(records)
        if not records:
            raise DataError("there are no tagged sentences to learn from")
        room, lead = room_for(tokenizer, context)
        self.tags = names_of((tag for record in records for tag in record.tags), tags)
        rows, targets = [], []
        for record in records:
            text = " ".join(record.words)
            sentence = tokenizer.encode_with_offsets(text)
            word_at = [number for number, word in enumerate(record.words) for _ in f"{word} "]  # of each character
            wanted = [IGNORE] * lead
            done = -1  # the last word that has its tag
            for start, end in sentence.offsets[:room]:
                # A piece may begin with the space before its word, and belongs to the word it ends in.
                word = word_at[end - 1] if end > start else done
                is_new = word > done and bool(text[start:end].strip())
                wanted.append(_number(record.tags[word], self.tags) if is_new else IGNORE)
                done = word if is_new else done
            rows.append(tokenizer.frame(sentence.ids[:room])[0])
            targets.append(wanted + [IGNORE] * (len(rows[-1]) - len(wanted)))
        super().__init__(rows, tokenizer)
        self.targets = RaggedArray(targets)

    def collate(self, indices: Indices, draw: RngKey | None = None) -> TagBatch:
        ids, mask = self.padded(indices)
        tags, _ = self.targets.padded(indices, IGNORE)
        return TagBatch(ids, mask, tags)


class SpanDataset(PaddedTexts):
    """Questions with their contexts: [CLS] question [SEP] context [SEP], and where the answer is.

    A context that is too long becomes several rows that overlap by `overlap` tokens, or by half where that is less; in
    those that do not hold the whole answer the context does not say (Devlin et al. 2019, §4.2-4.3). `places` says, for
    reading answers off, which question a row belongs to and which characters of the context each token stands for.
    """

    def __init__(self, records: Iterable[Question], tokenizer: Tokenizer, context: int, *, overlap: int = 128):
        self.questions = list(records)
        if not self.questions:
            raise DataError("there are no questions to learn from")
        rows, segments, spans = [], [], []
        self.places: list[tuple[int, int, list[tuple[int, int]]]] = []  # question, first context token, offsets
        most, _ = room_for(tokenizer, context, 2)
        for number, record in enumerate(self.questions):
            question = tokenizer.encode(record.question)[: most // 2]
            text = tokenizer.encode_with_offsets(record.context)
            room = most - len(question)
            step = max(1, room - min(overlap, room // 2))
            first = len(tokenizer.frame(question)[0])
            for begin in range(0, max(1, len(text.ids) - (room - step)), step):
                offsets = text.offsets[begin : begin + room]
                ids, segment = tokenizer.frame(question, text.ids[begin : begin + room])
                rows.append(ids)
                segments.append(segment)
                spans.append(_span(record, offsets, first))
                self.places.append((number, first, offsets))
        super().__init__(rows, tokenizer)
        self.segments = RaggedArray(segments)
        self.spans = np.array(spans, dtype=np.int64)  # (N, 2)

    def collate(self, indices: Indices, draw: RngKey | None = None) -> SpanBatch:
        ids, mask = self.padded(indices)
        segments, _ = self.segments.padded(indices, 0)
        spans = torch.from_numpy(self.spans[indices])
        return SpanBatch(ids, mask, segments, spans[:, 0], spans[:, 1])

    def text(self, row: int, start: int, end: int) -> str:
        """What tokens start … end of a row say, in the characters of the context; "" for no answer."""
        question, first, offsets = self.places[row]
        if not first <= start <= end < first + len(offsets):
            return ""
        return self.questions[question].context[offsets[start - first][0] : offsets[end - first][1]].strip()


def _span(record: Question, offsets: list[tuple[int, int]], first: int) -> tuple[int, int]:
    """First and last token of the first answer, counted in the row; (0, 0) where the row does not hold it."""
    if not record.answers:
        return 0, 0
    answer = record.answers[0]
    begin = answer.start + len(answer.text) - len(answer.text.lstrip())  # spaces at its ends are in no token of some
    end = begin + len(answer.text.strip())
    inside = [i for i, (start, stop) in enumerate(offsets) if start < end and stop > begin]
    if not inside or offsets[inside[0]][0] > begin or offsets[inside[-1]][1] < end:
        return 0, 0
    return first + inside[0], first + inside[-1]

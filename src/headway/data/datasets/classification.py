"""Text classification: every text, or pair of texts, has a label, or any number of labels.

one label       labels (B,)       the id of the label
multi-label     labels (B, C)     1 for each label that the text has
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.data.datasets.encoder_inputs import PaddedTexts, label_id, label_names
from headway.data.loader import IGNORE_INDEX, Batch, RngKey, count_targets
from headway.data.padding import RaggedArray, pad_mask, pad_rows, pad_rows_and_tokens, text_capacity
from headway.data.records import LabelledText
from headway.data.sampler import Indices
from headway.errors import DataError
from headway.tokenizers import Tokenizer

TextOrPair = str | tuple[str, str]


class EncodedTexts(NamedTuple):
    """Texts, or pairs of texts, as an encoder reads them: with their special tokens."""

    ids: list[list[int]]
    segments: list[list[int]]  # 0 or 1 per token: of the first text, or of the second
    is_truncated: list[bool]  # whether the text was too long


def encode_texts(tokenizer: Tokenizer, texts: Sequence[TextOrPair], context: int) -> EncodedTexts:
    """[CLS] text [SEP], or [CLS] text [SEP] pair [SEP], in at most `context` tokens. Long texts lose their end."""
    firsts = tokenizer.encode_batch([text if isinstance(text, str) else text[0] for text in texts])
    seconds = iter(tokenizer.encode_batch([text[1] for text in texts if not isinstance(text, str)]))
    encoded = EncodedTexts([], [], [])
    for text, first in zip(texts, firsts, strict=True):
        second = None if isinstance(text, str) else next(seconds)
        capacity, _ = text_capacity(tokenizer, context, 1 if second is None else 2)
        n_first, n_second = truncated_lengths(len(first), len(second or []), capacity)
        ids, segments = tokenizer.build_inputs(first[:n_first], None if second is None else second[:n_second])
        encoded.ids.append(ids)
        encoded.segments.append(segments)
        encoded.is_truncated.append(len(first) + len(second or []) > capacity)
    return encoded


def truncated_lengths(n_first: int, n_second: int, capacity: int) -> tuple[int, int]:
    """The tokens to keep of two texts that share a capacity: the longer one loses tokens until both fit.

    >>> truncated_lengths(3, 10, capacity=8), truncated_lengths(10, 10, capacity=7)
    ((3, 5), (4, 3))
    """
    half = (capacity + 1) // 2
    n_first = min(n_first, max(half, capacity - n_second))
    return n_first, min(n_second, capacity - n_first)


@dataclass(frozen=True)
class LabelBatch(Batch):
    ids: Tensor  # (B, T)
    mask: Tensor  # (B, T)
    labels: Tensor  # (B,), or (B, C) of 0 and 1 for multi-label data
    segments: Tensor | None = None  # (B, T), for pairs of texts

    @property
    def n_targets(self) -> int:
        return count_targets(self.labels if self.labels.dim() == 1 else self.labels[:, 0])

    def bucketed(self, max_len: int) -> "LabelBatch":
        return LabelBatch(
            pad_rows_and_tokens(self.ids, 0, max_len),
            pad_mask(self.mask, max_len),
            pad_rows(self.labels, IGNORE_INDEX),
            None if self.segments is None else pad_rows_and_tokens(self.segments, 0, max_len),
        )


class ClassificationDataset(PaddedTexts):
    """Texts, or pairs of texts, with their labels. `labels` fixes the order of the labels (default: sorted).

    `has_segments` says whether the encoder tells the two texts of a pair apart by segment embeddings. Long texts are
    truncated; `n_truncated` counts them.
    """

    def __init__(
        self,
        records: Iterable[LabelledText],
        tokenizer: Tokenizer,
        context: int,
        labels: Sequence[str] | None = None,
        *,
        multi_label: bool = False,
        has_segments: bool = False,
    ):
        records = list(records)
        if not records:
            raise DataError("there are no labelled texts: check data.path, data.text and data.label")
        encoded = encode_texts(tokenizer, [text_of(record) for record in records], context)
        super().__init__(encoded.ids, tokenizer)
        is_paired = any(record.text_pair is not None for record in records)
        self.segments = RaggedArray(encoded.segments) if is_paired and has_segments else None
        self.n_truncated = sum(encoded.is_truncated)
        self.labels = label_names((label for record in records for label in record.labels), labels)
        self.targets = (multi_label_targets if multi_label else single_label_targets)(records, self.labels)

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """How many texts have each label (C,)."""
        if self.targets.ndim == 2:
            return self.targets.sum(axis=0).astype(np.int64)
        return np.bincount(self.targets, minlength=len(self.labels))

    def collate(self, indices: Indices, rng: RngKey | None = None) -> LabelBatch:
        ids, mask = self.padded(indices)
        segments = None if self.segments is None else self.segments.padded(indices, 0)[0]
        return LabelBatch(ids, mask, torch.from_numpy(self.targets[indices]), segments)


def text_of(record: LabelledText) -> TextOrPair:
    return record.text if record.text_pair is None else (record.text, record.text_pair)


def single_label_targets(records: Sequence[LabelledText], labels: list[str]) -> NDArray[np.int64]:
    """The id of each text's label (N,)."""
    for i, record in enumerate(records):
        if len(record.labels) != 1:
            raise DataError(
                f"example {i + 1} has {len(record.labels)} labels, but this model has one label per text: train one "
                f"for several (data.label_separator), or give each text one label"
            )
    ids = [label_id(record.labels[0], labels, i, record.text) for i, record in enumerate(records)]
    return np.array(ids, dtype=np.int64)


def multi_label_targets(records: Sequence[LabelledText], labels: list[str]) -> NDArray[np.float32]:
    """1 for each label that a text has, else 0 (N, C)."""
    targets = np.zeros((len(records), len(labels)), dtype=np.float32)
    for i, record in enumerate(records):
        for label in record.labels:
            targets[i, label_id(label, labels, i, record.text)] = 1
    return targets

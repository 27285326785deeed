"""Tagging: every word has a tag, predicted at its first subword (Devlin et al. 2019, §5.3)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headway.data.datasets.encoder_inputs import PaddedTexts, label_id, label_names
from headway.data.loader import IGNORE_INDEX, Batch, RngKey, count_targets
from headway.data.padding import RaggedArray, pad_mask, pad_rows_and_tokens, text_capacity
from headway.data.records import TaggedSentence
from headway.data.sampler import Indices
from headway.data.words import NO_TOKEN, encode_words
from headway.errors import DataError, count
from headway.tokenizers import Tokenizer


@dataclass(frozen=True)
class TagBatch(Batch):
    ids: Tensor  # (B, T)
    mask: Tensor  # (B, T)
    tags: Tensor  # (B, T) at the first subword of each word, IGNORE_INDEX elsewhere

    @property
    def n_targets(self) -> int:
        return count_targets(self.tags)

    def bucketed(self, max_len: int) -> "TagBatch":
        return TagBatch(
            pad_rows_and_tokens(self.ids, 0, max_len),
            pad_mask(self.mask, max_len),
            pad_rows_and_tokens(self.tags, IGNORE_INDEX, max_len),
        )


class TaggingDataset(PaddedTexts):
    """Sentences with a tag at the first subword of every word. `tags` fixes the order of the tags (default: sorted).

    Long sentences are truncated; `n_truncated` counts those that lose words.
    """

    def __init__(
        self, records: Iterable[TaggedSentence], tokenizer: Tokenizer, context: int, tags: Sequence[str] | None = None
    ):
        records = list(records)
        if not records:
            raise DataError("there are no tagged sentences: check data.path and data.format")
        capacity, n_leading = text_capacity(tokenizer, context)
        self.tags = label_names((tag for record in records for tag in record.tags), tags)
        self.n_truncated = 0
        rows, targets = [], []
        encoded = encode_words([record.words for record in records], tokenizer)
        for i, (record, (ids, first_tokens)) in enumerate(zip(records, encoded, strict=True)):
            text = " ".join(record.words)
            if len(record.words) != len(record.tags):
                n_words, n_tags = count(len(record.words), "word"), count(len(record.tags), "tag")
                raise DataError(f"sentence {i + 1} has {n_words}, but {n_tags}: give every word a tag")
            row = tokenizer.build_inputs(ids[:capacity])[0]
            row_targets = [IGNORE_INDEX] * len(row)
            for tag, token in zip(record.tags, first_tokens, strict=True):
                if token != NO_TOKEN and token < capacity:
                    row_targets[n_leading + token] = label_id(tag, self.tags, i, text)
            self.n_truncated += any(token >= capacity for token in first_tokens)
            rows.append(row)
            targets.append(row_targets)
        super().__init__(rows, tokenizer)
        self.targets = RaggedArray(targets)
        if (self.targets.values == IGNORE_INDEX).all():
            raise DataError(
                f"no word of {count(len(records), 'sentence')} has a token, so there is no tag to predict: give other "
                f"text, or a tokenizer trained on text like this"
            )

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """How many words have each tag (C,)."""
        return np.bincount(self.targets.values[self.targets.values != IGNORE_INDEX], minlength=len(self.tags))

    def collate(self, indices: Indices, rng: RngKey | None = None) -> TagBatch:
        ids, mask = self.padded(indices)
        tags, _ = self.targets.padded(indices, IGNORE_INDEX)
        return TagBatch(ids, mask, tags)

"""Dataset of source-target pairs for encoder-decoders; batch it by length with `TokenBudgetBatchSampler`."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headway.data.loader import IGNORE_INDEX, Batch, RngKey, count_targets
from headway.data.padding import RaggedArray, pad, pad_mask, pad_rows_and_tokens
from headway.data.records import Pair
from headway.data.sampler import Indices, uniforms
from headway.errors import ConfigError, DataError
from headway.tokenizers import Tokenizer
from headway.tokenizers.bpe_dropout import BPEDropout

ENCODE_BATCH_PAIRS = 1000


@dataclass(frozen=True)
class Seq2SeqBatch(Batch):
    source: Tensor  # (B, S)
    source_mask: Tensor  # (B, S)
    inputs: Tensor  # (B, T) BOS, then the target
    targets: Tensor  # (B, T) the target, then EOS
    target_mask: Tensor  # (B, T)

    @property
    def n_targets(self) -> int:
        return count_targets(self.targets)

    def bucketed(self, max_len: int) -> "Seq2SeqBatch":
        return Seq2SeqBatch(
            pad_rows_and_tokens(self.source, 0, max_len),
            pad_mask(self.source_mask, max_len),
            pad_rows_and_tokens(self.inputs, 0, max_len),
            pad_rows_and_tokens(self.targets, IGNORE_INDEX, max_len),
            pad_rows_and_tokens(self.target_mask, False, max_len),
        )


class Seq2SeqDataset:
    """Pairs for teacher forcing: the source ends in EOS, the target starts with BOS and ends in EOS.

    Pairs longer than `context` tokens on a side are dropped (`n_long` counts them), or cut with `truncate`. `dropout`
    enables BPE-dropout: words are segmented anew every epoch, so rows may be somewhat longer than `lengths` says.
    """

    def __init__(
        self,
        pairs: Iterable[Pair],
        tokenizer: Tokenizer,
        *,
        context: int | None = None,
        truncate: bool = False,
        dropout: float = 0.0,
    ):
        bos, eos = tokenizer.bos_id, tokenizer.eos_id
        if bos is None or eos is None:
            raise ConfigError(
                "a target needs a BOS and an EOS token, and this tokenizer lacks one: train a tokenizer of kind bpe"
            )
        if context is not None and context < 2:
            raise ConfigError(f"context={context} leaves no room for a token and EOS: use at least 2")
        self.tokenizer, self.context = tokenizer, context
        self.bos_id, self.eos_id = bos, eos
        self.n_long = 0
        self.bpe_dropout = BPEDropout(tokenizer, dropout) if dropout else None
        sources, targets = [], []
        words: list[list[int]] = []  # with BPE-dropout: the word indices of each source and target, alternating
        remaining = iter(pairs)
        while batch := list(islice(remaining, ENCODE_BATCH_PAIRS)):
            encoded = tokenizer.encode_batch([text for pair in batch for text in (pair.source, pair.target)])
            for pair, source, target in zip(batch, encoded[::2], encoded[1::2], strict=True):
                if context is not None and max(len(source), len(target)) >= context:
                    self.n_long += 1
                    if not truncate:
                        continue
                    source, target = source[: context - 1], target[: context - 1]
                sources.append([*source, eos])
                targets.append([bos, *target, eos])
                if self.bpe_dropout is not None:
                    words += (self.bpe_dropout.word_ids(text) for text in (pair.source, pair.target))
        if not sources:
            reason = f": all {self.n_long} are longer than context={context}" if self.n_long else ""
            raise DataError(f"there are no pairs to learn from{reason}")
        self.sources, self.targets, self.words = RaggedArray(sources), RaggedArray(targets), RaggedArray(words)

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N, 2) tokens of the source and of the decoder input, as a batch pads them."""
        return np.stack([self.sources.lengths, self.targets.lengths - 1], axis=1)

    def collate(self, indices: Indices, rng: RngKey | None = None) -> Seq2SeqBatch:
        pad_id = self.tokenizer.pad_id
        if self.bpe_dropout is None or rng is None:
            source, source_mask = self.sources.padded(indices, pad_id)
            target, mask = self.targets.padded(indices, pad_id)
        else:
            texts = self._segment(indices, rng)
            source, source_mask = pad([[*ids, self.eos_id] for ids in texts[::2]], pad_id)
            target, mask = pad([[self.bos_id, *ids, self.eos_id] for ids in texts[1::2]], pad_id)
        target_mask = mask[:, 1:]
        targets = target[:, 1:].masked_fill(~target_mask, IGNORE_INDEX)
        inputs = target[:, :-1].masked_fill(~target_mask, pad_id)  # EOS is a target, never an input
        return Seq2SeqBatch(source, source_mask, inputs, targets, target_mask)

    def _segment(self, indices: Indices, rng: RngKey) -> list[list[int]]:
        """Ids of sources and targets, alternating, as BPE-dropout segments them in this epoch."""
        assert self.bpe_dropout is not None
        rows = np.stack((2 * indices, 2 * indices + 1), axis=1).flatten()
        texts = [self.words[row] for row in rows.tolist()]
        ends = self.words.ends[rows]  # the position of a word in the corpus determines its segmentation
        positions = np.concatenate([np.arange(e - len(text), e) for e, text in zip(ends.tolist(), texts, strict=True)])
        segmented = self.bpe_dropout.encode(texts, uniforms("spelling", *rng, counters=positions))
        for i, (row, ids) in enumerate(zip(rows.tolist(), segmented, strict=True)):
            if self.context is not None and len(ids) >= self.context:  # the plain segmentation fits
                plain = self.targets[row // 2][1:-1] if row % 2 else self.sources[row // 2][:-1]
                segmented[i] = plain.tolist()
        return segmented

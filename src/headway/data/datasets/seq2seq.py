"""Examples from text to text: source and target as ids, padded, in batches of like length (`LengthOrder`)."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from headway.data.loader import IGNORE, Batch, RngKey, count_targets
from headway.data.padding import RaggedArray, pad
from headway.data.records import Pair
from headway.data.sampler import Indices, uniforms
from headway.errors import ConfigError, DataError
from headway.tokenizers import Tokenizer
from headway.tokenizers.bpe_dropout import BPEDropout

SOME = 1000  # pairs encoded at a time
ROWS, COLUMNS = 32, 8  # what batches are padded to, where shapes should recur


@dataclass(frozen=True)
class Seq2SeqBatch(Batch):
    source: Tensor  # (B, S)
    source_mask: Tensor  # (B, S)
    inputs: Tensor  # (B, T) begin, then the target
    targets: Tensor  # (B, T) the target, then end
    target_mask: Tensor  # (B, T)

    @property
    def n_targets(self) -> int:
        return count_targets(self.targets)

    def bucketed(self, most: int) -> "Seq2SeqBatch":
        """Padded to a multiple of `ROWS` rows and `COLUMNS` tokens: Multi30k then has some sixty shapes instead of a
        new one with every batch, for a fifth more padding. Nothing is asked of the added rows, whose sources are one
        token long: attention needs something to look at. No row becomes longer than `most` tokens."""
        n_rows = -len(self) % ROWS
        source, source_mask, inputs, targets, target_mask = (
            F.pad(x, (0, max(0, min(-x.shape[1] % COLUMNS, most - x.shape[1])), 0, n_rows), value=fill)
            for x, fill in (
                (self.source, 0),
                (self.source_mask, False),
                (self.inputs, 0),
                (self.targets, IGNORE),
                (self.target_mask, False),
            )
        )
        source_mask[len(self) :, 0] = True
        return Seq2SeqBatch(source, source_mask, inputs, targets, target_mask)


class Seq2SeqDataset:
    """Pairs as the encoder-decoder reads them: the source ends in the end token; the target begins and ends.

    Pairs longer than `context` tokens on a side are left out (`n_long` of them), or cut with `truncate`. With `dropout`
    words are spelled anew every epoch (BPE-dropout), and rows may then be somewhat longer than `lengths` says.
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
        begin, end = tokenizer.bos_id, tokenizer.eos_id
        if begin is None or end is None:
            raise ConfigError("a target needs a begin and an end token, and this tokenizer lacks one")
        if context is not None and context < 2:
            raise ConfigError(f"context={context} leaves no room for a token and the end of text")
        self.tokenizer, self.context, self.frame = tokenizer, context, (begin, end)
        self.n_long = 0
        self.spellings = BPEDropout(tokenizer, dropout) if dropout else None
        sources, targets = [], []
        words: list[list[int]] = []
        rest = iter(pairs)
        while some := list(islice(rest, SOME)):
            encoded = tokenizer.encode_batch([text for pair in some for text in (pair.source, pair.target)])
            for pair, source, target in zip(some, encoded[::2], encoded[1::2], strict=True):
                if context is not None and max(len(source), len(target)) >= context:
                    self.n_long += 1
                    if not truncate:
                        continue
                    source, target = source[: context - 1], target[: context - 1]
                sources.append([*source, end])
                targets.append([begin, *target, end])
                if self.spellings is not None:
                    words += (self.spellings.numbers(text) for text in (pair.source, pair.target))
        if not sources:
            why = f": all {self.n_long} are longer than context={context}" if self.n_long else ""
            raise DataError(f"there are no pairs to learn from{why}")
        self.sources, self.targets, self.words = RaggedArray(sources), RaggedArray(targets), RaggedArray(words)

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N, 2) tokens on the two sides, as a batch pads them."""
        return np.stack([self.sources.lengths, self.targets.lengths - 1], axis=1)

    def collate(self, indices: Indices, draw: RngKey | None = None) -> Seq2SeqBatch:
        fill = self.tokenizer.pad_id
        if self.spellings is None or draw is None:
            source, source_mask = self.sources.padded(indices, fill)
            target, mask = self.targets.padded(indices, fill)
        else:
            begin, end = self.frame
            texts = self._spelled(indices, draw)
            source, source_mask = pad([[*ids, end] for ids in texts[::2]], fill)
            target, mask = pad([[begin, *ids, end] for ids in texts[1::2]], fill)
        wanted = target[:, 1:].masked_fill(~mask[:, 1:], IGNORE)
        inputs = target[:, :-1].masked_fill(~mask[:, 1:], fill)  # the end token is not looked at
        return Seq2SeqBatch(source, source_mask, inputs, wanted, mask[:, 1:])

    def _spelled(self, indices: Indices, draw: RngKey) -> list[list[int]]:
        """Sources and targets by turns, as this epoch spells them."""
        assert self.spellings is not None
        rows = np.stack((2 * indices, 2 * indices + 1), axis=1).flatten()
        texts = [self.words[row] for row in rows.tolist()]
        ends = self.words.ends[rows]  # the place of a word among all is what its spelling depends on
        places = np.concatenate([np.arange(e - len(text), e) for e, text in zip(ends.tolist(), texts, strict=True)])
        spelled = self.spellings.spell(texts, uniforms("spelling", *draw, counters=places))
        for place, (row, ids) in enumerate(zip(rows.tolist(), spelled, strict=True)):
            if self.context is not None and len(ids) >= self.context:  # as it is ordinarily, which fits
                plain = self.targets[row // 2][1:-1] if row % 2 else self.sources[row // 2][:-1]
                spelled[place] = plain.tolist()
        return spelled

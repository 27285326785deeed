"""Examples from text to text: source and target as ids, padded, in batches of like length (`LengthOrder`)."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headway.data.batches import IGNORE, Batch, Draw, count_targets
from headway.data.order import Indices
from headway.data.ragged import Ragged
from headway.data.records import Pair
from headway.errors import ConfigError, DataError
from headway.tokenizers import Tokenizer

SOME = 1000  # pairs encoded at a time


@dataclass(frozen=True)
class PairBatch(Batch):
    source: Tensor  # (B, S)
    source_mask: Tensor  # (B, S)
    inputs: Tensor  # (B, T) begin, then the target
    targets: Tensor  # (B, T) the target, then end
    target_mask: Tensor  # (B, T)

    @property
    def n_targets(self) -> int:
        return count_targets(self.targets)


class TextPairs:
    """Pairs as the encoder-decoder reads them: the source ends in the end token; the target begins and ends.

    Pairs longer than `context` tokens on a side are left out (`n_long` of them), or cut with `truncate`.
    """

    def __init__(
        self, pairs: Iterable[Pair], tokenizer: Tokenizer, *, context: int | None = None, truncate: bool = False
    ):
        begin, end = tokenizer.bos_id, tokenizer.eos_id
        if begin is None or end is None:
            raise ConfigError("a target needs a begin and an end token, and this tokenizer lacks one")
        if context is not None and context < 2:
            raise ConfigError(f"context={context} leaves no room for a token and the end of text")
        self.tokenizer = tokenizer
        self.n_long = 0
        sources, targets = [], []
        rest = iter(pairs)
        while some := list(islice(rest, SOME)):
            encoded = tokenizer.encode_batch([text for pair in some for text in (pair.source, pair.target)])
            for source, target in zip(encoded[::2], encoded[1::2], strict=True):
                if context is not None and max(len(source), len(target)) >= context:
                    self.n_long += 1
                    if not truncate:
                        continue
                    source, target = source[: context - 1], target[: context - 1]
                sources.append([*source, end])
                targets.append([begin, *target, end])
        if not sources:
            why = f": all {self.n_long} are longer than context={context}" if self.n_long else ""
            raise DataError(f"there are no pairs to learn from{why}")
        self.sources, self.targets = Ragged(sources), Ragged(targets)

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N, 2) tokens on the two sides, as a batch pads them."""
        return np.stack([self.sources.lengths, self.targets.lengths - 1], axis=1)

    def collate(self, indices: Indices, draw: Draw | None = None) -> PairBatch:
        fill = self.tokenizer.pad_id
        source, source_mask = self.sources.padded(indices, fill)
        target, mask = self.targets.padded(indices, fill)
        wanted = target[:, 1:].masked_fill(~mask[:, 1:], IGNORE)
        inputs = target[:, :-1].masked_fill(~mask[:, 1:], fill)  # the end token is not looked at
        return PairBatch(source, source_mask, inputs, wanted, mask[:, 1:])

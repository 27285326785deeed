"""Masked language modelling (Devlin et al. 2019, §3.1): some tokens are hidden, and the encoder says what they were.

Of 15 % of the tokens, 80 % become [MASK], 10 % a random token, 10 % stay as they are. What happens to a token depends
on the seed, the epoch, and its place in the corpus alone.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.data.datasets.causal import CausalDataset
from headway.data.loader import IGNORE, Batch, RngKey, count_targets
from headway.data.padding import room_for
from headway.data.sampler import Indices, uniforms
from headway.data.token_shards import TokenArray
from headway.errors import ConfigError
from headway.tokenizers import Tokenizer


@dataclass(frozen=True)
class MLMBatch(Batch):
    ids: Tensor  # (B, T)
    mask: Tensor  # (B, T) real tokens
    targets: Tensor  # (B, T) what was there, where it is asked for

    @property
    def n_targets(self) -> int:
        return count_targets(self.targets)


def mask_tokens(
    ids: NDArray[np.int64],
    places: NDArray[np.int64],
    draw: RngKey,
    *,
    mask_id: int,
    vocab_size: int,
    protected: frozenset[int] = frozenset(),
    share: float = 0.15,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ids with some hidden, and targets; `places` tell tokens apart, and `protected` ids are never hidden."""
    may = ~np.isin(ids, list(protected)) if protected else np.ones(ids.shape, dtype=bool)
    chosen = may & (uniforms("mask", *draw, counters=places) < share)
    how = uniforms("mask how", *draw, counters=places)
    random_ids = (uniforms("mask what", *draw, counters=places) * vocab_size).astype(np.int64)
    hidden = np.where(how < 0.8, mask_id, np.where(how < 0.9, random_ids, ids))
    return np.where(chosen, hidden, ids), np.where(chosen, ids, IGNORE)


class MLMDataset:
    """Windows of a corpus, framed as the encoder expects ([CLS] … [SEP]), some of their tokens hidden."""

    def __init__(self, tokens: TokenArray, context: int, tokenizer: Tokenizer, *, share: float = 0.15):
        if tokenizer.mask_id is None:
            raise ConfigError("this tokenizer has no mask token; a WordPiece tokenizer has one")
        if not 0 < share < 1:
            raise ConfigError(f"share={share} of the tokens to hide: between 0 and 1, such as 0.15")
        room, self.lead = room_for(tokenizer, context)
        self.windows = CausalDataset(tokens, room)
        self.tokenizer, self.share = tokenizer, share
        self.protected = frozenset(tokenizer.special_ids.values())
        self.vocab_size = tokenizer.vocab_size

    def __len__(self) -> int:
        return len(self.windows)

    def collate(self, indices: Indices, draw: RngKey) -> MLMBatch:
        starts = self.windows.starts(indices, draw)
        width = self.windows.context
        ids = self.windows.tokens.windows(starts, width)
        places = starts[:, None] + np.arange(width)
        assert self.tokenizer.mask_id is not None
        hidden, targets = mask_tokens(
            ids,
            places,
            draw,
            mask_id=self.tokenizer.mask_id,
            vocab_size=self.vocab_size,
            protected=self.protected,
            share=self.share,
        )
        framed = np.array([self.tokenizer.frame(row)[0] for row in hidden.tolist()], dtype=np.int64)
        wanted = np.full(framed.shape, IGNORE, dtype=np.int64)
        wanted[:, self.lead : self.lead + width] = targets
        found = torch.from_numpy(framed)
        return MLMBatch(found, torch.ones_like(found, dtype=torch.bool), torch.from_numpy(wanted))

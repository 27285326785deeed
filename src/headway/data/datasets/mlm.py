"""Masked language modelling (Devlin et al. 2019, §3.1): the encoder predicts tokens that were masked in its input.

Of the tokens, 15 % become targets: 80 % of those are replaced by [MASK], 10 % by a random token, and 10 % stay
unchanged. What happens to a token depends only on the seed, the epoch and its position in the corpus, with one
exception: a row in which nothing was selected gets one target, since otherwise short texts could have no loss at all.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.data.datasets.causal import CausalDataset
from headway.data.loader import IGNORE_INDEX, Batch, RngKey, count_targets
from headway.data.padding import text_capacity
from headway.data.sampler import Indices, uniforms
from headway.data.token_shards import TokenArray
from headway.errors import ConfigError, DataError
from headway.tokenizers import Tokenizer

SCAN_TOKENS = 1 << 20  # read at a time when looking for a maskable token


@dataclass(frozen=True)
class MLMBatch(Batch):
    ids: Tensor  # (B, T)
    mask: Tensor  # (B, T) True = real token
    targets: Tensor  # (B, T) the original ids of masked tokens, IGNORE_INDEX elsewhere

    @property
    def n_targets(self) -> int:
        return count_targets(self.targets)


def is_maskable(ids: NDArray[np.integer], special_ids: frozenset[int]) -> NDArray[np.bool_]:
    """Every token but the special ones."""
    return ~np.isin(ids, list(special_ids)) if special_ids else np.ones(ids.shape, dtype=bool)


def any_maskable(tokens: TokenArray, special_ids: frozenset[int]) -> bool:
    chunks = (tokens.read(i, min(i + SCAN_TOKENS, len(tokens))) for i in range(0, len(tokens), SCAN_TOKENS))
    return any(is_maskable(chunk, special_ids).any() for chunk in chunks)  # ends with the first chunk that has one


def mask_tokens(
    ids: NDArray[np.int64],
    positions: NDArray[np.int64],
    rng: RngKey,
    *,
    mask_id: int,
    vocab_size: int,
    special_ids: frozenset[int] = frozenset(),
    mask_prob: float = 0.15,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The masked ids and the targets, both (B, T).

    Each token is selected with probability `mask_prob`, from a random number that depends on `rng` and its position in
    the corpus, `positions` (B, T). A row in which none is selected takes its maskable token with the smallest number,
    so every row with a maskable token has a target. Special tokens are never masked.
    """
    maskable = is_maskable(ids, special_ids)
    u = uniforms("mask", *rng, counters=positions)
    selected = maskable & (u < mask_prob)
    rows = np.flatnonzero(maskable.any(axis=1) & ~selected.any(axis=1))
    if len(rows):
        selected[rows, np.where(maskable[rows], u[rows], np.inf).argmin(axis=1)] = True
    action = uniforms("mask how", *rng, counters=positions)
    random_ids = (uniforms("mask what", *rng, counters=positions) * vocab_size).astype(np.int64)
    masked = np.where(action < 0.8, mask_id, np.where(action < 0.9, random_ids, ids))
    return np.where(selected, masked, ids), np.where(selected, ids, IGNORE_INDEX)


class MLMDataset:
    """Windows of a corpus, framed as the encoder expects ([CLS] … [SEP]), with masked tokens."""

    def __init__(self, tokens: TokenArray, context: int, tokenizer: Tokenizer, *, mask_prob: float = 0.15):
        if tokenizer.mask_id is None:
            raise ConfigError("this tokenizer has no mask token; train a WordPiece tokenizer, which has one")
        if not 0 < mask_prob < 1:
            raise ConfigError(f"mask_prob={mask_prob} must be between 0 and 1, such as 0.15")
        capacity, self.n_leading = text_capacity(tokenizer, context)
        self.windows = CausalDataset(tokens, capacity)
        self.tokenizer, self.mask_prob = tokenizer, mask_prob
        self.special_ids = frozenset(tokenizer.special_ids.values())
        self.vocab_size = tokenizer.vocab_size
        if not any_maskable(tokens, self.special_ids):
            raise DataError(
                f"nothing can be masked: all {len(tokens)} tokens are special tokens, such as [UNK]; give other text, "
                f"or a tokenizer trained on text like this"
            )

    def __len__(self) -> int:
        return len(self.windows)

    def collate(self, indices: Indices, rng: RngKey) -> MLMBatch:
        starts = self.windows.starts(indices, rng)
        T = self.windows.context
        ids = self.windows.tokens.windows(starts, T)  # (B, T)
        assert self.tokenizer.mask_id is not None
        masked, targets = mask_tokens(
            ids,
            starts[:, None] + np.arange(T),
            rng,
            mask_id=self.tokenizer.mask_id,
            vocab_size=self.vocab_size,
            special_ids=self.special_ids,
            mask_prob=self.mask_prob,
        )
        framed = np.array([self.tokenizer.build_inputs(row)[0] for row in masked.tolist()], dtype=np.int64)
        framed_targets = np.full(framed.shape, IGNORE_INDEX, dtype=np.int64)
        framed_targets[:, self.n_leading : self.n_leading + T] = targets
        framed_ids = torch.from_numpy(framed)
        return MLMBatch(framed_ids, torch.ones_like(framed_ids, dtype=torch.bool), torch.from_numpy(framed_targets))

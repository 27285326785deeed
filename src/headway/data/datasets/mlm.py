"""Masked language modelling (Devlin et al. 2019, §3.1): the encoder predicts tokens that were masked in its input.

Of the tokens, 15 % become targets: 80 % of those are replaced by [MASK], 10 % by a random token, and 10 % stay
unchanged. What happens to a token depends only on the seed, the epoch and its position in the corpus, with one
exception: a row in which nothing was selected gets one target, since otherwise short texts could have no loss at all.

Whole-word masking selects all subwords of a word or none, each word with the same probability, so the fraction of
tokens stays the same. Which of the three replacements a subword gets is drawn for each on its own, as in the released
code (google-research/bert, `create_masked_lm_predictions`). That code draws random tokens from the whole vocabulary; we
leave out special tokens, which no text contains.
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
from headway.tokenizers.word_starts import continues_word

SCAN_TOKENS = 1 << 20  # read at a time when looking for a maskable token
TEXT = -1  # in a frame of special tokens: the place of a token of the text


@dataclass(frozen=True)
class MLMBatch(Batch):
    ids: Tensor  # (B, T)
    mask: Tensor  # (B, T) True = real token
    targets: Tensor  # (B, T) the original ids of masked tokens, IGNORE_INDEX elsewhere
    segments: Tensor | None = None  # (B, T) 0 or 1; None: all 0

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
    continues_word: NDArray[np.bool_] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The masked ids and the targets, both (B, T).

    Each token is selected with probability `mask_prob`, from a random number that depends on `rng` and its position in
    the corpus, `positions` (B, T). A row in which none is selected takes its maskable token with the smallest number,
    so every row with a maskable token has a target. Special tokens are never masked.

    `continues_word` (V,) masks whole words: it says of each token whether it continues the word of the token before it.
    All tokens of a word then share the number of its first.
    """
    maskable = is_maskable(ids, special_ids)
    u = uniforms("mask", *rng, counters=positions)
    if continues_word is not None:
        u = np.take_along_axis(u, _first_of_word(ids, maskable, continues_word), axis=1)
    smallest = np.where(maskable, u, np.inf).min(axis=1, keepdims=True)  # (B, 1)
    selected = maskable & ((u < mask_prob) | (u == smallest))
    action = uniforms("mask how", *rng, counters=positions)
    random_ids = _ordinary_ids(uniforms("mask what", *rng, counters=positions), vocab_size, special_ids)
    masked = np.where(action < 0.8, mask_id, np.where(action < 0.9, random_ids, ids))
    return np.where(selected, masked, ids), np.where(selected, ids, IGNORE_INDEX)


def _first_of_word(
    ids: NDArray[np.int64], maskable: NDArray[np.bool_], continues_word: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """The column (B, T) in which the word of each token starts. A row may start within a word."""
    continues = continues_word[ids]
    continues[:, 0] = False
    continues[:, 1:] &= maskable[:, :-1]  # no word reaches across a special token
    return np.maximum.accumulate(np.where(continues, 0, np.arange(ids.shape[1])), axis=1)


def _ordinary_ids(u: NDArray[np.float64], vocab_size: int, special_ids: frozenset[int]) -> NDArray[np.int64]:
    """Uniform numbers as ids of tokens that are not special."""
    n_ordinary = vocab_size - sum(id < vocab_size for id in special_ids)
    ids = (u * n_ordinary).astype(np.int64)
    for special_id in sorted(special_ids):
        ids += ids >= special_id  # skip it
    return ids


class MLMDataset:
    """Windows of a corpus, framed as the encoder expects ([CLS] … [SEP]), with masked tokens.

    With `segment_pairs` each window is cut in two at a random place, [CLS] A [SEP] B [SEP], so that both segment
    embeddings are trained. B always follows A: BERT's next-sentence prediction, where it may not, brings nothing
    (Liu et al. 2019, §4.2).
    """

    def __init__(
        self,
        tokens: TokenArray,
        context: int,
        tokenizer: Tokenizer,
        *,
        mask_prob: float = 0.15,
        whole_words: bool = False,
        segment_pairs: bool = False,
    ):
        if tokenizer.mask_id is None:
            raise ConfigError("this tokenizer has no mask token; train a WordPiece tokenizer, which has one")
        if not 0 < mask_prob < 1:
            raise ConfigError(f"mask_prob={mask_prob} must be between 0 and 1, such as 0.15")
        capacity, _ = text_capacity(tokenizer, context, n_texts=2 if segment_pairs else 1)
        self.windows = CausalDataset(tokens, capacity)
        self.tokenizer, self.mask_prob, self.segment_pairs = tokenizer, mask_prob, segment_pairs
        self.mask_id, self.vocab_size = tokenizer.mask_id, tokenizer.vocab_size
        self.special_ids = frozenset(tokenizer.special_ids.values())
        self.continues_word = continues_word(tokenizer) if whole_words else None
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
        masked, targets = mask_tokens(
            self.windows.tokens.windows(starts, T),  # (B, T)
            starts[:, None] + np.arange(T),
            rng,
            mask_id=self.mask_id,
            vocab_size=self.vocab_size,
            special_ids=self.special_ids,
            mask_prob=self.mask_prob,
            continues_word=self.continues_word,
        )
        frames, segments = self._frames(starts, rng)
        is_text = frames == TEXT
        ids, framed_targets = frames, np.full_like(frames, IGNORE_INDEX)
        ids[is_text], framed_targets[is_text] = masked.ravel(), targets.ravel()
        return MLMBatch(
            torch.from_numpy(ids),
            torch.ones(ids.shape, dtype=torch.bool),
            torch.from_numpy(framed_targets),
            None if segments is None else torch.from_numpy(segments),
        )

    def _frames(self, starts: Indices, rng: RngKey) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
        """The special tokens of each row, with `TEXT` where its text goes, and the segments if there are two."""
        T = self.windows.context
        if not self.segment_pairs:
            return np.tile(self.tokenizer.build_inputs([TEXT] * T)[0], (len(starts), 1)), None
        cuts = 1 + (uniforms("segments", *rng, counters=starts) * (T - 1)).astype(np.int64)
        rows = [self.tokenizer.build_inputs([TEXT] * n, [TEXT] * (T - n)) for n in cuts.tolist()]
        return np.array([ids for ids, _ in rows]), np.array([segments for _, segments in rows])

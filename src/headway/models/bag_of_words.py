"""A bag of words and bigrams (Wang & Manning 2012; fastText, Joulin et al. 2017), the baseline of text classification.

    h_t = E[w_t] + B[left(w_{t−1}, w_t)] + B[right(w_t, w_{t+1})]        a word, and the two bigrams it is part of
    pooled = mean_t h_t                                                  no order beyond bigrams

Bigrams have no table of their own: a hash gives each a row of B, which others may share. `left` and `right` are two
hash functions, so that two bigrams seldom share both rows, and a tagger can tell the word before from the word after.
There is no matrix product before the head, so training takes seconds. It takes the same heads (heads.py).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.config import BagOfWordsConfig
from headway.errors import InputError
from headway.models.base import Model
from headway.models.bert import check_mask
from headway.nn.embedding import check_ids, check_shape
from headway.nn.init import draw_normal
from headway.nn.pooling import mean_pool

# Primes below 2^30: ids are below 2^31, so no sum of products leaves 64 bits.
LEFT_PRIMES, RIGHT_PRIMES = (1_000_000_007, 998_244_353), (754_974_721, 167_772_161)


class BagOfWords(Model):
    config: BagOfWordsConfig

    def __init__(self, config: BagOfWordsConfig):
        super().__init__()
        self.config = c = config
        self.embedding = nn.Parameter(torch.empty(c.vocab_size, c.d_model))
        self.bigrams = nn.Parameter(torch.empty(c.n_buckets, c.d_model))
        self.init_weights()

    @property
    def width(self) -> int:
        """Dimension of the hidden state of each token."""
        return self.config.d_model

    def init_weights(self) -> None:
        for table in self.parameters():
            draw_normal(table, std=self.config.d_model**-0.5)

    def forward(self, ids: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """ids (B, T); mask (B, T), True = a real token, padding last. → (B, T, D). No segments."""
        check_shape(ids)
        check_mask(ids, mask, "mask")
        if segments is not None:
            raise InputError("a bag of words has no segments: pass one text without segments, or use a bert")
        ids = ids if mask is None else ids.masked_fill(~mask, 0)  # padding may hold anything
        check_ids(ids, self.config.vocab_size)
        left, right = self._buckets(ids, mask)
        return F.embedding(ids, self.embedding) + F.embedding(left, self.bigrams) + F.embedding(right, self.bigrams)

    def _buckets(self, ids: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The rows (B, T) of the bigrams that end and that begin at each token. The ends of a text count as a word."""
        outside = self.config.vocab_size
        words = ids.long() if mask is None else ids.long().masked_fill(~mask, outside)
        words = F.pad(words, (1, 1), value=outside)  # (B, T + 2)
        before, word, after = words[:, :-2], words[:, 1:-1], words[:, 2:]
        return self._hash(before, word, LEFT_PRIMES), self._hash(word, after, RIGHT_PRIMES)

    def _hash(self, first: Tensor, second: Tensor, primes: tuple[int, int]) -> Tensor:
        return (first * primes[0] + second * primes[1]) % self.config.n_buckets

    def pool(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """hidden (B, T, D) → one vector per text (B, D), the mean over its tokens."""
        return mean_pool(hidden, mask)

"""A bidirectional recurrent encoder (Graves & Schmidhuber 2005), for tagging and classification.

    x₀ = embed(ids)
    x_l = (forward_l(x_{l−1}), backward_l(x_{l−1})),  l = 1 … L       each token sees its left and right context

This was the standard tagger before BERT (Huang et al. 2015; Ma & Hovy 2016, who add characters and a CRF). It takes the
same heads (heads.py).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.config import BiLSTMConfig
from headway.errors import InputError
from headway.models.base import Model, source_lengths
from headway.models.bert import check_mask
from headway.nn.embedding import check_ids, check_shape
from headway.nn.init import orthogonal
from headway.nn.pooling import max_pool, mean_pool
from headway.nn.recurrent import BidirectionalStack

POOLING: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {
    "first": lambda hidden, mask: hidden[:, 0],
    "mean": mean_pool,
    "max": max_pool,
}


class BiLSTM(Model):
    config: BiLSTMConfig

    def __init__(self, config: BiLSTMConfig):
        super().__init__()
        self.config = c = config
        self.embedding = nn.Parameter(torch.empty(c.vocab_size, c.d_model))
        self.layers = BidirectionalStack(c.cell, c.d_model, c.d_hidden, c.n_layers, dropout=c.dropout)
        self.dropout = nn.Dropout(c.dropout)
        self.pooler = nn.Linear(self.width, self.width)
        self.init_weights()

    @property
    def width(self) -> int:
        """Dimension of the hidden state of each token."""
        return 2 * self.config.d_hidden

    def init_weights(self) -> None:
        orthogonal(self)

    def forward(self, ids: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """ids (B, T); mask (B, T), True = a real token, padding last. → (B, T, 2 d_hidden). No segments."""
        check_shape(ids)
        check_mask(ids, mask, "mask")
        if segments is not None:
            raise InputError("a BiLSTM has no segments: pass one text without segments, or use a bert")
        ids = ids if mask is None else ids.masked_fill(~mask, 0)  # padding may hold anything
        check_ids(ids, self.config.vocab_size)
        x = self.dropout(F.embedding(ids, self.embedding))
        return self.layers(x, source_lengths(ids, mask))[0]

    def pool(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """hidden (B, T, D); mask (B, T), True = a real token. → one vector per text (B, D): from its first token, where
        the backward pass ends, or from all of them (max: Conneau et al. 2017)."""
        return torch.tanh(self.pooler(POOLING[self.config.pooling](hidden, mask)))

"""The neural probabilistic language model: words as vectors, and a network over a window (Bengio et al. 2003).

    x = (C(w_{t−1}), …, C(w_{t−n+1}))                the vectors of the last n − 1 words, end to end
    y = b + U tanh(d + H x)  [+ W x]                 eq. 1; W: direct connections, or none
    p(w_t | the last n − 1 words) = softmax(y)

C is one table for all places, so that what is learned of a word in one is known in all. Where a text has just begun,
vectors of their own stand for the words that are not there.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.config import NPLMConfig
from headway.models.base import AutoregressiveLM, mask_padding
from headway.models.builders import check_batch_size
from headway.nn.embedding import check_ids
from headway.nn.kv_cache import TokenWindow


class NPLM(AutoregressiveLM):
    config: NPLMConfig

    def __init__(self, config: NPLMConfig):
        super().__init__()
        self.config = c = config
        window = (c.order - 1) * c.d_model
        self.C = nn.Parameter(torch.empty(c.vocab_size, c.d_model))
        self.nothing = nn.Parameter(torch.empty(c.order - 1, c.d_model))  # in place of words before the first
        self.hidden_layer = nn.Linear(window, c.d_hidden)  # H and d
        self.dropout = nn.Dropout(c.dropout)
        width = c.d_hidden + (window if c.direct else 0)
        self.U = nn.Parameter(torch.empty(c.vocab_size, width))  # with W beside it
        self.bias = nn.Parameter(torch.empty(c.vocab_size))
        self.init_weights()

    def init_weights(self) -> None:
        """Small and uniform; the direct connections begin at 0, as if they were not there."""
        for table in (self.C, self.nothing):
            nn.init.uniform_(table, -0.1, 0.1)
        self.hidden_layer.reset_parameters()
        nn.init.zeros_(self.U)
        bound = 1 / math.sqrt(self.config.d_hidden)
        nn.init.uniform_(self.U[:, : self.config.d_hidden], -bound, bound)
        nn.init.zeros_(self.bias)

    @property
    def output(self) -> tuple[Tensor, Tensor]:
        """The matrix and the bias that turn vectors into logits."""
        return self.U, self.bias

    def after(self, seen: Tensor) -> Tensor:
        """seen (B, n − 2 + T), −1 for nothing → the vectors after each of the last T, (B, T, …)."""
        n = self.config.order - 1
        is_word = (seen >= 0).unfold(1, n, 1).flip(-1)  # (B, T, n): the last word first
        words = F.embedding(seen.clamp(min=0), self.C).unfold(1, n, 1).flip(-1).transpose(-1, -2)  # (B, T, n, D)
        x = torch.where(is_word[..., None], words, self.nothing).flatten(-2)
        a = self.dropout(torch.tanh(self.hidden_layer(x)))
        return torch.cat((a, x), dim=-1) if self.config.direct else a

    # ── the contract ──────────────────────────────────────────────────────────────────────────────────────────────

    def forward(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.unembed(self.hidden_states(ids, lengths))

    def hidden_states(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The vectors that are turned into logits."""
        ids, _ = mask_padding(ids, lengths)
        check_ids(ids, self.config.vocab_size)
        return self.after(F.pad(ids.long(), (self.config.order - 2, 0), value=-1))

    def start(self, batch_size: int = 1, capacity: int | None = None) -> TokenWindow:
        """No room is needed, so `capacity` is for the contract's sake."""
        return TokenWindow.start(batch_size, self.config.order - 2, self.device)

    @torch.no_grad()
    def advance(self, ids: Tensor, state: TokenWindow, lengths: Tensor | None = None) -> tuple[Tensor, TokenWindow]:
        """The vectors that are turned into logits, after each of the new tokens (B, T)."""
        ids, lengths = mask_padding(ids, lengths)
        check_batch_size(ids, len(state.length))
        check_ids(ids, self.config.vocab_size)
        return self.after(state.before(ids)), state.after(ids, lengths)

"""The neural probabilistic language model: a feed-forward network over the last n − 1 words (Bengio et al. 2003).

    x = (C(w_{t−1}), …, C(w_{t−n+1}))                the embeddings of the last n − 1 words, concatenated
    y = b + U tanh(d + H x)  [+ W x]                 eq. 1; W: optional direct connections
    p(w_t | the last n − 1 words) = softmax(y)

All window positions share the embedding C. Learned vectors stand for the missing words before the start of a text.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.config import NPLMConfig
from headway.models.base import AutoregressiveLM, mask_padding
from headway.models.builders import check_batch_size
from headway.nn.embedding import check_ids
from headway.nn.state import TokenWindow


class NPLM(AutoregressiveLM):
    config: NPLMConfig

    def __init__(self, config: NPLMConfig):
        super().__init__()
        self.config = c = config
        d_window = (c.order - 1) * c.d_model
        self.C = nn.Parameter(torch.empty(c.vocab_size, c.d_model))
        self.padding_embedding = nn.Parameter(
            torch.empty(c.order - 1, c.d_model)
        )  # embeddings of the positions before the first word
        self.hidden_layer = nn.Linear(d_window, c.d_hidden)  # H and d
        self.dropout = nn.Dropout(c.dropout)
        d_out = c.d_hidden + (d_window if c.direct else 0)
        self.U = nn.Parameter(torch.empty(c.vocab_size, d_out))  # U, or (U W)
        self.bias = nn.Parameter(torch.empty(c.vocab_size))
        self.init_weights()

    def init_weights(self) -> None:
        """Small and uniform; the direct connections start at 0, without effect."""
        for table in (self.C, self.padding_embedding):
            nn.init.uniform_(table, -0.1, 0.1)
        self.hidden_layer.reset_parameters()
        nn.init.zeros_(self.U)
        bound = 1 / math.sqrt(self.config.d_hidden)
        nn.init.uniform_(self.U[:, : self.config.d_hidden], -bound, bound)
        nn.init.zeros_(self.bias)

    @property
    def output_layer(self) -> tuple[Tensor, Tensor]:
        """The output matrix (V, d_hidden, plus the window's width with direct connections) and bias (V,)."""
        return self.U, self.bias

    def _hidden_after(self, tokens: Tensor) -> Tensor:
        """tokens (B, n − 2 + T), −1 before the start of a text → hidden states after each of the last T, (B, T, …)."""
        n = self.config.order - 1
        is_word = (tokens >= 0).unfold(1, n, 1).flip(-1)  # (B, T, n): the most recent word first
        words = F.embedding(tokens.clamp(min=0), self.C).unfold(1, n, 1).flip(-1).transpose(-1, -2)  # (B, T, n, D)
        x = torch.where(is_word[..., None], words, self.padding_embedding).flatten(-2)
        a = self.dropout(torch.tanh(self.hidden_layer(x)))
        return torch.cat((a, x), dim=-1) if self.config.direct else a

    # ── the contract ──────────────────────────────────────────────────────────────────────────────────────────────

    def forward(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.unembed(self.hidden_states(ids, lengths))

    def hidden_states(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Final hidden states (B, T, …)."""
        ids, _ = mask_padding(ids, lengths)
        check_ids(ids, self.config.vocab_size)
        return self._hidden_after(F.pad(ids.long(), (self.config.order - 2, 0), value=-1))

    def start(self, batch_size: int = 1, capacity: int | None = None) -> TokenWindow:
        """The empty window. `capacity` is ignored: the state has a fixed size."""
        return TokenWindow.start(batch_size, self.config.order - 2, self.device)

    @torch.no_grad()
    def decode_hidden(
        self, ids: Tensor, state: TokenWindow, lengths: Tensor | None = None
    ) -> tuple[Tensor, TokenWindow]:
        """Final hidden states (B, T, …) after each new token (B, T), and the new state."""
        ids, lengths = mask_padding(ids, lengths)
        check_batch_size(ids, len(state.length))
        check_ids(ids, self.config.vocab_size)
        return self._hidden_after(state.concat(ids)), state.append(ids, lengths)

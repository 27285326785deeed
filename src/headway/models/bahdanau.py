"""Bahdanau et al. 2015: for every target token, the decoder attends to different positions of the source.

    h_j = (h→_j, h←_j)                                   bidirectional encoder, one or several layers (§3.2)
    s_0 = tanh(W_s h←_1)                                 from the final backward state (appendix A.2.2)
    c_i, α_i = attend(s_{i−1}, h)                        nn/additive_attention.py (§3.1)
    s_i = f(s_{i−1}, y_{i−1}, c_i)                       a GRU over the previous token and the context
    t_i = maxout(U_o s_i + V_o E y_{i−1} + C_o c_i)      and an output matrix to the vocabulary

Appendix A.2.2 has s_{i−1} in the last line; §2.2, eq. 4, and later work have s_i, as here. Source and target share a
vocabulary and one embedding.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.config import BahdanauConfig
from headway.models.base import EncoderDecoder, check_source, mask_padding, require_source, source_lengths
from headway.models.builders import check_batch_size
from headway.nn.additive_attention import AdditiveAttention
from headway.nn.embedding import check_ids
from headway.nn.init import orthogonal
from headway.nn.recurrent import BidirectionalStack, Recurrent, RecurrentState
from headway.nn.state import describe_state, row_indices


@dataclass(frozen=True)
class Annotations:
    """The encoded source: states h (B, S, 2D), their keys (B, S, A) and the mask (B, S), True = real token."""

    h: Tensor
    keys: Tensor
    mask: Tensor | None

    def reorder(self, rows: Tensor) -> "Annotations":
        return Annotations(self.h[rows], self.keys[rows], None if self.mask is None else self.mask[rows])


@dataclass(frozen=True, repr=False)
class BahdanauState:
    recurrent_state: RecurrentState  # s_i, and the cell of an LSTM
    source: Annotations
    length: Tensor  # (B,)

    def __repr__(self) -> str:
        return describe_state(self)

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (*self.recurrent_state, self.source.h, self.source.keys))

    def reorder(self, rows: Tensor | Sequence[int]) -> "BahdanauState":
        rows = row_indices(rows, self.length)
        return BahdanauState(tuple(t[rows] for t in self.recurrent_state), self.source.reorder(rows), self.length[rows])

    def copy(self) -> "BahdanauState":
        return replace(self, recurrent_state=tuple(t.clone() for t in self.recurrent_state), length=self.length.clone())


class Bahdanau(EncoderDecoder):
    config: BahdanauConfig

    def __init__(self, config: BahdanauConfig):
        super().__init__()
        self.config = c = config.resolved()
        D, width = c.d_hidden, 2 * c.d_hidden
        self.embedding = nn.Parameter(torch.empty(c.vocab_size, c.d_model))
        self.encoder = BidirectionalStack(c.cell, c.d_model, D, c.n_encoder_layers, dropout=c.dropout)
        self.attention = AdditiveAttention(D, width, c.d_attention)
        self.init_state = nn.Linear(D, D)  # W_s
        self.decoder = Recurrent(c.cell, c.d_model + width, D)
        self.maxout = nn.Linear(D + c.d_model + width, 2 * c.d_out)  # U_o, V_o and C_o
        self.dropout = nn.Dropout(c.dropout)
        self.unembedding = None if c.tie_embeddings else nn.Parameter(torch.empty(c.vocab_size, c.d_out))
        self.bias = nn.Parameter(torch.empty(c.vocab_size))
        self.init_weights()

    def init_weights(self) -> None:
        """Orthogonal recurrent matrices, as in appendix B.1. There all other weights are N(0, 0.01) or smaller, which
        takes days of Adadelta; with the scheme of nn/init.py the model learns in minutes."""
        orthogonal(self)

    @property
    def output_layer(self) -> tuple[Tensor, Tensor]:
        """The output matrix (V, d_out) and bias (V,)."""
        return self.embedding if self.unembedding is None else self.unembedding, self.bias

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> tuple[Annotations, RecurrentState]:
        """The encoded source and the initial decoder state."""
        lengths = source_lengths(source, source_mask)
        check_ids(source, self.config.vocab_size, "source")
        h, _, backward_state = self.encoder(self.dropout(F.embedding(source, self.embedding)), lengths)
        h = self.dropout(h)
        s = torch.tanh(self.init_state(backward_state[0]))
        cell = (torch.zeros_like(s),) if self.decoder.n_state_tensors == 2 else ()
        return Annotations(h, self.attention.U(h), source_mask), (s, *cell)

    def decode(
        self, ids: Tensor, state: RecurrentState, source: Annotations, lengths: Tensor | None
    ) -> tuple[Tensor, RecurrentState, Tensor]:
        """Final hidden states (B, T, d_out), the new decoder state, and the alignment (B, T, S)."""
        check_ids(ids, self.config.vocab_size)
        outputs, alignment = [], []
        for t, y in enumerate(self.dropout(F.embedding(ids, self.embedding)).unbind(dim=1)):
            c, alpha = self.attention(state[0], source.h, source.keys, source.mask)
            _, new_state = self.decoder(torch.cat((y, c), dim=-1)[:, None], state)
            outputs.append(torch.cat((new_state[0], y, c), dim=-1))
            alignment.append(alpha)
            if lengths is not None:
                is_real = (t < lengths)[:, None]
                new_state = tuple(torch.where(is_real, new, old) for new, old in zip(new_state, state, strict=True))
            state = new_state
        t = self.maxout(torch.stack(outputs, dim=1)).unflatten(-1, (-1, 2)).amax(dim=-1)  # (B, T, d_out)
        return self.dropout(t), state, torch.stack(alignment, dim=1)

    def alignment(self, ids: Tensor, *, source: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """Attention weights (B, T, S) from each target position to the source tokens; rows sum to 1. Row t holds the
        weights used to predict the token after token t."""
        annotations, state = self.encode(source, source_mask)
        return self.decode(ids, state, annotations, None)[2]

    # ── the contract ────────────────────────────────────────────────────────────────────────────────────────────────

    def hidden_states(
        self, ids: Tensor, lengths: Tensor | None = None, *, source: Tensor, source_mask: Tensor | None = None
    ) -> Tensor:
        """Final hidden states (B, T, d_out)."""
        ids, _ = mask_padding(ids, lengths)
        check_source(ids, source)
        annotations, state = self.encode(source, source_mask)
        return self.decode(ids, state, annotations, None)[0]

    def start(
        self,
        batch_size: int | None = None,
        capacity: int | None = None,
        *,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
    ) -> BahdanauState:
        """Encode the source (B, S) and return the initial decoder state. Targets may have any length."""
        source = require_source(source, batch_size)
        annotations, state = self.encode(source, source_mask)
        return BahdanauState(state, annotations, torch.zeros(source.shape[0], dtype=torch.long, device=source.device))

    @torch.no_grad()
    def decode_hidden(
        self, ids: Tensor, state: BahdanauState, lengths: Tensor | None = None
    ) -> tuple[Tensor, BahdanauState]:
        """Final hidden states (B, T, d_out) after each new target token (B, T), and the new state."""
        ids, lengths = mask_padding(ids, lengths)
        check_batch_size(ids, len(state.length))
        hidden, recurrent_state, _ = self.decode(ids, state.recurrent_state, state.source, lengths)
        length = state.length + (ids.shape[1] if lengths is None else lengths)
        return hidden, BahdanauState(recurrent_state, state.source, length)

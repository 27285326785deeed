"""Bahdanau et al. 2015: the decoder looks back at the source, at another place of it for every word it writes.

    h_j = (h→_j, h←_j)                                   a bidirectional layer, or several, read the source (§3.2)
    s_0 = tanh(W_s h←_1)                                 what the backward one ends with (appendix A.2.2)
    c_i, α_i = attend(s_{i−1}, h)                        nn/additive_attention.py (§3.1)
    s_i = f(s_{i−1}, y_{i−1}, c_i)                       a gated unit (GRU) over the last word and the context
    t_i = maxout(U_o s_i + V_o E y_{i−1} + C_o c_i)      and one matrix from there to the vocabulary

Appendix A.2.2 has s_{i−1} in the last line; §2.2, eq. 4, and what came after have s_i, as here. One embedding serves
source and target, since they share a vocabulary.
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
from headway.nn.kv_cache import row_indices
from headway.nn.recurrent import BidirectionalStack, Recurrent, RecurrentState


@dataclass(frozen=True)
class Annotations:
    """What is seen of the source: states h (B, S, 2D), their keys (B, S, A), and which places are real (B, S)."""

    h: Tensor
    keys: Tensor
    mask: Tensor | None

    def reorder(self, rows: Tensor) -> "Annotations":
        return Annotations(self.h[rows], self.keys[rows], None if self.mask is None else self.mask[rows])


@dataclass(frozen=True)
class BahdanauState:
    recurrent_state: RecurrentState  # s_i, and the cell where there is one
    source: Annotations
    length: Tensor  # (B,)

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
        self.first = nn.Linear(D, D)  # W_s
        self.decoder = Recurrent(c.cell, c.d_model + width, D)
        self.maxout = nn.Linear(D + c.d_model + width, 2 * c.d_out)  # U_o, V_o and C_o
        self.dropout = nn.Dropout(c.dropout)
        self.unembedding = None if c.tie_embeddings else nn.Parameter(torch.empty(c.vocab_size, c.d_out))
        self.bias = nn.Parameter(torch.empty(c.vocab_size))
        self.init_weights()

    def init_weights(self) -> None:
        """Orthogonal from step to step, as appendix B.1 has it. All else is small there, N(0, 0.01) and less, which
        Adadelta over days makes up for; from nn/init.py's it learns in minutes."""
        orthogonal(self)

    @property
    def output(self) -> tuple[Tensor, Tensor]:
        """The matrix and the bias (V,) that turn vectors into logits."""
        return self.embedding if self.unembedding is None else self.unembedding, self.bias

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> tuple[Annotations, RecurrentState]:
        """What is seen of the source, and the state that the decoder begins with."""
        lengths = source_lengths(source, source_mask)
        check_ids(source, self.config.vocab_size, "source")
        h, _, back = self.encoder(self.dropout(F.embedding(source, self.embedding)), lengths)
        h = self.dropout(h)
        s = torch.tanh(self.first(back[0]))
        cell = (torch.zeros_like(s),) if self.decoder.n_state_tensors == 2 else ()
        return Annotations(h, self.attention.U(h), source_mask), (s, *cell)

    def write(
        self, ids: Tensor, carried: RecurrentState, seen: Annotations, lengths: Tensor | None
    ) -> tuple[Tensor, RecurrentState, Tensor]:
        """The vectors (B, T, …) that are turned into logits, what is carried on, and the alignment (B, T, S)."""
        check_ids(ids, self.config.vocab_size)
        outputs, alignment = [], []
        for t, y in enumerate(self.dropout(F.embedding(ids, self.embedding)).unbind(dim=1)):
            c, alpha = self.attention(carried[0], seen.h, seen.keys, seen.mask)
            _, after = self.decoder(torch.cat((y, c), dim=-1)[:, None], carried)
            outputs.append(torch.cat((after[0], y, c), dim=-1))
            alignment.append(alpha)
            if lengths is not None:
                is_real = (t < lengths)[:, None]
                after = tuple(torch.where(is_real, new, old) for new, old in zip(after, carried, strict=True))
            carried = after
        t = self.maxout(torch.stack(outputs, dim=1)).unflatten(-1, (-1, 2)).amax(dim=-1)  # (B, T, d_out)
        return self.dropout(t), carried, torch.stack(alignment, dim=1)

    def alignment(self, ids: Tensor, *, source: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """How much each target token (B, T) was written by looking at each of the source: (B, T, S), rows sum to 1.
        Row t is the look that what follows token t was written with."""
        seen, carried = self.encode(source, source_mask)
        return self.write(ids, carried, seen, None)[2]

    # ── the contract ──────────────────────────────────────────────────────────────────────────────────────────────

    def hidden_states(
        self, ids: Tensor, lengths: Tensor | None = None, *, source: Tensor, source_mask: Tensor | None = None
    ) -> Tensor:
        """The vectors that are turned into logits."""
        ids, _ = mask_padding(ids, lengths)
        check_source(ids, source)
        seen, carried = self.encode(source, source_mask)
        return self.write(ids, carried, seen, None)[0]

    def start(
        self,
        batch_size: int | None = None,
        capacity: int | None = None,
        *,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
    ) -> BahdanauState:
        """Read the source (B, S) and be ready to write its targets, of any length."""
        source = require_source(source, batch_size)
        seen, carried = self.encode(source, source_mask)
        return BahdanauState(carried, seen, torch.zeros(source.shape[0], dtype=torch.long, device=source.device))

    @torch.no_grad()
    def advance(self, ids: Tensor, state: BahdanauState, lengths: Tensor | None = None) -> tuple[Tensor, BahdanauState]:
        """The vectors that are turned into logits, after each of the new target tokens (B, T)."""
        ids, lengths = mask_padding(ids, lengths)
        check_batch_size(ids, len(state.length))
        hidden, carried, _ = self.write(ids, state.recurrent_state, state.source, lengths)
        length = state.length + (ids.shape[1] if lengths is None else lengths)
        return hidden, BahdanauState(carried, state.source, length)

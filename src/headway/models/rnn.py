"""Recurrent language models (Mikolov et al. 2010; Zaremba et al. 2014; Merity et al. 2018).

    x₀ = embed(ids)
    x_l, h_l = layer_l(x_{l−1}, h_l),  l = 1 … L       nn/recurrent.py: Elman networks, LSTMs, GRUs
    logits = x_L Wᵀ + b                                W: the embedding, or a separate matrix

One vector per layer summarises the past, so the state has the same size after a million tokens as after one, and there
is no context limit: a text can be processed in windows of any length, each starting from the state the previous one
left. Training does the same and backpropagates through one window at a time (stateful truncated BPTT).

Dropout is applied between layers, never from step to step (Zaremba et al. 2014, §3.1). `variational_dropout`: one mask
for all steps of a window; `embedding_dropout`: whole rows of the embedding; `weight_drop`: hidden-to-hidden weights.
All three together make an AWD-LSTM (Merity et al. 2018).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.config import RNNConfig
from headway.errors import InputError
from headway.models.base import AutoregressiveLM, mask_padding
from headway.models.builders import check_batch_size
from headway.nn.embedding import check_ids
from headway.nn.recurrent import Recurrent, RecurrentState, variational_dropout
from headway.nn.state import describe_state, row_indices

CELL_NAMES = {"tanh": "RNN", "relu": "RNN", "sigmoid": "RNN", "lstm": "LSTM", "peephole": "LSTM", "gru": "GRU"}


@dataclass(frozen=True, repr=False)
class RNNState:
    """The state of each layer: (h,) or (h, c), each (B, D)."""

    layers: tuple[RecurrentState, ...]
    length: Tensor  # (B,)

    def __repr__(self) -> str:
        return describe_state(self)

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for layer in self.layers for t in layer)

    def reorder(self, rows: Tensor | Sequence[int]) -> "RNNState":
        rows = row_indices(rows, self.length)
        return RNNState(tuple(tuple(t[rows] for t in layer) for layer in self.layers), self.length[rows])

    def copy(self) -> "RNNState":
        return RNNState(tuple(tuple(t.clone() for t in layer) for layer in self.layers), self.length.clone())


class RNN(AutoregressiveLM):
    config: RNNConfig

    def __init__(self, config: RNNConfig):
        super().__init__()
        self.config = c = config.resolved()
        self.embedding = nn.Parameter(torch.empty(c.vocab_size, c.d_model))
        widths = [c.d_model, *[c.d_hidden] * (c.n_layers - 1), c.d_model if c.tie_embeddings else c.d_hidden]
        self.layers: Sequence[Recurrent] = nn.ModuleList(  # type: ignore[assignment]
            Recurrent(c.cell, d_in, d_out, weight_drop=c.weight_drop) for d_in, d_out in pairwise(widths)
        )
        self.unembedding = None if c.tie_embeddings else nn.Parameter(torch.empty(c.vocab_size, c.d_hidden))
        self.bias = nn.Parameter(torch.empty(c.vocab_size))
        self.init_weights()

    def init_weights(self) -> None:
        """Embeddings uniform in ±0.1 (Merity et al. 2018, §4.1), layers with torch's default."""
        for table in (self.embedding, self.unembedding):
            if table is not None:
                nn.init.uniform_(table, -0.1, 0.1)
        nn.init.zeros_(self.bias)
        for layer in self.layers:
            layer.init_weights()

    @property
    def display_name(self) -> str:
        return CELL_NAMES.get(self.config.cell, "RNN")

    @property
    def output_layer(self) -> tuple[Tensor, Tensor]:
        """The output matrix (V, D) and bias (V,)."""
        return self.embedding if self.unembedding is None else self.unembedding, self.bias

    def run(
        self, ids: Tensor, layers: Sequence[RecurrentState], lengths: Tensor | None = None
    ) -> tuple[Tensor, list[RecurrentState]]:
        """Final hidden states (B, T, D) and the new state of each layer."""
        check_ids(ids, self.config.vocab_size)
        x, new_layers = self._drop(self._embed(ids), self.config.input_dropout), []
        for i, (layer, state) in enumerate(zip(self.layers, layers, strict=True)):
            x, state = layer(x, state, lengths)
            new_layers.append(state)
            is_last = i == len(self.layers) - 1
            x = self._drop(x, self.config.dropout if is_last else self.config.hidden_dropout)
        return x, new_layers

    def _embed(self, ids: Tensor) -> Tensor:
        if not self.training or not self.config.embedding_dropout:
            return F.embedding(ids, self.embedding)
        row_mask = F.dropout(torch.ones_like(self.embedding[:, :1]), self.config.embedding_dropout, True)  # (V, 1)
        return F.embedding(ids, self.embedding) * F.embedding(ids, row_mask)

    def _drop(self, x: Tensor, p: float) -> Tensor:
        return (
            variational_dropout(x, p, self.training)
            if self.config.variational_dropout
            else F.dropout(x, p, self.training)
        )

    def initial_state(self, batch_size: int) -> list[RecurrentState]:
        """The zero state of each layer."""
        return [layer.start(batch_size) for layer in self.layers]

    # ── the contract ──────────────────────────────────────────────────────────────────────────────────────────────

    def forward(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.unembed(self.hidden_states(ids, lengths))

    def hidden_states(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Final hidden states (B, T, D). Padding comes last, so it cannot affect real tokens."""
        ids, _ = mask_padding(ids, lengths)
        return self.run(ids, self.initial_state(ids.shape[0]))[0]

    def start(self, batch_size: int = 1, capacity: int | None = None) -> RNNState:
        """The zero state. `capacity` is ignored: the state has a fixed size."""
        if batch_size < 0:
            raise InputError(f"start(batch_size={batch_size}): batch_size must be at least 0")
        length = torch.zeros(batch_size, dtype=torch.long, device=self.device)
        return RNNState(tuple(self.initial_state(batch_size)), length)

    @torch.no_grad()
    def decode_hidden(self, ids: Tensor, state: RNNState, lengths: Tensor | None = None) -> tuple[Tensor, RNNState]:
        """Final hidden states (B, T, D) after each new token (B, T), and the new state."""
        ids, lengths = mask_padding(ids, lengths)
        check_batch_size(ids, len(state.length))
        hidden, layers = self.run(ids, state.layers, lengths)
        return hidden, RNNState(tuple(layers), state.length + (ids.shape[1] if lengths is None else lengths))

"""seq2seq: a deep LSTM encodes the source into its state, another decodes the target from it (Sutskever et al. 2014).

    state = encode(x_S, …, x_1)               the source is reversed: its first words are then close to the target's
    logits = decode(y_1, …, y_{t−1}; state)   a language model that starts from the encoder's state

The final encoder state is all the decoder knows of the source, and it has the same size for every sentence: the
bottleneck that attention removed (bahdanau.py).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.config import Seq2SeqConfig
from headway.models.base import EncoderDecoder, check_source, mask_padding, require_source, source_lengths
from headway.models.builders import check_batch_size
from headway.models.rnn import RNNState
from headway.nn.embedding import check_ids
from headway.nn.init import orthogonal
from headway.nn.recurrent import Recurrent, RecurrentState, reverse_sequences


class Seq2Seq(EncoderDecoder):
    config: Seq2SeqConfig

    def __init__(self, config: Seq2SeqConfig):
        super().__init__()
        self.config = c = config
        self.embedding = nn.Parameter(torch.empty(c.vocab_size, c.d_model))
        self.encoder: Sequence[Recurrent] = _layers(c)
        self.decoder: Sequence[Recurrent] = _layers(c)
        self.dropout = nn.Dropout(c.dropout)
        self.unembedding = None if c.tie_embeddings else nn.Parameter(torch.empty(c.vocab_size, c.d_model))
        self.bias = nn.Parameter(torch.empty(c.vocab_size))
        self.init_weights()

    def init_weights(self) -> None:
        """Orthogonal and Xavier. Sutskever et al. 2014, §3.4, draw all weights uniformly in ±0.08, for 1,000 units;
        small models learn ten times as slowly from that."""
        orthogonal(self)

    @property
    def output_layer(self) -> tuple[Tensor, Tensor]:
        """The output matrix (V, D) and bias (V,)."""
        return self.embedding if self.unembedding is None else self.unembedding, self.bias

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> list[RecurrentState]:
        """source (B, S), source_mask (B, S) True = a real token → the final state of each encoder layer."""
        lengths = source_lengths(source, source_mask)
        check_ids(source, self.config.vocab_size, "source")
        x = F.embedding(reverse_sequences(source, lengths) if self.config.reverse_source else source, self.embedding)
        layers = []
        for layer in self.encoder:
            x, state = layer(self.dropout(x), layer.start(x.shape[0]), lengths)
            layers.append(state)
        return layers

    def decode(
        self, ids: Tensor, layers: Sequence[RecurrentState], lengths: Tensor | None
    ) -> tuple[Tensor, list[RecurrentState]]:
        """Final hidden states (B, T, D) and the new state of each decoder layer."""
        check_ids(ids, self.config.vocab_size)
        x, new_layers = F.embedding(ids, self.embedding), []
        for layer, state in zip(self.decoder, layers, strict=True):
            x, state = layer(self.dropout(x), state, lengths)
            new_layers.append(state)
        return self.dropout(x), new_layers

    # ── the contract ──────────────────────────────────────────────────────────────────────────────────────────────

    def hidden_states(
        self, ids: Tensor, lengths: Tensor | None = None, *, source: Tensor, source_mask: Tensor | None = None
    ) -> Tensor:
        """Final hidden states (B, T, D)."""
        ids, _ = mask_padding(ids, lengths)
        check_source(ids, source)
        return self.decode(ids, self.encode(source, source_mask), None)[0]

    def start(
        self,
        batch_size: int | None = None,
        capacity: int | None = None,
        *,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
    ) -> RNNState:
        """Encode the source (B, S) and return the initial decoder state. Targets may have any length."""
        source = require_source(source, batch_size)
        layers = tuple(self.encode(source, source_mask))
        return RNNState(layers, torch.zeros(source.shape[0], dtype=torch.long, device=source.device))

    @torch.no_grad()
    def decode_hidden(self, ids: Tensor, state: RNNState, lengths: Tensor | None = None) -> tuple[Tensor, RNNState]:
        """Final hidden states (B, T, D) after each new target token (B, T), and the new state."""
        ids, lengths = mask_padding(ids, lengths)
        check_batch_size(ids, len(state.length))
        hidden, layers = self.decode(ids, state.layers, lengths)
        return hidden, RNNState(tuple(layers), state.length + (ids.shape[1] if lengths is None else lengths))


def _layers(c: Seq2SeqConfig) -> Sequence[Recurrent]:
    return nn.ModuleList(  # type: ignore[return-value]
        Recurrent(c.cell, c.d_model, c.d_model) for _ in range(c.n_layers)
    )

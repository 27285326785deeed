"""The Transformer: an encoder for the source, a decoder for the target (Vaswani et al. 2017, Figure 1).

    memory = encode(source)                         every source token attends to every other
    logits = decode(ids, memory)                    each target token attends to itself and earlier target tokens,
                                                    then to all source tokens

Source, target and output share one embedding (§3.4). Encoder and decoder each have positions of the kind in the config;
cross-attention has none. The keys and values of the source are computed once, in `start`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from headway.config import TransformerConfig
from headway.models.base import EncoderDecoder, check_context, check_source, mask_padding, require_source
from headway.models.bert import check_mask
from headway.models.builders import (
    build_blocks,
    build_final_norm,
    build_positions,
    check_batch_size,
    decoder_mask,
    start_cache,
    step_mask,
)
from headway.nn import AttentionContext, Embedding, KVCache
from headway.nn.beam_cache import BeamCache, BeamCacheUpdate, Cache
from headway.nn.embedding import check_shape
from headway.nn.init import draw_normal, xavier
from headway.nn.kv_cache import CacheUpdate
from headway.nn.state import describe_state, row_indices


@dataclass(frozen=True)
class CrossAttentionCache:
    """The encoded source: keys and values of every decoder layer (L, B, G, S, K), and the mask (B, S) or None."""

    keys: Tensor
    values: Tensor
    mask: Tensor | None

    def layer(self, i: int) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.keys[i], self.values[i], None if self.mask is None else self.mask[:, None, None]

    def reorder(self, rows: Tensor) -> "CrossAttentionCache":
        mask = None if self.mask is None else self.mask[rows]
        return CrossAttentionCache(self.keys.index_select(1, rows), self.values.index_select(1, rows), mask)


@dataclass(frozen=True, repr=False)
class TransformerState:
    """The decoder's KV cache, which grows, and the cross-attention cache, which is constant."""

    cache: Cache
    source: CrossAttentionCache

    def __repr__(self) -> str:
        return describe_state(self)

    @property
    def length(self) -> Tensor:
        return self.cache.length

    @property
    def nbytes(self) -> int:
        return self.cache.nbytes + self.source.keys.nbytes + self.source.values.nbytes

    def reorder(self, rows: Tensor | Sequence[int]) -> "TransformerState":
        rows = row_indices(rows, self.length)
        return TransformerState(self.cache.reorder(rows), self.source.reorder(rows))

    def branch(self, n_beams: int) -> "TransformerState":
        """`n_beams` beams per row, which share the row's source."""
        assert isinstance(self.cache, KVCache)
        return replace(self, cache=self.cache.branch(n_beams))

    def follow(self, parents: Tensor) -> "TransformerState":
        """Beam j of row i continues the former beam parents[i, j]."""
        assert isinstance(self.cache, BeamCache)
        return replace(self, cache=self.cache.follow(parents))

    def pruned(self) -> "TransformerState":
        """Drop the slots that no beam attends to any more."""
        assert isinstance(self.cache, BeamCache)
        return replace(self, cache=self.cache.pruned())

    def copy(self) -> "TransformerState":
        return replace(self, cache=self.cache.copy())


class Encoder(nn.Module):
    def __init__(self, c: TransformerConfig):
        super().__init__()
        self.positions = build_positions(c, is_causal=False)
        self.dropout = nn.Dropout(c.dropout)
        self.blocks = build_blocks(c, c.n_encoder_layers, attention_dropout=0.0)
        self.norm = build_final_norm(c)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:  # (B, S, D), mask (B, S)
        pos = torch.arange(x.shape[1], device=x.device)[None]
        ctx = AttentionContext(
            mask=None if mask is None else mask[:, None, None],
            bias=self.positions.bias(pos, pos),
            qkv_transform=self.positions.qkv_transform(pos),
        )
        x = self.dropout(self.positions.embed(x, pos))
        for block in self.blocks:
            x = block(x, ctx)
        return self.norm(x)


class Decoder(nn.Module):
    def __init__(self, c: TransformerConfig):
        super().__init__()
        self.positions = build_positions(c, is_causal=True)
        self.dropout = nn.Dropout(c.dropout)
        self.blocks = build_blocks(c, c.n_decoder_layers, attention_dropout=0.0, cross=True)
        self.norm = build_final_norm(c)

    def project(self, memory: Tensor, mask: Tensor | None) -> CrossAttentionCache:
        """The keys and values of every layer's cross-attention."""
        pairs = [block.cross_attention.project(memory) for block in self.blocks]
        if not pairs:  # no decoder layers, so no cross-attention
            return CrossAttentionCache(memory.new_empty(0, memory.shape[0]), memory.new_empty(0, memory.shape[0]), mask)
        keys, values = zip(*pairs, strict=True)
        return CrossAttentionCache(torch.stack(keys), torch.stack(values), mask)

    def forward(
        self,
        x: Tensor,
        source: CrossAttentionCache,
        causal: bool,
        mask: Tensor | None,
        update: CacheUpdate | BeamCacheUpdate | None = None,
    ) -> Tensor:
        """x (B, T, D) → hidden states (B, T, D) before the final norm; with `update`, x follows the cached tokens.
        `causal` and `mask` are those of an `AttentionContext`."""
        if update is None:
            pos = torch.arange(x.shape[1], device=x.device)[None]
            bias = self.positions.bias(pos, pos)
        else:
            pos, bias = update.pos, update.bias(self.positions)
        ctx = AttentionContext(causal=causal, mask=mask, bias=bias, qkv_transform=self.positions.qkv_transform(pos))
        x = self.dropout(self.positions.embed(x, pos))
        for i, block in enumerate(self.blocks):
            x = block(x, ctx, None if update is None else update.layer(i), source.layer(i))
        return x


class Transformer(EncoderDecoder):
    config: TransformerConfig

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = c = config.resolved()
        self.embedding = Embedding(c.vocab_size, c.d_model, scale=c.scale_embeddings, tied=c.tie_embeddings)
        self.encoder = Encoder(c)
        self.decoder = Decoder(c)
        self.init_weights()

    def init_weights(self) -> None:
        """Xavier-uniform matrices, from the authors' tensor2tensor; the paper does not say. Embeddings are N(0, 1/D),
        so that after scaling by √D (§3.4) they match the positions in magnitude."""
        xavier(self)
        draw_normal(self.embedding.weight, self.config.d_model**-0.5)
        for side in (self.encoder, self.decoder):
            for table in side.positions.parameters():
                draw_normal(table, 0.02)

    @property
    def output_layer(self) -> tuple[Tensor, None]:
        """The output matrix (V, D); there is no bias."""
        return self.embedding.table, None

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """source (B, S), source_mask (B, S) True = a real token → (B, S, D)."""
        check_shape(source, "source")
        check_context(source.shape[1], self.encoder.positions.limit, self.config.positions)
        check_mask(source, source_mask, "source_mask")
        if source_mask is not None:
            source = source.masked_fill(~source_mask, 0)  # padding may hold anything
        return self.encoder(self.embedding(source, "source"), source_mask)

    def hidden_states(
        self, ids: Tensor, lengths: Tensor | None = None, *, source: Tensor, source_mask: Tensor | None = None
    ) -> Tensor:
        """Final hidden states (B, T, D)."""
        ids, lengths = mask_padding(ids, lengths)
        check_context(ids.shape[-1], self.decoder.positions.limit, self.config.positions)
        check_source(ids, source)
        cross_cache = self.decoder.project(self.encode(source, source_mask), source_mask)
        causal, mask = decoder_mask(self.config, ids, lengths, documents=None)
        return self.decoder.norm(self.decoder(self.embedding(ids), cross_cache, causal, mask))

    def start(
        self,
        batch_size: int | None = None,
        capacity: int | None = None,
        *,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
    ) -> TransformerState:
        """Encode the source (B, S); return the initial decoder state, for `capacity` tokens (default: the context)."""
        source = require_source(source, batch_size)
        cross_cache = self.decoder.project(self.encode(source, source_mask), source_mask)
        positions, n_layers = self.decoder.positions, self.config.n_decoder_layers
        return TransformerState(start_cache(self, positions, n_layers, source.shape[0], capacity), cross_cache)

    @torch.no_grad()
    def decode_hidden(
        self, ids: Tensor, state: TransformerState, lengths: Tensor | None = None
    ) -> tuple[Tensor, TransformerState]:
        """Final hidden states (B, T, D) after each new target token (B, T), and the new state."""
        ids, lengths = mask_padding(ids, lengths)
        check_batch_size(ids, state.cache.batch_size)
        update = state.cache.extend(ids.shape[1], lengths)
        x = self.decoder(self.embedding(ids), state.source, *step_mask(self.config, update), update)
        return self.decoder.norm(x), replace(state, cache=update.updated_cache())

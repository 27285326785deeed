"""The Transformer: an encoder reads the source, a decoder writes the target (Vaswani et al. 2017, Figure 1).

    memory = encode(source)                         every source token looks at every other
    logits = decode(ids, memory)                    each target token looks back at itself and those before it,
                                                    then at the whole source

One embedding serves source, target and the output (§3.4). Positions are of the kind the config names, on each side;
cross-attention carries none. The keys and values of the source are computed once, in `start`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from headway.config import TransformerConfig
from headway.models.base import EncoderDecoder, check_context, check_source, mask_padding, require_source
from headway.models.bert import check_mask
from headway.models.builders import build_blocks, build_final_norm, build_positions, check_batch_size, start_cache
from headway.nn import AttentionContext, Embedding, KVCache
from headway.nn.beam_cache import BeamCache, BeamCacheUpdate, Cache
from headway.nn.embedding import check_shape
from headway.nn.init import xavier
from headway.nn.kv_cache import CacheUpdate, row_indices


@dataclass(frozen=True)
class CrossAttentionCache:
    """What the decoder sees of the source: per layer keys and values (L, B, G, S, K), and the mask (B, S) or None."""

    keys: Tensor
    values: Tensor
    mask: Tensor | None

    def layer(self, i: int) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.keys[i], self.values[i], None if self.mask is None else self.mask[:, None, None]

    def reorder(self, rows: Tensor) -> "CrossAttentionCache":
        mask = None if self.mask is None else self.mask[rows]
        return CrossAttentionCache(self.keys.index_select(1, rows), self.values.index_select(1, rows), mask)


@dataclass(frozen=True)
class TransformerState:
    """The decoder's cache, which grows, and the source's, which does not (and which nobody writes to)."""

    cache: Cache
    source: CrossAttentionCache

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
        """To be continued in `n_beams` ways a row, all looking at the one source."""
        assert isinstance(self.cache, KVCache)
        return replace(self, cache=self.cache.branch(n_beams))

    def follow(self, parents: Tensor) -> "TransformerState":
        """Beam j of row i goes on from what was beam parents[i, j]."""
        assert isinstance(self.cache, BeamCache)
        return replace(self, cache=self.cache.follow(parents))

    def pruned(self) -> "TransformerState":
        """Without what no beam goes on from."""
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
        look = AttentionContext(
            mask=None if mask is None else mask[:, None, None],
            bias=self.positions.bias(pos, pos),
            qkv_transform=self.positions.qkv_transform(pos),
        )
        x = self.dropout(self.positions.embed(x, pos))
        for block in self.blocks:
            x = block(x, look)
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
        if not pairs:  # no decoder layer, nothing to look with
            return CrossAttentionCache(memory.new_empty(0, memory.shape[0]), memory.new_empty(0, memory.shape[0]), mask)
        keys, values = zip(*pairs, strict=True)
        return CrossAttentionCache(torch.stack(keys), torch.stack(values), mask)

    def forward(
        self, x: Tensor, source: CrossAttentionCache, step: CacheUpdate | BeamCacheUpdate | None = None
    ) -> Tensor:
        """x (B, T, D)"""
        place = self.positions
        if step is None:
            pos = torch.arange(x.shape[1], device=x.device)[None]
            look = AttentionContext(causal=True, bias=place.bias(pos, pos), qkv_transform=place.qkv_transform(pos))
        else:
            pos = step.pos
            look = AttentionContext(
                causal=step.causal, mask=step.mask, bias=step.bias(place), qkv_transform=place.qkv_transform(pos)
            )
        x = self.dropout(place.embed(x, pos))
        for i, block in enumerate(self.blocks):
            x = block(x, look, None if step is None else step.layer(i), source.layer(i))
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
        """Xavier-uniform matrices; the paper gives none, the authors' tensor2tensor does. Embeddings are
        N(0, 1/D), so that √D times them (§3.4) has the size of the positions added to them."""
        xavier(self)
        nn.init.normal_(self.embedding.weight, std=self.config.d_model**-0.5)
        for side in (self.encoder, self.decoder):
            for table in side.positions.parameters():
                nn.init.normal_(table, std=0.02)

    @property
    def output(self) -> tuple[Tensor, None]:
        """The matrix (V, D) that turns vectors into logits; there is no bias."""
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
        """The vectors (B, T, D) that are turned into logits."""
        ids, _ = mask_padding(ids, lengths)
        check_context(ids.shape[-1], self.decoder.positions.limit, self.config.positions)
        check_source(ids, source)
        seen = self.decoder.project(self.encode(source, source_mask), source_mask)
        return self.decoder.norm(self.decoder(self.embedding(ids), seen))

    def start(
        self,
        batch_size: int | None = None,
        capacity: int | None = None,
        *,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
    ) -> TransformerState:
        """Read the source (B, S) and be ready to write its targets, `capacity` tokens each (default: the context)."""
        source = require_source(source, batch_size)
        seen = self.decoder.project(self.encode(source, source_mask), source_mask)
        place, n_layers = self.decoder.positions, self.config.n_decoder_layers
        return TransformerState(start_cache(self, place, n_layers, source.shape[0], capacity), seen)

    @torch.no_grad()
    def advance(
        self, ids: Tensor, state: TransformerState, lengths: Tensor | None = None
    ) -> tuple[Tensor, TransformerState]:
        """The vectors (B, T, D) that are turned into logits, after each of the new target tokens (B, T)."""
        ids, lengths = mask_padding(ids, lengths)
        check_batch_size(ids, state.cache.batch_size)
        step = state.cache.extend(ids.shape[1], lengths)
        x = self.decoder(self.embedding(ids), state.source, step)
        return self.decoder.norm(x), replace(state, cache=step.after())

"""GPT: a stack of decoder blocks that predicts the next token (Radford et al. 2018, 2019; Brown et al. 2020).

    h₀ = embed(ids) + positions
    h_l = block_l(h_{l−1}),  l = 1 … L        every token attends to itself and earlier tokens
    logits = norm(h_L) Wᵀ                     W: the embedding, or a separate matrix

The config chooses the parts, so Llama is this file too: rotary positions, RMSNorm, SwiGLU, grouped queries, no biases.
Post-norm blocks (GPT-1) end normalised, so there is no final norm.
"""

import math

import torch
from torch import Tensor, nn

from headway.config import GPTConfig
from headway.models.base import AutoregressiveLM, check_context, mask_padding
from headway.models.builders import (
    build_blocks,
    build_final_norm,
    build_positions,
    check_batch_size,
    decoder_mask,
    start_cache,
    step_mask,
)
from headway.nn import AttentionContext, Embedding, KVCache, masks
from headway.nn.beam_cache import Cache
from headway.nn.init import draw_normal, normal


class GPT(AutoregressiveLM):
    config: GPTConfig

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = c = config.resolved()
        self.embedding = Embedding(c.vocab_size, c.d_model, scale=c.scale_embeddings, tied=c.tie_embeddings)
        self.positions = build_positions(c, is_causal=True)
        self.dropout = nn.Dropout(c.dropout)
        self.blocks = build_blocks(c, c.n_layers, attention_dropout=c.dropout)
        self.norm = build_final_norm(c)
        self.init_weights()

    def init_weights(self) -> None:
        """N(0, 0.02) everywhere (Radford et al. 2018, §4.1); in pre-norm models the residual projections are divided by
        √(number of residual layers) (Radford et al. 2019, §2.3)."""
        normal(self, std=0.02)
        if self.config.norm_order == "pre":
            for block in self.blocks:
                for projection in (block.attention.out, block.feed_forward.down):
                    draw_normal(projection.weight, 0.02 / math.sqrt(2 * len(self.blocks)))

    @property
    def output_layer(self) -> tuple[Tensor, None]:
        """The output matrix (V, D); there is no bias."""
        return self.embedding.table, None

    def forward(self, ids: Tensor, lengths: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        """ids (B, T), right-padded if `lengths` (B,) is given → logits (B, T, V).

        `documents` (B, T), the document number of each token, packs several documents into a row; each is processed as
        if it were alone.
        """
        return self.unembed(self.hidden_states(ids, lengths, documents))

    def hidden_states(self, ids: Tensor, lengths: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        """Final hidden states (B, T, D)."""
        ids, lengths = mask_padding(ids, lengths)
        check_context(ids.shape[-1], self.positions.limit, self.config.positions)
        row_pos = torch.arange(ids.shape[-1], device=ids.device)[None]
        pos = row_pos if documents is None else masks.positions_in(documents)
        causal, mask = decoder_mask(self.config, ids, lengths, documents)
        # A bias depends only on distances, which do not change with a document's offset in the row.
        bias, qkv_transform = self.positions.bias(row_pos, row_pos), self.positions.qkv_transform(pos)
        ctx = AttentionContext(causal=causal, mask=mask, bias=bias, qkv_transform=qkv_transform)
        x = self.dropout(self.positions.embed(self.embedding(ids), pos))
        for block in self.blocks:
            x = block(x, ctx)
        return self.norm(x)

    def start(self, batch_size: int = 1, capacity: int | None = None) -> KVCache:
        """An empty cache for `batch_size` rows of `capacity` positions, by default the context."""
        return start_cache(self, self.positions, self.config.n_layers, batch_size, capacity)

    @torch.no_grad()  # the cache is written in place: there is no backward through it
    def decode_hidden(self, ids: Tensor, state: Cache, lengths: Tensor | None = None) -> tuple[Tensor, Cache]:
        """Final hidden states (B, T, D) after each new token (B, T), and the updated cache."""
        ids, lengths = mask_padding(ids, lengths)
        check_batch_size(ids, state.batch_size)
        update = state.extend(ids.shape[1], lengths)
        causal, mask = step_mask(self.config, update)
        ctx = AttentionContext(
            causal=causal,
            mask=mask,
            bias=update.bias(self.positions),
            qkv_transform=self.positions.qkv_transform(update.pos),
        )
        x = self.dropout(self.positions.embed(self.embedding(ids), update.pos))
        for i, block in enumerate(self.blocks):
            x = block(x, ctx, update.layer(i))
        return self.norm(x), update.updated_cache()

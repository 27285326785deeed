"""GPT: a stack of decoder blocks that predicts the next token (Radford et al. 2018, 2019; Brown et al. 2020).

    h₀ = embed(ids) + positions
    h_l = block_l(h_{l−1}),  l = 1 … L        every token looks at itself and those before it
    logits = norm(h_L) Wᵀ                     W: the embedding, or a matrix of its own

Parts are chosen by config, so Llama is this file too: rotary positions, RMSNorm, SwiGLU, grouped queries, no biases.
With the norm after the residual (GPT-1) each block ends normalised, and there is no final norm.
"""

import math

import torch
from torch import Tensor, nn

from headway.config import GPTConfig
from headway.models.base import AutoregressiveLM, check_context, mask_padding
from headway.models.builders import build_blocks, build_final_norm, build_positions, check_batch_size, start_cache
from headway.nn import AttentionContext, Embedding, KVCache, masks
from headway.nn.beam_cache import Cache
from headway.nn.init import normal


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
        """N(0, 0.02) everywhere (Radford et al. 2018, §4.1); before the residual is added, divided by √(number of
        residual layers) where the norm comes first (Radford et al. 2019, §2.3)."""
        normal(self, std=0.02)
        if self.config.norm_order == "pre":
            for block in self.blocks:
                for projection in (block.attention.out, block.feed_forward.down):
                    nn.init.normal_(projection.weight, std=0.02 / math.sqrt(2 * len(self.blocks)))

    @property
    def output(self) -> tuple[Tensor, None]:
        """The matrix (V, D) that turns vectors into logits; there is no bias."""
        return self.embedding.table, None

    def forward(self, ids: Tensor, lengths: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        """ids (B, T), right-padded where `lengths` (B,) is given → logits (B, T, V).

        Where `documents` (B, T) says which document each token belongs to, several share a row as if each were alone.
        """
        return self.unembed(self.hidden_states(ids, lengths, documents))

    def hidden_states(self, ids: Tensor, lengths: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        """The vectors (B, T, D) that are turned into logits. Padding comes last, so causality alone hides it."""
        ids, _ = mask_padding(ids, lengths)
        check_context(ids.shape[-1], self.positions.limit, self.config.positions)
        places = torch.arange(ids.shape[-1], device=ids.device)[None]
        pos = places if documents is None else masks.positions_in(documents)
        mask = None
        if documents is not None:
            mask = masks.document(documents)[:, None] & masks.causal(ids.shape[-1], device=ids.device)
        # A bias depends on distances alone, which are the same inside a document, wherever it stands.
        bias, inside = self.positions.bias(places, places), self.positions.qkv_transform(pos)
        look = AttentionContext(causal=mask is None, mask=mask, bias=bias, qkv_transform=inside)
        x = self.dropout(self.positions.embed(self.embedding(ids), pos))
        for block in self.blocks:
            x = block(x, look)
        return self.norm(x)

    def start(self, batch_size: int = 1, capacity: int | None = None) -> KVCache:
        """An empty cache for so many rows; `capacity` positions each, by default the context."""
        return start_cache(self, self.positions, self.config.n_layers, batch_size, capacity)

    @torch.no_grad()  # the cache is written in place: there is no way back through it
    def advance(self, ids: Tensor, state: Cache, lengths: Tensor | None = None) -> tuple[Tensor, Cache]:
        """The vectors (B, T, D) that are turned into logits, after each of the new tokens (B, T)."""
        ids, lengths = mask_padding(ids, lengths)
        check_batch_size(ids, state.batch_size)
        step = state.extend(ids.shape[1], lengths)
        look = AttentionContext(
            causal=step.causal,
            mask=step.mask,
            bias=step.bias(self.positions),
            qkv_transform=self.positions.qkv_transform(step.pos),
        )
        x = self.dropout(self.positions.embed(self.embedding(ids), step.pos))
        for i, block in enumerate(self.blocks):
            x = block(x, look, step.layer(i))
        return self.norm(x), step.after()

"""BERT: an encoder in which every token attends to every other (Devlin et al. 2019).

    h₀ = norm(embed(ids) + positions + segment)       segment: first or second sentence
    h_l = block_l(h_{l−1})
    pooled = tanh(h_L[CLS] W + b)                     the first token represents the text

`BERT` is the encoder with its pooler; heads are separate classes. `MaskedLM` predicts the tokens behind [MASK].
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.config import BERTConfig
from headway.errors import InputError
from headway.models.base import Model, check_context, tokenizer_of
from headway.models.builders import build_blocks, build_final_norm, build_norm, build_positions
from headway.models.embedding_defaults import EmbeddingDefaults
from headway.nn import AttentionContext, Embedding
from headway.nn.embedding import check_ids, check_shape
from headway.nn.feedforward import ACTIVATIONS
from headway.nn.init import truncated_normal


class BERT(Model):
    config: BERTConfig
    embedding_defaults: EmbeddingDefaults | None = None  # of `headway.embed`, if the model's directory says so

    def __init__(self, config: BERTConfig):
        super().__init__()
        self.config = c = config.resolved()
        self.embedding = Embedding(c.vocab_size, c.d_model, scale=c.scale_embeddings)
        self.positions = build_positions(c, is_causal=False)
        self.segments = nn.Parameter(torch.empty(c.n_segments, c.d_model))
        self.embedding_norm = build_norm(c)()
        self.dropout = nn.Dropout(c.dropout)
        self.blocks = build_blocks(c, c.n_layers, attention_dropout=c.dropout)
        self.norm = build_final_norm(c)
        self.pooler = nn.Linear(c.d_model, c.d_model)
        self.init_weights()

    @property
    def width(self) -> int:
        """Dimension of the hidden state of each token."""
        return self.config.d_model

    def init_weights(self) -> None:
        """Truncated normal with std 0.02, from the released code; the paper does not say."""
        truncated_normal(self, std=0.02)

    def forward(self, ids: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """ids (B, T); mask (B, T), True = a real token; segments (B, T), default 0. → (B, T, D)."""
        check_shape(ids)
        check_context(ids.shape[1], self.positions.limit, self.config.positions)
        check_mask(ids, mask, "mask")
        if segments is not None:
            check_ids(segments, self.config.n_segments, "segments")
            if segments.shape != ids.shape:
                raise InputError(
                    f"segments of shape {tuple(segments.shape)} for ids of shape {tuple(ids.shape)}: one per token"
                )
        ids = ids if mask is None else ids.masked_fill(~mask, 0)  # padding may hold anything
        pos = torch.arange(ids.shape[-1], device=ids.device)[None]
        ctx = AttentionContext(
            mask=None if mask is None else mask[:, None, None],
            bias=self.positions.bias(pos, pos),
            qkv_transform=self.positions.qkv_transform(pos),
        )
        x = self.positions.embed(self.embedding(ids), pos)
        x = x + (self.segments[0] if segments is None else F.embedding(segments, self.segments))
        x = self.dropout(self.embedding_norm(x))
        for block in self.blocks:
            x = block(x, ctx)
        return self.norm(x)

    def pool(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """hidden (B, T, D) → one vector per text (B, D), from its first token, [CLS]. Other encoders need the mask."""
        return torch.tanh(self.pooler(hidden[:, 0]))


class MaskedLM(Model):
    """The masked-LM head on an encoder: dense, activation, norm, then the embedding matrix and a bias.

    As in the released code of Devlin et al. 2019; the activation is the encoder's (GELU if that one is gated).
    """

    config: BERTConfig

    def __init__(self, encoder: BERT):
        super().__init__()
        self.encoder, self.config, self.tokenizer = encoder, encoder.config, tokenizer_of(encoder)
        c, weight = encoder.config, encoder.embedding.weight  # the head has the encoder's device and dtype
        self.dense = nn.Linear(c.d_model, c.d_model, device=weight.device, dtype=weight.dtype)
        self.norm = nn.LayerNorm(c.d_model, eps=c.norm_eps, device=weight.device, dtype=weight.dtype)
        self.output = None if c.tie_embeddings else nn.Parameter(torch.empty_like(weight))
        self.bias = nn.Parameter(weight.new_empty(c.vocab_size))
        self.activation = ACTIVATIONS.get(c.feed_forward, F.gelu)
        self.init_weights()

    def _describe(self) -> list[str]:
        return [self.encoder.display_name, *super()._describe()]

    def init_weights(self) -> None:
        """Only the head: the encoder is already initialised."""
        truncated_normal(self.dense, std=0.02)
        self.norm.reset_parameters()
        nn.init.zeros_(self.bias)
        if self.output is not None:
            nn.init.trunc_normal_(self.output, std=0.02, a=-0.04, b=0.04)

    @property
    def table(self) -> nn.Parameter:
        """The output matrix (V, D)."""
        return self.encoder.embedding.weight if self.output is None else self.output

    def hidden_states(self, ids: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Final hidden states (B, T, D)."""
        return self.transform(self.encoder(ids, mask, segments))

    def transform(self, hidden: Tensor) -> Tensor:
        """The encoder's hidden states (…, D) → those that are unembedded."""
        return self.norm(self.activation(self.dense(hidden)))

    def forward(self, ids: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Logits (B, T, V) for every position."""
        return F.linear(self.hidden_states(ids, mask, segments), self.table, self.bias)


def check_mask(ids: Tensor, mask: Tensor | None, name: str) -> None:
    if mask is not None and (mask.shape != ids.shape or mask.dtype != torch.bool):
        raise InputError(
            f"{name} of shape {tuple(mask.shape)} and type {mask.dtype} for ids of shape {tuple(ids.shape)}: "
            f"one boolean per token, True = may be attended to; use {name}.bool()"
        )

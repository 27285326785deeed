"""Builds the parts of a Transformer stack from a config, for the three families that share `StackConfig`."""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn

from headway.config import GPTConfig, StackConfig, TransformerConfig
from headway.errors import InputError
from headway.memory import check_fits
from headway.models.base import Model, check_context
from headway.nn import (
    ATTENTIONS,
    Block,
    Blocks,
    CrossAttention,
    KVCache,
    Positions,
    SelfAttention,
    make_feed_forward,
    make_norm,
    make_positions,
    masks,
    use_attention,
)
from headway.nn.ablations import mask_after_softmax
from headway.nn.beam_cache import BeamCacheUpdate
from headway.nn.kv_cache import CacheUpdate

CHECKED_CACHE_BYTES = 10**8  # smaller caches are not worth asking the system for its free memory


def build_norm(c: StackConfig) -> Callable[[], nn.Module]:
    return partial(make_norm, c.norm, c.d_model, eps=c.norm_eps, bias=c.bias)


def build_final_norm(c: StackConfig) -> nn.Module:
    """Pre-norm blocks leave the residual stream unnormalised; post-norm blocks end normalised."""
    return build_norm(c)() if c.norm_order == "pre" else nn.Identity()


def build_positions(c: StackConfig, *, is_causal: bool) -> Positions:
    return make_positions(
        c.positions,
        context=c.context,
        d_model=c.d_model,
        d_head=c.d_head,
        n_heads=c.n_heads,
        theta=c.rope_theta,
        is_causal=is_causal,
    )


def build_blocks(c: StackConfig, n_layers: int, *, attention_dropout: float, cross: bool = False) -> Blocks:
    """`attention_dropout` applies to the attention weights: GPT and BERT have it, the 2017 paper does not."""
    options: dict[str, Any] = {"d_head": c.d_head, "n_kv_heads": c.n_kv_heads}
    options |= {"bias": c.bias, "dropout": attention_dropout, "similarity": c.similarity, "scale": c.attention_scale}
    blocks = Blocks(
        Block(
            SelfAttention(c.d_model, c.n_heads, **options),
            make_feed_forward(c.feed_forward, c.d_model, c.d_ff, bias=c.bias),
            build_norm(c),
            norm_order=c.norm_order,
            dropout=c.dropout,
            residual=c.residual == "add",
            cross_attention=CrossAttention(c.d_model, c.n_heads, **options) if cross else None,
        )
        for _ in range(n_layers)
    )
    is_decoder = cross or isinstance(c, GPTConfig)
    if is_decoder and c.attention_mask == "after-softmax":  # type: ignore[attr-defined]
        for block in blocks:
            block.attention.attention_fn = mask_after_softmax
    return blocks if c.attention == "dot-product" else use_attention(blocks, ATTENTIONS[c.attention])


def decoder_mask(
    c: GPTConfig | TransformerConfig, ids: Tensor, lengths: Tensor | None, documents: Tensor | None
) -> tuple[bool, Tensor | None]:
    """`causal` and `mask` of an `AttentionContext`, for all tokens (B, T) at once.

    Padding comes last, so the causal mask hides it. Where that mask is missing or comes too late, padding needs a mask
    of its own.
    """
    is_same_document = None if documents is None else masks.document(documents)[:, None]  # (B, 1, T, T)
    if c.attention_mask == "causal":
        if is_same_document is None:
            return True, None
        return False, is_same_document & masks.causal(ids.shape[-1], device=ids.device)
    is_real = None if lengths is None else masks.padding(lengths, ids.shape[-1])[:, None, None]  # (B, 1, 1, T)
    hidden = [mask for mask in (is_same_document, is_real) if mask is not None]
    return c.attention_mask == "after-softmax", reduce(torch.logical_and, hidden) if hidden else None


def step_mask(c: GPTConfig | TransformerConfig, update: CacheUpdate | BeamCacheUpdate) -> tuple[bool, Tensor | None]:
    """The same for new tokens after a cache. Decoding is causal whatever the config says: later tokens do not exist
    yet, so a model that was trained to see them misses them here."""
    if c.attention_mask == "after-softmax" and update.causal:
        return False, masks.causal(update.pos.shape[1], update.n_slots, device=update.pos.device)
    return update.causal, update.mask


def start_cache(model: Model, positions: Positions, n_layers: int, batch_size: int, capacity: int | None) -> KVCache:
    """An empty KV cache: fixed at `capacity` if given, else starting at the context and growing as positions allow."""
    c = model.config
    assert isinstance(c, StackConfig)
    if batch_size < 0 or (capacity is not None and capacity < 1):
        raise InputError(
            f"start(batch_size={batch_size}, capacity={capacity}): batch_size must be at least 0, capacity at least 1"
        )
    check_context(capacity or 0, positions.limit, c.positions)
    n_positions = capacity or c.context
    n_bytes = 2 * n_layers * batch_size * c.n_kv_heads * n_positions * c.d_head * model.dtype.itemsize
    if model.device.type == "cpu" and n_bytes > CHECKED_CACHE_BYTES:
        subject = f"a KV cache of {batch_size} × {n_positions:,} positions"
        check_fits(n_bytes, subject, advice="pass a smaller capacity or batch_size", error=InputError)
    return KVCache.empty(
        n_layers,
        batch_size,
        c.n_kv_heads,
        n_positions,
        c.d_head,
        limit=capacity or positions.limit,
        dtype=model.dtype,
        device=model.device,
    )


def check_batch_size(ids: Tensor, n_rows: int) -> None:
    if ids.shape[0] != n_rows:
        raise InputError(
            f"ids of shape {tuple(ids.shape)} for a state of {n_rows} rows: "
            f"use start(batch_size={ids.shape[0]}), or reorder the state"
        )

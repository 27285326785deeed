"""Scaled dot-product attention: the definition of the lectures, and faster implementations of it.

    Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V                             Vaswani et al. 2017, eq. 1

`dot_product_attention` is the definition: it computes and returns the full (T × S) weight matrix. `fast_attention`
runs the same function on PyTorch's fused kernels, which never materialise that matrix; `flex_attention` uses
FlexAttention on GPUs. All three share one signature, so `use_attention` can swap them, and tests compare them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.entry_points import load_declared
from headway.errors import InputError
from headway.nn import masks
from headway.nn.kv_cache import LayerCache
from headway.nn.linear import Linear
from headway.nn.positions import QKVTransform


class AttentionFn(Protocol):
    """q (B, H, T, K);  k, v (B, G, S, K), each of the G heads serving H/G query heads;
    mask, True = may be attended to, and bias, added to the scores, broadcast to (B, H, T, S);
    causal: the queries are the last T of the S positions and attend to nothing after themselves.
    Returns the output (B, H, T, K) and the weights (B, H, T, S), or None if they were never materialised.
    """

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        causal: bool = False,
        dropout: float = 0.0,
    ) -> tuple[Tensor, Tensor | None]: ...


def dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention, written for readability. See `AttentionFn` for the arguments."""
    k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    scores = scaled_scores(q, k, bias)  # (B, H, T, S)
    weights = masked_softmax(scores, _with_causal(mask, causal, scores.shape[2], scores.shape[3], scores.device))
    return F.dropout(weights, dropout).to(v.dtype) @ v, weights  # with a float32 bias the scores are float32


def scaled_scores(q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
    """Q Kᵀ / √K, and the bias."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return scores if bias is None else scores + bias


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """The weights (B, H, T, S): each row sums to 1. Queries that may attend to nothing get zeros, not 0/0."""
    if mask is None:
        return scores.softmax(dim=-1)
    all_masked = ~mask.any(dim=-1, keepdim=True)
    scores = scores.masked_fill(~mask, -torch.inf).masked_fill(all_masked, 0.0)
    return scores.softmax(dim=-1).masked_fill(~mask, 0.0)


def fast_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> tuple[Tensor, None]:
    """The same on `F.scaled_dot_product_attention`: memory O(T + S), not O(T · S), unless a mask or bias is given."""
    n_queries, n_keys = q.shape[2], k.shape[2]
    is_causal = (
        causal and n_queries == n_keys and mask is None and bias is None
    )  # built into the kernel: no mask to read
    if n_queries == 1:
        causal = False  # the newest position may attend to everything
    if q.shape[1] != k.shape[1] and n_queries == 1 and mask is None and bias is None:
        # Grouped-query decode step: the queries of a group attend to the same keys, so treat them as the
        # "positions" of that head. The cache is not copied.
        y = F.scaled_dot_product_attention(q.reshape(q.shape[0], k.shape[1], -1, q.shape[3]), k, v, dropout_p=dropout)
        return y.reshape(q.shape), None
    if not is_causal:
        mask = _with_causal(mask, causal, n_queries, n_keys, q.device)
    if bias is not None:
        bias = bias.to(q.dtype)
        mask = bias if mask is None else bias.masked_fill(~mask, -torch.inf)
    y = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=is_causal, enable_gqa=q.shape[1] != k.shape[1]
    )
    return y, None


def flex_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> tuple[Tensor, None]:
    """The same on FlexAttention: the kernel reads the bias itself and skips fully masked blocks.

    GPU only: FlexAttention has no backward on the CPU. Its kernel has no attention dropout either, so calls on the
    CPU or with dropout fall back to `fast_attention`.
    """
    if dropout or not q.is_cuda:
        return fast_attention(q, k, v, mask=mask, bias=bias, causal=causal, dropout=dropout)
    B, H, T, S = *q.shape[:3], k.shape[2]
    kernel, create_block_mask = _flex()
    block_mask = score_mod = None
    if mask is not None:
        full_mask = mask.expand(B, mask.shape[1], T, S)

        def mask_mod(b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
            is_visible = full_mask[b, h, t, s] if full_mask.shape[1] > 1 else full_mask[b, 0, t, s]
            return is_visible & (s <= t + S - T) if causal else is_visible

        block_mask = create_block_mask(mask_mod, B, H if mask.shape[1] > 1 else None, T, S, device=q.device)
    elif causal:
        block_mask = _causal_block_mask(T, S, q.device)
    if bias is not None:
        full_bias = bias.to(q.dtype).expand(bias.shape[0], H, T, S)

        def score_mod(score: Tensor, b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
            return score + (full_bias[b, h, t, s] if full_bias.shape[0] > 1 else full_bias[0, h, t, s])

    # With a bias, or in float32, the kernel's default tiles need more shared memory than a Hopper GPU has.
    kernel_options = None if bias is None else {"BLOCK_M": 128, "BLOCK_N": 64, "num_stages": 2}
    if q.dtype == torch.float32:
        kernel_options = {"BLOCK_M": 32, "BLOCK_N": 32, "num_stages": 1}
    enable_gqa = k.shape[1] != H
    y = kernel(
        q, k, v, score_mod=score_mod, block_mask=block_mask, enable_gqa=enable_gqa, kernel_options=kernel_options
    )
    return y, None


@cache
def _flex() -> tuple[Callable[..., Tensor], Callable[..., Any]]:
    from torch.nn.attention.flex_attention import create_block_mask
    from torch.nn.attention.flex_attention import flex_attention as kernel

    return torch.compile(kernel, dynamic=False), torch.compile(create_block_mask, dynamic=False)


@lru_cache(maxsize=16)
def _causal_block_mask(n_queries: int, n_keys: int, device: torch.device) -> Any:
    """The blocks of scores that causality leaves: equal for every batch, head and layer, so built once."""
    _, create_block_mask = _flex()

    def mask_mod(b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        return s <= t + n_keys - n_queries

    return create_block_mask(mask_mod, None, None, n_queries, n_keys, device=device)


def repeat_heads(x: Tensor, n_heads: int) -> Tensor:
    """(B, G, S, K) → (B, H, S, K): key/value head g serves H/G consecutive query heads."""
    return x if x.shape[1] == n_heads else x.repeat_interleave(n_heads // x.shape[1], dim=1)


def _with_causal(mask: Tensor | None, causal: bool, n_queries: int, n_keys: int, device: torch.device) -> Tensor | None:
    if not causal:
        return mask
    causal_mask = masks.causal(n_queries, n_keys, device=device)
    return causal_mask if mask is None else mask & causal_mask


# ── other scores ──────────────────────────────────────────────────────────────────────────────────────────────────
#
# similarity   scale     score            standard deviation for random q and k with entries of variance 1
# dot          sqrt      q·k / √K         1: the definition above
# dot          none      q·k              √K, so the softmax saturates as heads get wider
# cosine       sqrt      √K cos(q, k)     1
# cosine       none      cos(q, k)        1/√K, so the softmax is nearly uniform
#
# Every attention function divides by √K, so the queries are multiplied by what is missing.


def scale_queries(q: Tensor, similarity: str, scale: str) -> Tensor:
    """Queries (B, H, T, K) for which q·k / √K, with keys of `scale_keys`, is the score in the table above."""
    if similarity == "dot":
        return q if scale == "sqrt" else q * math.sqrt(q.shape[-1])
    return F.normalize(q, dim=-1) * (q.shape[-1] if scale == "sqrt" else math.sqrt(q.shape[-1]))


def scale_keys(k: Tensor, similarity: str) -> Tensor:
    return k if similarity == "dot" else F.normalize(k, dim=-1)


ATTENTIONS: dict[str, AttentionFn] = {
    "reference": dot_product_attention,
    "fast": fast_attention,
    "flex": flex_attention,
}


@dataclass(frozen=True)
class AttentionContext:
    """Mask, bias and positions of one forward pass, computed once by the model and shared by all its layers."""

    causal: bool = False
    mask: Tensor | None = None  # (B or 1, 1, T, S)
    bias: Tensor | None = None  # (B or 1, H, T, S)
    qkv_transform: QKVTransform | None = None  # applied to q, k and v in every layer


class SelfAttention(nn.Module):
    """Multi-head self-attention; grouped-query with fewer key/value heads (Ainslie et al. 2023).

    W_Q, W_K and W_V are stacked in that order into one matrix of (H + 2G) · K rows: one matmul instead of three.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        d_head: int | None = None,
        n_kv_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        similarity: str = "dot",
        scale: str = "sqrt",
    ):
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads or n_heads
        self.d_head = d_head or d_model // n_heads
        self.similarity, self.scale = similarity, scale
        self.heads = (self.n_heads, self.n_kv_heads, self.n_kv_heads)  # number of heads of q, k and v
        self.qkv = Linear(d_model, [n * self.d_head for n in self.heads], bias=bias)
        self.out = Linear(self.n_heads * self.d_head, d_model, bias=bias)
        self.dropout = dropout
        self.attention_fn: AttentionFn = fast_attention

    def forward(self, x: Tensor, ctx: AttentionContext, cache: LayerCache | None = None) -> Tensor:  # (B, T, D)
        return self.out(self.attend(self.qkv(x), ctx, cache))

    def attend(self, qkv: Tensor, ctx: AttentionContext, cache: LayerCache | None = None) -> Tensor:
        """The projections (B, T, (H + 2G) · K) → the outputs of all heads side by side (B, T, H · K)."""
        qkv = qkv.unflatten(-1, (-1, self.d_head)).transpose(1, 2)  # (B, H + 2G, T, K)
        q, k, v = qkv.split(self.heads, dim=1)
        if ctx.qkv_transform is not None:
            q, k, v = ctx.qkv_transform(q, k, v)
        q, k = scale_queries(q, self.similarity, self.scale), scale_keys(k, self.similarity)
        if cache is not None:
            k, v = cache.append(k, v)  # (B, G, S, K): all positions so far
        dropout = self.dropout if self.training else 0.0
        y, _ = self.attention_fn(q, k, v, mask=ctx.mask, bias=ctx.bias, causal=ctx.causal, dropout=dropout)
        return _merge_heads(y)


class CrossAttention(nn.Module):
    """Multi-head cross-attention: queries from the decoder, keys and values from the encoder.

    Keys and values depend only on the source: `project` computes them once per sentence, every step reuses them.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        d_head: int | None = None,
        n_kv_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        similarity: str = "dot",
        scale: str = "sqrt",
    ):
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads or n_heads
        self.d_head = d_head or d_model // n_heads
        self.similarity, self.scale = similarity, scale
        self.q = Linear(d_model, self.n_heads * self.d_head, bias=bias)
        self.kv = Linear(d_model, [self.n_kv_heads * self.d_head] * 2, bias=bias)
        self.out = Linear(self.n_heads * self.d_head, d_model, bias=bias)
        self.dropout = dropout
        self.attention_fn: AttentionFn = fast_attention

    def project(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """source (B, S, D) → keys and values (B, G, S, K)."""
        kv = self.kv(source).unflatten(-1, (-1, self.d_head)).transpose(1, 2)  # (B, 2G, S, K)
        keys, values = kv.chunk(2, dim=1)
        return scale_keys(keys, self.similarity), values

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:  # x (B, T, D)
        q = self.q(x).unflatten(-1, (-1, self.d_head)).transpose(1, 2)  # (B, H, T, K)
        q = scale_queries(q, self.similarity, self.scale)
        dropout = self.dropout if self.training else 0.0
        y, _ = self.attention_fn(q, keys, values, mask=mask, dropout=dropout)
        return self.out(_merge_heads(y))


def _merge_heads(y: Tensor) -> Tensor:
    """(B, H, T, K) → (B, T, H · K)"""
    return y.transpose(1, 2).flatten(2)


M = TypeVar("M", bound=nn.Module)


def use_attention(model: M, attend: str | AttentionFn) -> M:
    """Make every attention layer of a model use this function; returns the model.

    "reference", "fast" and "flex" compute the same. A function of your own, or its registered name, may not.
    """
    load_declared("attention", attend, ATTENTIONS)
    if isinstance(attend, str) and attend not in ATTENTIONS:
        raise InputError(f"no attention named {attend!r}; choose from {', '.join(ATTENTIONS)}")
    function = ATTENTIONS[attend] if isinstance(attend, str) else attend
    for module in model.modules():
        if isinstance(module, SelfAttention | CrossAttention):
            module.attention_fn = function
    return model

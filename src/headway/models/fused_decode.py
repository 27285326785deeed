"""Runs a decode step of a GPT as five Triton kernels per layer, seven for several rows; the model is unchanged.

    qkv = norm1(x) W_qkvᵀ + b               decode_linear.py
    y = attention of the new token          decode_attention.py: positions, cache write, softmax
    x = x + y W_outᵀ + b                    decode_linear.py
    h = act(norm2(x) W_upᵀ + b)             decode_linear.py
    x = x + h W_downᵀ + b                   decode_linear.py

`GPT.step` with one token per row is the definition; its thirty kernels per layer take much longer to launch than to
run. Between the kernels x is float32. The kernels are Triton's, which comes with PyTorch's CUDA builds.
"""

import math
import os
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from shutil import which
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.models.builders import build_positions
from headway.models.gpt import GPT
from headway.nn.attention import SelfAttention, dot_product_attention, fast_attention, flex_attention
from headway.nn.block import Block, Blocks
from headway.nn.embedding import Embedding
from headway.nn.feedforward import ACTIVATIONS, FeedForward, GatedFeedForward
from headway.nn.kv_cache import KVCache
from headway.nn.linear import Linear
from headway.nn.positions import (
    ALiBi,
    Learned,
    PerLayer,
    Positions,
    Relative,
    Rotary,
    Sinusoidal,
    alibi_slopes,
    frequencies,
)

SAME_ATTENTION = (dot_product_attention, fast_attention, flex_attention)
POSITIONS = (Positions, Sinusoidal, Learned, PerLayer, Rotary, Relative, ALiBi)
FUSED_PARTS = {
    *(GPT, Embedding, Blocks, Block, SelfAttention, Linear, FeedForward, GatedFeedForward, *POSITIONS),
    *(nn.LayerNorm, nn.RMSNorm, nn.Identity, nn.Dropout),
}
METHODS = {kind: frozenset(name for name in dir(kind) if callable(getattr(kind, name))) for kind in FUSED_PARTS}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_ATTENTION_PROGRAMS = 65_535  # rows times key/value heads: the second dimension of a grid


def why_not_fused(model: object) -> str | None:
    """Why a model cannot take the fused path; None if it can. The rule, in one place: a GPT in eval mode, made of our
    own parts as its config says, with pre-norm blocks, ordinary attention and residuals, and an even head width.
    Positions, norm, feed-forward, heads and biases may be any."""
    if type(model) is not GPT:
        return f"{type(model).__name__} is not a GPT"
    c = model.config
    rules = {
        "norm_order": (c.norm_order, "pre"),
        "residual": (c.residual, "add"),
        "similarity": (c.similarity, "dot"),
        "attention_scale": (c.attention_scale, "sqrt"),
        "attention_mask": (c.attention_mask, "causal"),
    }
    for name, (value, fused) in rules.items():
        if value != fused:
            return f"{name}={value!r}, not {fused!r}"
    if c.d_head % 2:
        return f"d_head={c.d_head} is odd"
    if model.dtype not in DTYPES:
        return f"dtype {model.dtype}"
    if torch.is_autocast_enabled(model.device.type):
        return "autocast is on"
    return _exchanged_part(model) or (None if has_triton() else "Triton or a C compiler is missing")


def _exchanged_part(model: GPT) -> str | None:
    """What in a GPT is not as its config says: the kernels would compute what the config says."""
    c = model.config
    for module in model.modules():
        kind = type(module)
        if kind not in FUSED_PARTS:
            return f"{kind.__name__} is not one of our own parts"
        if module.training:
            return "it is in training mode"
        if module._forward_hooks or module._forward_pre_hooks:
            return "it has hooks"
        if not METHODS[kind].isdisjoint(module.__dict__):
            return f"a method of {kind.__name__} has been exchanged"
        if isinstance(module, nn.LayerNorm | nn.RMSNorm) and (module.weight is None or module.eps != c.norm_eps):
            return "a norm is not as the config says"
        if isinstance(module, Linear) and module.linear_fn is not F.linear:
            return "a matrix product has been exchanged"
    if model.unembed_fn is not F.linear:
        return "a matrix product has been exchanged"
    for block in model.blocks:
        attention, feed_forward = block.attention, block.feed_forward
        if attention.attention_fn not in SAME_ATTENTION:
            return "its attention function has been exchanged"
        if isinstance(feed_forward, FeedForward) and feed_forward.activation is not ACTIVATIONS.get(c.feed_forward):
            return "an activation has been exchanged"
        sizes = (attention.n_heads, attention.n_kv_heads, attention.d_head, attention.similarity, attention.scale)
        if sizes != (c.n_heads, c.n_kv_heads, c.d_head, "dot", "sqrt") or not (block.norm_first and block.residual):
            return "a block is not as the config says"
    with torch.device("meta"):
        built = build_positions(c, is_causal=True)
    if type(model.positions) is not type(built) or _settings(model.positions) != _settings(built):
        return "the positions are not as the config says"
    if model.embedding.scale != (math.sqrt(c.d_model) if c.scale_embeddings else 1.0):
        return "the embedding is not as the config says"
    parameters = list(model.parameters())
    if any(p.dtype != model.dtype or p.device != model.device or not p.is_contiguous() for p in parameters):
        return "its weights differ in dtype or device, or are not contiguous"
    return None


def _settings(module: nn.Module) -> dict[str, Any]:
    """The plain numbers of a part."""
    return {name: value for name, value in module.__dict__.items() if type(value) in (int, float)}


@cache
def has_triton() -> bool:
    """Whether kernels can be compiled: Triton needs a C compiler for the code that launches them."""
    return find_spec("triton") is not None and any(map(which, (os.environ.get("CC", "cc"), "gcc", "clang")))


def fused_decode_step(model: object, cache: KVCache) -> "FusedDecodeStep | None":
    """The fused step of a model, or None if it takes the plain path."""
    is_too_large = cache.batch_size * cache.keys.shape[2] > MAX_ATTENTION_PROGRAMS
    if is_too_large or why_not_fused(model) is not None:
        return None
    return FusedDecodeStep(cast(GPT, model), cache)


class FusedDecodeStep:
    """Callable: one token per row through a GPT and its KV cache. For caches of one batch size and capacity. It holds
    scratch memory and tables, but not the model."""

    def __init__(self, model: GPT, cache: KVCache):
        from headway.nn.kernels.decode_attention import DecodeAttention
        from headway.nn.kernels.decode_linear import SplitSums

        c = model.config
        tables = position_tables(model, cache.capacity)
        self.attention = DecodeAttention(
            cache.batch_size, c.n_heads, c.n_kv_heads, c.d_head, cache.capacity, tables, model.device
        )
        self.scratch = SplitSums()
        self.activation = "none" if c.feed_forward == "swiglu" else c.feed_forward

    @torch.no_grad()
    def __call__(self, model: GPT, ids: Tensor, cache: KVCache) -> tuple[Tensor, KVCache]:
        """ids (B, 1), written at `cache.length` (B,) → float32 logits (B, 1, V), and the cache with one more token."""
        lengths = cache.length
        pos = lengths.clamp(max=cache.capacity - 1)[:, None]  # finished rows stay in the last slot
        x = model.positions.embed(model.embedding(ids), pos)[:, 0].float()  # (B, D)
        for i, block in enumerate(model.blocks):
            attention, feed_forward = block.attention, block.feed_forward
            qkv = self._linear(x, attention.qkv, norm=block.norm1)
            y = self.attention(qkv, cache.keys[i], cache.values[i], lengths)
            x = self._linear(y, attention.out, residual=x, dtype=torch.float32)
            if isinstance(feed_forward, GatedFeedForward):
                h = self._linear(x, feed_forward.gate_up, norm=block.norm2, gated=True)
            else:
                h = self._linear(x, feed_forward.up, norm=block.norm2, activation=self.activation)
            x = self._linear(h, feed_forward.down, residual=x, dtype=torch.float32)
        logits = self._product(x, model.embedding.table, None, norm=model.norm, dtype=torch.float32)
        return logits[:, None], replace(cache, length=lengths + 1)

    def _linear(self, x: Tensor, linear: Linear, **options: Any) -> Tensor:
        return self._product(x, linear.weight, linear.bias, **options)

    def _product(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, norm: nn.Module | None = None, **options: Any
    ) -> Tensor:
        from headway.nn.kernels.decode_linear import fused_linear
        from headway.nn.kernels.decode_norm import norm_rows

        if norm is not None and len(x) > 1:  # one row is normalised on the way
            x, norm = norm_rows(x, norm, weight.dtype), None
        return fused_linear(x, weight, bias, norm=norm, scratch=self.scratch, **options)


def position_tables(model: GPT, capacity: int) -> Any:
    """What the positions of a model do inside attention, for every position of the cache."""
    from headway.nn.kernels.decode_attention import PositionTables

    positions, device = model.positions, model.device
    pos = torch.arange(capacity, device=device)
    match positions:
        case Rotary():
            angle = pos[:, None].float() * frequencies(positions.d_head, positions.theta, device)
            return PositionTables(cos=angle.cos(), sin=angle.sin())
        case PerLayer():
            return PositionTables(offsets=positions.weight.detach())
        case Relative():  # its distances end at 0 in a decoder
            return PositionTables(bias=positions.weight.detach())
        case ALiBi():
            distance = pos - (capacity - 1)
            return PositionTables(bias=alibi_slopes(positions.n_heads, device)[:, None] * distance)
    return PositionTables()

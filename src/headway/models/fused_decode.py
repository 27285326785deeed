"""A decode step of a GPT in five kernels per layer, from outside: the model itself does not change.

    qkv = norm1(x) W_qkvᵀ + b               decode_linear.py
    y = attention of the new token          decode_attention.py: positions, cache write, softmax
    x = x + y W_outᵀ + b                    decode_linear.py
    h = act(norm2(x) W_upᵀ + b)             decode_linear.py
    x = x + h W_downᵀ + b                   decode_linear.py

`GPT.step` with one token per row is the definition; its thirty kernels per layer take much longer to launch than to
run. Between the kernels x is float32. The kernels are Triton's, which comes with PyTorch's CUDA builds.
"""

import os
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from shutil import which
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.models.gpt import GPT
from headway.nn.attention import dot_product_attention, fast_attention, flex_attention
from headway.nn.feedforward import GatedFeedForward
from headway.nn.kv_cache import KVCache
from headway.nn.linear import Linear
from headway.nn.positions import ALiBi, PerLayer, Relative, Rotary, alibi_slopes, frequencies

SAME_ATTENTION = (dot_product_attention, fast_attention, flex_attention)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def why_not_fused(model: object) -> str | None:
    """Why a model cannot take the fused path; None if it can. The rule, in one place: a pre-norm GPT with ordinary
    attention and residuals, plain matrices, an even head width, and any positions, norm and feed-forward."""
    if type(model) is not GPT:
        return f"{type(model).__name__} is not a GPT"
    c = model.config
    block_rules = {
        "norm_order": (c.norm_order, "pre"),
        "residual": (c.residual, "add"),
        "similarity": (c.similarity, "dot"),
        "attention_scale": (c.attention_scale, "sqrt"),
        "attention_mask": (c.attention_mask, "causal"),
    }
    for name, (value, fused) in block_rules.items():
        if value != fused:
            return f"{name}={value!r}, not {fused!r}"
    if c.d_head % 2:
        return f"d_head={c.d_head} is odd"
    if model.dtype not in DTYPES:
        return f"dtype {model.dtype}"
    if model.training:
        return "it is in training mode"
    for block in model.blocks:
        if block.attention.attention_fn not in SAME_ATTENTION:
            return "its attention function has been exchanged"
    for module in model.modules():
        if module._forward_hooks or module._forward_pre_hooks:
            return "it has hooks"
        if isinstance(module, torch.nn.Linear) and (type(module) is not Linear or module.linear_fn is not F.linear):
            return "a matrix product has been exchanged"
    if model.unembed_fn is not F.linear:
        return "a matrix product has been exchanged"
    return None if has_triton() else "Triton or a C compiler is missing"


@cache
def has_triton() -> bool:
    """Whether kernels can be compiled: Triton needs a C compiler for the code that launches them."""
    return find_spec("triton") is not None and any(map(which, (os.environ.get("CC", "cc"), "gcc", "clang")))


def fused_decode_step(model: object, cache: KVCache) -> "FusedDecodeStep | None":
    """The fused step of a model, or None if it takes the plain path."""
    return FusedDecodeStep(cast(GPT, model), cache) if why_not_fused(model) is None else None


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
        x = model.positions.embed(model.embedding(ids), lengths[:, None])[:, 0].float()  # (B, D)
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
        self, x: Tensor, weight: Tensor, bias: Tensor | None, norm: torch.nn.Module | None = None, **options: Any
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

"""Which models take the fused decode step (fused_decode.py), as one rule: `why_not_fused`.

The kernels compute what a config says. So every part of the model must be Headway's own, in its place, with plain
parameters and the settings of the config; and there must be kernels for the model's device and dtype.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as _module

from headway.compilers import warn_of_slow_path, why_no_triton
from headway.models.builders import build_positions
from headway.models.gpt import GPT
from headway.nn.attention import SelfAttention, dot_product_attention, fast_attention, flex_attention
from headway.nn.block import Block, Blocks
from headway.nn.embedding import Embedding
from headway.nn.feedforward import ACTIVATIONS, FeedForward, GatedFeedForward
from headway.nn.kernels.cpu_decode import why_no_library as why_no_cpu_library
from headway.nn.kernels.cpu_linear import CPULinear, onednn_linear
from headway.nn.linear import Linear
from headway.nn.positions import ALiBi, Learned, PerLayer, Positions, Relative, Rotary, Sinusoidal

EQUIVALENT_ATTENTION_FNS = (dot_product_attention, fast_attention, flex_attention)
GLOBAL_HOOKS = (_module._global_forward_hooks, _module._global_forward_pre_hooks)  # of all modules
NORMS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "none": nn.Identity}
POSITIONS = (Positions, Sinusoidal, Learned, PerLayer, Rotary, Relative, ALiBi)
FUSED_PARTS = {
    *(GPT, Embedding, Blocks, Block, SelfAttention, Linear, FeedForward, GatedFeedForward, *POSITIONS),
    *(nn.LayerNorm, nn.RMSNorm, nn.Identity, nn.Dropout),
}
METHOD_NAMES = {kind: frozenset(name for name in dir(kind) if callable(getattr(kind, name))) for kind in FUSED_PARTS}
DTYPES = {"cpu": (torch.float32,), "cuda": (torch.float32, torch.bfloat16, torch.float16)}


def why_not_fused(model: object) -> str | None:
    """Why a model cannot take the fused path; None if it can. The rule, in one place: a GPT in eval mode, made of our
    own parts as its config says, with pre-norm blocks, ordinary attention and residuals, and an even head width.
    Positions, norm, feed-forward, heads and biases may be any. On a CPU in float32."""
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
    if model.device.type not in DTYPES:
        return f"there are no kernels for {model.device.type}"
    if model.dtype not in DTYPES[model.device.type]:
        return f"dtype {model.dtype} on {model.device.type}"
    if torch.is_autocast_enabled(model.device.type):
        return "autocast is on"
    return _why_parts_do_not_fit(model) or missing_kernels(model.device)


def _why_parts_do_not_fit(model: GPT) -> str | None:
    """Which part of a GPT has been replaced: the kernels compute what the config says."""
    c = model.config
    for module in model.modules():
        kind = type(module)
        if kind not in FUSED_PARTS:
            return f"{kind.__name__} is not one of our own parts"
        if module.training:
            return "it is in training mode"
        if not METHOD_NAMES[kind].isdisjoint(module.__dict__):
            return f"a method of {kind.__name__} has been replaced"
        if isinstance(module, nn.LayerNorm | nn.RMSNorm) and (module.weight is None or module.eps != c.norm_eps):
            return "a norm is not as the config says"
        if isinstance(module, Linear) and not _is_plain_product(module.linear_fn):
            return "a matrix product has been replaced"
    if any(GLOBAL_HOOKS) or any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        return "it has hooks"
    if not _is_plain_product(model.unembed_fn):
        return "a matrix product has been replaced"
    for part, kind in _expected_parts(model):
        if type(part) is not kind:
            return f"a {type(part).__name__} is in the place of a {kind.__name__}"
    for block in model.blocks:
        attention, feed_forward = block.attention, block.feed_forward
        if attention.attention_fn not in EQUIVALENT_ATTENTION_FNS:
            return "its attention function has been replaced"
        if isinstance(feed_forward, FeedForward) and feed_forward.activation is not ACTIVATIONS.get(c.feed_forward):
            return "an activation has been replaced"
        sizes = (attention.n_heads, attention.n_kv_heads, attention.d_head, attention.similarity, attention.scale)
        if sizes != (c.n_heads, c.n_kv_heads, c.d_head, "dot", "sqrt") or not (block.norm_first and block.residual):
            return "a block is not as the config says"
    with torch.device("meta"):
        built = build_positions(c, is_causal=True)
    if type(model.positions) is not type(built) or _settings(model.positions) != _settings(built):
        return "the positions are not as the config says"
    if model.embedding.scale != (math.sqrt(c.d_model) if c.scale_embeddings else 1.0):
        return "the embedding is not as the config says"
    for weight in _weights(model):
        if type(weight) is not nn.Parameter:
            return f"a weight is a {type(weight).__name__}, not a plain parameter"
        if weight.dtype != model.dtype or weight.device != model.device or not weight.is_contiguous():
            return "its weights differ in dtype or device, or are not contiguous"
    return None


def _is_plain_product(linear_fn: object) -> bool:
    """`F.linear`, or a product of ours that computes the same: decoding or training in another thread may use it."""
    return linear_fn in (F.linear, onednn_linear) or isinstance(linear_fn, CPULinear)


def _expected_parts(model: GPT) -> Iterator[tuple[nn.Module, type[nn.Module]]]:
    """Every part that the fused step replaces, with the class that the config asks for."""
    norm = NORMS[model.config.norm]
    feed_forward_kind = GatedFeedForward if model.config.feed_forward == "swiglu" else FeedForward
    yield from ((model.embedding, Embedding), (model.dropout, nn.Dropout), (model.norm, norm))
    for block in model.blocks:
        yield from ((block.dropout, nn.Dropout), (block.norm1, norm), (block.norm2, norm))
        yield from ((block.attention, SelfAttention), (block.feed_forward, feed_forward_kind))
        yield from ((block.attention.qkv, Linear), (block.attention.out, Linear))
        if isinstance(block.feed_forward, GatedFeedForward):
            yield block.feed_forward.gate_up, Linear
        else:
            yield block.feed_forward.up, Linear
        yield block.feed_forward.down, Linear


def _weights(model: GPT) -> Iterator[Tensor]:
    """Every tensor that a decode step reads, also one that is no parameter."""
    for module in model.modules():
        for name in ("weight", "bias", "output"):
            if isinstance(weight := getattr(module, name, None), Tensor):
                yield weight


def _settings(module: nn.Module) -> dict[str, Any]:
    """The plain numbers of a part."""
    return {name: value for name, value in module.__dict__.items() if type(value) in (int, float)}


def missing_kernels(device: torch.device) -> str | None:
    """Why there are no kernels for a device, with one warning for each reason."""
    reason = why_no_cpu_library() if device.type == "cpu" else why_no_triton(device)
    if reason is not None:
        warn_of_slow_path(reason)
    return reason

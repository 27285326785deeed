"""Runs a decode step of a GPT as five fused operations per layer; the model is unchanged.

    qkv = norm1(x) W_qkvᵀ + b
    y = attention of the new token          positions, cache write, softmax
    x = x + y W_outᵀ + b
    h = act(norm2(x) W_upᵀ + b)
    x = x + h W_downᵀ + b

`GPT.step` with one token per row is the definition. On a GPU its thirty operations per layer take longer to launch than
to run; on a CPU the work between its products takes a fifth of the step.

On a GPU the kernels are Triton's, which comes with PyTorch's CUDA builds: decode_linear.py, decode_attention.py and,
for several rows, decode_norm.py. Between them x is float32. On a CPU they are in C: cpu_decode.c.
"""

import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from operator import is_
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as _module

from headway.models.base import LanguageModel, Model, Seq2SeqLM
from headway.models.builders import build_positions
from headway.models.gpt import GPT
from headway.nn.attention import SelfAttention, dot_product_attention, fast_attention, flex_attention
from headway.nn.block import Block, Blocks
from headway.nn.embedding import Embedding
from headway.nn.feedforward import ACTIVATIONS, FeedForward, GatedFeedForward
from headway.nn.kernels.c_library import c_compiler
from headway.nn.kernels.cpu_decode import MAX_FUSED_ROWS, CPUProgram
from headway.nn.kernels.cpu_decode import why_no_library as why_no_cpu_library
from headway.nn.kernels.cpu_linear import MIN_PACKED_ROWS, CPUKernels, CPULinear, onednn_linear
from headway.nn.kernels.decode_parts import PositionTables
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
from headway.nn.state import State

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
MAX_GRID_Y = 65_535  # rows times key/value heads: the second dimension of a grid


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


class WeightAddresses:
    """Where a model's weights are in memory: kernels that hold their addresses must not run after they have moved."""

    def __init__(self, model: GPT):
        modules = list(model.modules())
        self._tables: list[dict[str, Any]] = [table for m in modules for table in (m._parameters, m._modules)]
        self._modules = modules
        self._hooks = [hooks for module in modules for hooks in (module._forward_hooks, module._forward_pre_hooks)]
        self._parts = self._current_parts()
        self._weights = [part for part in self._parts if isinstance(part, Tensor)]
        self._addresses = self._current_addresses()

    def still_hold(self) -> bool:
        """Whether no weight or module has been replaced or moved, no hook added, and the model is still in eval mode: a
        generation may be paused at any token. In few calls, since a step of a small model takes some 100 µs."""
        parts = self._current_parts()
        if len(parts) != len(self._parts) or not all(map(is_, parts, self._parts)):
            return False
        is_changed = any(self._hooks) or any(GLOBAL_HOOKS) or any(module.training for module in self._modules)
        return not is_changed and self._current_addresses() == self._addresses

    def _current_parts(self) -> list[Any]:
        return [part for table in self._tables for part in table.values()]

    def _current_addresses(self) -> list[int]:
        return [weight.data_ptr() for weight in self._weights]


def _settings(module: nn.Module) -> dict[str, Any]:
    """The plain numbers of a part."""
    return {name: value for name, value in module.__dict__.items() if type(value) in (int, float)}


def missing_kernels(device: torch.device) -> str | None:
    """Why there are no kernels for a device, with one warning for each reason."""
    reason = why_no_cpu_library() if device.type == "cpu" else why_no_triton()
    if reason is not None:
        _warn_once(reason)
    return reason


@cache
def _warn_once(reason: str) -> None:
    warnings.warn(f"{reason}, so decoding uses PyTorch's operations, which is slower", stacklevel=2)


@cache
def why_no_triton() -> str | None:
    """Why Triton's kernels cannot be compiled here, by trying a small one; None if they can."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    if c_compiler() is None:
        return "Triton needs a C compiler ($CC, cc, gcc or clang)"
    try:
        from headway.nn.kernels.decode_norm import norm_rows

        norm_rows(torch.zeros(1, 16, device="cuda"), nn.Identity(), torch.float32)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of Triton, the compiler, the linker or the file system
        return f"Triton cannot compile kernels ({type(error).__name__}: {str(error).strip()[:200]})"
    return None


def decode_layers(model: GPT, kernels: Any, x: Tensor, cache: KVCache, lengths: Tensor) -> Tensor:
    """Embeddings x (B, D) of one token per row, written at `lengths` (B,) of the cache → float32 logits (B, V)."""
    kind = model.config.feed_forward
    options: dict[str, Any] = {"gated": True} if kind == "swiglu" else {"activation": kind}
    for i, block in enumerate(model.blocks):
        attention, feed_forward = block.attention, block.feed_forward
        qkv = kernels.linear(x, attention.qkv.weight, attention.qkv.bias, norm=block.norm1)
        y = kernels.attention(qkv, cache.keys[i], cache.values[i], lengths)
        x = kernels.linear(y, attention.out.weight, attention.out.bias, residual=x, dtype=torch.float32)
        up = feed_forward.gate_up if isinstance(feed_forward, GatedFeedForward) else feed_forward.up
        h = kernels.linear(x, up.weight, up.bias, norm=block.norm2, **options)
        x = kernels.linear(h, feed_forward.down.weight, feed_forward.down.bias, residual=x, dtype=torch.float32)
    return kernels.linear(x, model.embedding.table, None, norm=model.norm, dtype=torch.float32)


def triton_decode_step(model: Model, cache: KVCache) -> "TritonDecodeStep | None":
    """The fused step of a model, or None if it takes the plain path."""
    is_too_large = cache.batch_size * cache.keys.shape[2] > MAX_GRID_Y
    if is_too_large or model.device.type != "cuda" or why_not_fused(model) is not None:
        return None
    return TritonDecodeStep(cast(GPT, model), cache)


class TritonDecodeStep:
    """Callable: one token per row through a GPT and its KV cache. For caches of one batch size and capacity. It holds
    scratch memory and tables, but not the model."""

    def __init__(self, model: GPT, cache: KVCache):
        from headway.nn.kernels.triton_decode import TritonOperations

        c, tables = model.config, position_tables(model, cache.capacity)
        sizes = (cache.batch_size, c.n_heads, c.n_kv_heads, c.d_head, cache.capacity)
        self._kernels = TritonOperations(*sizes, tables, model.device)

    @torch.no_grad()
    def __call__(self, model: GPT, ids: Tensor, cache: KVCache) -> tuple[Tensor, KVCache]:
        """ids (B, 1), written at `cache.length` (B,) → float32 logits (B, 1, V), and the cache with one more token."""
        pos = cache.length.clamp(max=cache.capacity - 1)[:, None]  # finished rows stay in the last slot
        x = model.positions.embed(model.embedding(ids), pos)[:, 0].float()  # (B, D)
        logits = decode_layers(model, self._kernels, x, cache, cache.length)
        return logits[:, None], replace(cache, length=cache.length + 1)


class CPUDecodeStep:
    """The same on a CPU, for one KV cache. It holds raw pointers to the weights and to the cache (see `fits`)."""

    def __init__(self, model: GPT, cache: KVCache):
        c, B = model.config, cache.batch_size
        tables = position_tables(model, cache.capacity)
        self._keys, self._capacity, self._addresses = cache.keys, cache.capacity, WeightAddresses(model)
        self._x, self._lengths = torch.empty(B, c.d_model, dtype=torch.float32), torch.empty_like(cache.length)
        self._program = CPUProgram(B, c.n_heads, c.n_kv_heads, c.d_head, tables)
        decode_layers(model, self._program, self._x, cache, self._lengths)

    @property
    def is_current(self) -> bool:
        """Whether the model has the weights, modules and hooks that it had."""
        return self._addresses.still_hold()

    def fits(self, cache: KVCache) -> bool:
        """Whether it can write the next token to this cache."""
        is_same_memory = cache.keys.data_ptr() == self._keys.data_ptr() and cache.capacity == self._capacity
        return is_same_memory and self._program.n_threads == torch.get_num_threads()

    @torch.no_grad()
    def __call__(self, model: GPT, ids: Tensor, cache: KVCache) -> tuple[Tensor, KVCache]:
        """ids (B, 1), for a cache with a free slot → logits (B, 1, V), and the cache with one more token."""
        self._x.copy_(model.positions.embed(model.embedding(ids), cache.length[:, None])[:, 0])
        self._lengths.copy_(cache.length)
        logits = torch.empty(cache.batch_size, model.config.vocab_size, dtype=torch.float32)
        self._program.run(logits)
        return logits[:, None], replace(cache, length=cache.length + 1, bound=cache.bound + 1)


class FastStep:
    """`model.step` with the fastest kernels for a batch: on a CPU decode steps of a few rows are fused, and products
    are those of cpu_linear.py. On a GPU it is `model.step`; fused steps there are part of a CUDA graph."""

    def __init__(self, model: LanguageModel | Seq2SeqLM, n_rows: int):
        self.model = model
        self.is_fusable = model.device.type == "cpu" and why_not_fused(model) is None
        # Packing weights takes as long as seven steps of one row: a prefill alone does not repay it.
        max_unpacked_rows = MAX_FUSED_ROWS if self.is_fusable else MIN_PACKED_ROWS - 1
        self._kernels = CPUKernels(model, pack=n_rows > max_unpacked_rows)
        self._fused: CPUDecodeStep | None = None
        self.n_fused_steps = 0

    def __call__(
        self, ids: Tensor, state: State, lengths: Tensor | None = None, *, last: bool = True
    ) -> tuple[Tensor, State]:
        """ids (B, T) → logits (B, 1, V) of the last tokens, or with last=False of all, and the state after them."""
        is_decode_step = lengths is None and ids.shape[1] == 1 and len(ids) <= MAX_FUSED_ROWS
        if self._fused is not None and not self._fused.is_current:
            self._fused, self.is_fusable = None, why_not_fused(self.model) is None
        if self.is_fusable and is_decode_step and isinstance(state, KVCache) and state.has_free_slot:
            model = cast(GPT, self.model)
            if self._fused is None or not self._fused.fits(state):
                self._fused = CPUDecodeStep(model, state)
            self.n_fused_steps += 1
            return self._fused(model, ids, state)
        options: dict[str, Any] = {"last": True} if last else {}  # a model of your own may lack it
        with self._kernels:
            return self.model.step(ids, state, *([] if lengths is None else [lengths]), **options)


def position_tables(model: GPT, capacity: int) -> PositionTables:
    """Rotary cosines and sines, per-layer offsets or score biases, for every position of the cache."""
    positions, device = model.positions, model.device
    pos = torch.arange(capacity, device=device)
    match positions:
        case Rotary():
            angle = pos[:, None].float() * frequencies(positions.d_head, positions.theta, device)
            return PositionTables(cos=angle.cos().float(), sin=angle.sin().float())
        case PerLayer():
            return PositionTables(offsets=positions.weight.detach())
        case Relative():  # its distances end at 0 in a decoder
            return PositionTables(bias=positions.weight.detach())
        case ALiBi():
            distance = pos - (capacity - 1)
            return PositionTables(bias=alibi_slopes(positions.n_heads, device)[:, None].float() * distance)
    return PositionTables()

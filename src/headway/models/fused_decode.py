"""Runs a decode step of a GPT as five fused operations per layer; the model is unchanged.

    qkv = norm1(x) W_qkvᵀ + b
    y = attention of the new token          positions, cache write, softmax
    x = x + y W_outᵀ + b
    h = act(norm2(x) W_upᵀ + b)
    x = x + h W_downᵀ + b

`GPT.step` with one token per row is the definition. On a GPU its thirty operations per layer take longer to launch than
to run; on a CPU the work between its products takes a fifth of the step.

On a GPU the kernels are Triton's, which comes with PyTorch's CUDA builds: decode_linear.py, decode_attention.py,
decode_tokens.py for the embedding and, for several rows, decode_norm.py. Between them x is float32. On a CPU they are
in C: cpu_decode.c.
"""

from dataclasses import replace
from operator import is_
from typing import Any, cast

import torch
from torch import Tensor, nn

from headway.models.base import LanguageModel, Model, Seq2SeqLM
from headway.models.fused_rule import GLOBAL_HOOKS, why_not_fused
from headway.models.gpt import GPT
from headway.nn.feedforward import GatedFeedForward
from headway.nn.kernels.cpu_decode import MAX_FUSED_ROWS, CPUProgram
from headway.nn.kernels.cpu_linear import MIN_PACKED_ROWS, CPUKernels
from headway.nn.kernels.decode_parts import PositionTables
from headway.nn.kv_cache import KVCache
from headway.nn.positions import (
    ALiBi,
    Learned,
    PerLayer,
    Relative,
    Rotary,
    Sinusoidal,
    alibi_slopes,
    frequencies,
    sinusoid,
)
from headway.nn.state import State

MAX_GRID_Y = 65_535  # rows times key/value heads: the second dimension of a grid


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


class WeightAddresses:
    """Where a model's weights are in memory, and which modules and hooks it has: kernels that hold addresses must not
    run after one has changed."""

    def __init__(self, model: nn.Module):
        modules = list(model.modules())
        self._tables: list[dict[str, Any]] = [t for m in modules for t in (m._parameters, m._buffers, m._modules)]
        self._modules = modules
        self._hooks = [*GLOBAL_HOOKS, *(hooks for m in modules for hooks in (m._forward_hooks, m._forward_pre_hooks))]
        self._parts, self._state = self._current_parts(), self._current_state()
        self._weights = [part for part in self._parts if isinstance(part, Tensor)]
        self._addresses = self._current_addresses()

    def are_valid(self) -> bool:
        """Whether no weight or module has been replaced or moved, no hook added or removed, and the mode is the same: a
        generation may be paused at any token. In few calls, since a step of a small model takes some 100 µs."""
        parts = self._current_parts()
        if len(parts) != len(self._parts) or not all(map(is_, parts, self._parts)):
            return False
        return self._current_state() == self._state and self._current_addresses() == self._addresses

    def _current_parts(self) -> list[Any]:
        return [part for table in self._tables for part in table.values()]

    def _current_state(self) -> tuple[list[int], list[bool]]:
        hook_ids = [hook_id for hooks in self._hooks for hook_id in hooks]
        return hook_ids, [module.training for module in self._modules]

    def _current_addresses(self) -> list[tuple[Any, ...]]:
        return [(weight.data_ptr(), weight.dtype, weight.stride()) for weight in self._weights]


class TritonDecodeStep:
    """Callable: one token per row through a GPT and its KV cache. For caches of one batch size and capacity. It holds
    scratch memory and tables, but not the model."""

    def __init__(self, model: GPT, cache: KVCache):
        from headway.nn.kernels.triton_decode import TritonOperations

        c, tables = model.config, position_tables(model, cache.capacity)
        sizes = (cache.batch_size, c.n_heads, c.n_kv_heads, c.d_head, cache.capacity)
        self._kernels = TritonOperations(*sizes, tables, model.device)
        self._offsets = embedding_offsets(model, cache.capacity)

    @torch.no_grad()
    def __call__(self, model: GPT, ids: Tensor, cache: KVCache) -> Tensor:
        """ids (B, 1) → float32 logits (B, 1, V). Keys and values are written at `cache.length` (B,), which the caller
        increases."""
        embedding = model.embedding
        x = self._kernels.embed(ids, cache.length, embedding.weight, self._offsets, embedding.scale)  # (B, D)
        return decode_layers(model, self._kernels, x, cache, cache.length)[:, None]


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
        return self._addresses.are_valid()

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
        self.is_fusable = self._takes_fused_path()
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
        if self.is_fusable and is_decode_step and isinstance(state, KVCache) and state.has_free_slot:
            model = cast(GPT, self.model)
            if self._fused is None or not self._fused.is_current or not self._fused.fits(state):
                self.is_fusable = self._takes_fused_path()  # the model may have changed since the last token
                self._fused = CPUDecodeStep(model, state) if self.is_fusable else None
            if self._fused is not None:
                self.n_fused_steps += 1
                return self._fused(model, ids, state)
        options: dict[str, Any] = {"last": True} if last else {}  # a model of your own may lack it
        with self._kernels:
            return self.model.step(ids, state, *([] if lengths is None else [lengths]), **options)

    def _takes_fused_path(self) -> bool:
        return self.model.device.type == "cpu" and why_not_fused(self.model) is None


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


def embedding_offsets(model: GPT, capacity: int) -> Tensor | None:
    """What is added to the embedding at each position, (capacity or more, D): learned and sinusoidal positions."""
    match model.positions:
        case Learned():
            return model.positions.weight.detach()
        case Sinusoidal():
            return sinusoid(torch.arange(capacity, device=model.device), model.config.d_model).to(model.dtype)
    return None

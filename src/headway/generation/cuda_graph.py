"""Decode steps with their samplers, captured as CUDA graphs.

A graph reads and writes memory at fixed addresses, so each has a KV cache, a history and sampler states of its own.
Capturing takes as long as many decode steps, so the graphs of models that take the fused path (fused_rule.py) are
kept for later batches with the same number of rows, a similar capacity and the same samplers. They are captured at the
first decode step: the first token does not wait for it.

At most `MAX_GRAPHS` graphs are kept per model. When a batch has ended, idle graphs are dropped, the least recently used
first, until their KV caches take no more than `MAX_IDLE_WEIGHTS_FRACTION` of the weights, or `MAX_IDLE_DEVICE_FRACTION`
of the GPU's memory, if that is more. A model whose weights have moved gets new graphs, also in the middle of a
generation.
"""

import threading
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headway.models.fused_decode import triton_decode_step
from headway.models.fused_rule import why_not_fused
from headway.nn.kv_cache import KVCache
from headway.sampling import History, Pipeline

if TYPE_CHECKING:
    from headway.generation.decode_loop import DecodeLoop

WARMUP_STEPS = 2  # before capture: they pick kernels and allocate the samplers' parameters
CAPACITY_MULTIPLE = 64  # positions are rounded up, so that similar lengths share a graph
MAX_GRAPHS = 8
MAX_IDLE_WEIGHTS_FRACTION, MAX_IDLE_DEVICE_FRACTION = 0.15, 0.02
LOCK = threading.RLock()  # held while a pool changes, and while a graph is captured


class DecodeGraph:
    """A captured decode step of `batch_size` rows and up to `capacity` positions. Each replay reads the last tokens,
    the lengths and the sampler states and overwrites them with the next ones."""

    def __init__(self, model: Any, pipe: Pipeline, batch_size: int, capacity: int, vocab_size: int | None):
        self.model, self.pipe, self.vocab_size = weakref.ref(model), pipe, vocab_size
        cache = model.start(batch_size=batch_size, capacity=capacity)
        # Every row attends to all `capacity` slots under a mask that ends at its length, so shapes never change.
        self.cache: KVCache = replace(cache, bound=capacity - 1, is_uniform=False)
        self.fused_step = triton_decode_step(model, self.cache)
        is_cuda = model.device.type == "cuda"
        device, integers = model.device, {"dtype": torch.long, "device": model.device}
        self.last_tokens = torch.zeros(batch_size, 1, **integers)
        lengths, n_prompt = (torch.zeros(batch_size, 1, **integers) for _ in range(2))
        self.history = History(torch.zeros(batch_size, capacity, **integers), lengths, n_prompt)
        self.sampler_state = pipe.start(batch_size, [0] * batch_size, device)
        self.host_tokens = [torch.empty(batch_size, dtype=torch.long, pin_memory=is_cuda) for _ in range(2)]
        self.graph: torch.cuda.CUDAGraph | None = None
        self.logits: Tensor
        self.owner: weakref.ref[DecodeLoop] | None = None

    @property
    def is_idle(self) -> bool:
        return self.owner is None or self.owner() is None

    def empty_cache(self) -> KVCache:
        """Its cache, without tokens, to prefill prompts into."""
        for tensor in (self.cache.keys, self.cache.values, self.cache.length):
            tensor.zero_()  # values of a slot that is not used have weight 0, but 0 · NaN is NaN
        return replace(self.cache, bound=0, is_uniform=True)

    def load(self, loop: "DecodeLoop") -> None:
        """Take over the state of a loop whose prompts are prefilled; its tensors are those of the graph from now on."""
        state = loop.state
        assert isinstance(state, KVCache)
        if state.keys.data_ptr() != self.cache.keys.data_ptr():
            n_slots = min(state.capacity, self.cache.capacity)
            for target, source in ((self.cache.keys, state.keys), (self.cache.values, state.values)):
                target[:, :, :, :n_slots].copy_(source[:, :, :, :n_slots])
        width = min(loop.history.ids.shape[1], self.history.ids.shape[1])
        self.history.ids.zero_()
        self.history.ids[:, :width].copy_(loop.history.ids[:, :width])
        for target, source in (
            (self.cache.length, state.length),
            (self.history.lengths, loop.history.lengths),
            (self.history.n_prompt, loop.history.n_prompt),
            (self.last_tokens, loop.last_tokens),
            (self.sampler_state.seed, loop.sampler_state.seed),
            (self.sampler_state.position, loop.sampler_state.position),
            (self.sampler_state.mu, loop.sampler_state.mu),
        ):
            target.copy_(source)
        loop.state, loop.history, loop.last_tokens = self.cache, self.history, self.last_tokens
        loop.sampler_state = self.sampler_state
        if self.graph is None:
            with LOCK:
                self._capture()

    def _capture(self) -> None:
        """Warm up and capture. Both change the tensors a step updates, so these are restored afterwards."""
        saved = [tensor.clone() for tensor in self._updated_tensors()]
        side_stream = torch.cuda.Stream()
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(WARMUP_STEPS):
                self._decode_step()
                self._restore(saved)  # repeat the same step: the cache may have only one free slot
        torch.cuda.current_stream().wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        # "thread_local": other threads may use the GPU meanwhile
        with torch.cuda.graph(graph, stream=side_stream, capture_error_mode="thread_local"):
            self._decode_step()
        self._restore(saved)
        self.graph = graph  # now that it is complete: Ctrl-C may have come before

    def _updated_tensors(self) -> list[Tensor]:
        sampler = self.sampler_state
        return [self.last_tokens, self.cache.length, self.history.lengths, sampler.position, sampler.mu]

    def _restore(self, values: list[Tensor]) -> None:
        for tensor, value in zip(self._updated_tensors(), values, strict=True):
            tensor.copy_(value)

    def _decode_step(self) -> None:
        model = self.model()
        assert model is not None
        if self.fused_step is not None:
            logits = self.fused_step(model, self.last_tokens, self.cache)
        else:
            logits, _ = model.step(self.last_tokens.clamp(min=0), self.cache, None, last=True)
        self.logits = logits[:, -1, : self.vocab_size].float()
        tokens, mu = self.pipe.draw_tokens(self.logits, history=self.history, state=self.sampler_state)
        if mu is not None:
            self.sampler_state.mu.copy_(mu)
        self._append(tokens)

    def _append(self, tokens: Tensor) -> None:
        """The drawn tokens (B,) become the last ones, and everything that counts tokens advances."""
        history, lengths = self.history, (self.cache.length, self.history.lengths, self.sampler_state.position)
        if self.fused_step is not None:
            from headway.nn.kernels.decode_tokens import append_tokens

            append_tokens(tokens, self.last_tokens, lengths[0], history.ids, *lengths[1:])
            return
        self.last_tokens.copy_(tokens[:, None])
        history.ids.scatter_(1, history.lengths.clamp(max=history.ids.shape[1] - 1), self.last_tokens)
        for length in lengths:
            length.add_(1)

    def replay(self) -> "TokenCopy":
        """Launch the step and the copy of its tokens."""
        assert self.graph is not None
        self.graph.replay()
        self.host_tokens.reverse()  # the other one may still be read
        return TokenCopy(self.last_tokens, self.host_tokens[0])


class TokenCopy:
    """An asynchronous copy of a step's tokens to the host."""

    def __init__(self, tokens: Tensor, target: Tensor):
        self.target, self.event = target, torch.cuda.Event()
        target.copy_(tokens[:, 0], non_blocking=True)
        self.event.record()

    def wait(self) -> list[int]:
        self.event.synchronize()
        tokens: list[int] = self.target.tolist()
        return tokens


class GraphPool:
    """The graphs of one model, the least recently used first."""

    def __init__(self) -> None:
        self.graphs: dict[tuple[Any, ...], DecodeGraph] = {}
        self.signature: tuple[Any, ...] = ()

    def take(self, loop: "DecodeLoop", batch_size: int, capacity: int) -> DecodeGraph:
        """An idle graph for a loop, or a new one, not captured yet."""
        model, pipe = loop.model, loop.pipe
        assert isinstance(model, nn.Module)
        assert isinstance(pipe, Pipeline)
        if (signature := signature_of(model)) != self.signature:
            self.graphs, self.signature = {}, signature
        key = (batch_size, capacity, loop.vocab_size, repr(pipe), repr([sampler.on for sampler in pipe.samplers]))
        graph = self.graphs.pop(key, None)
        if graph is None or not graph.is_idle:
            graph = DecodeGraph(model, pipe, batch_size, capacity, loop.vocab_size)
        graph.owner = weakref.ref(loop)
        self.graphs[key] = graph
        return graph

    def trim(self, max_idle_bytes: float) -> None:
        """Drop idle graphs until the others keep to the limits."""
        idle = [key for key, graph in self.graphs.items() if graph.is_idle]
        n_bytes = sum(self.graphs[key].cache.nbytes for key in idle)
        for key in idle:
            if len(self.graphs) <= MAX_GRAPHS and n_bytes <= max_idle_bytes:
                return
            n_bytes -= self.graphs.pop(key).cache.nbytes


_POOLS: "weakref.WeakKeyDictionary[nn.Module, GraphPool]" = weakref.WeakKeyDictionary()


def take_graph(loop: "DecodeLoop", batch_size: int, n_positions: int, limit: int | None) -> DecodeGraph:
    """A graph for `n_positions` or a few more, but at most `limit`. Kept for later loops, if the model takes the fused
    path: its result depends on nothing but the config, the weights and the inputs."""
    model = loop.model
    assert isinstance(model, nn.Module)
    capacity = -(-n_positions // CAPACITY_MULTIPLE) * CAPACITY_MULTIPLE
    capacity = capacity if limit is None else min(limit, capacity)
    if why_not_fused(model) is not None:
        assert isinstance(loop.pipe, Pipeline)
        return DecodeGraph(model, loop.pipe, batch_size, capacity, loop.vocab_size)
    with LOCK:
        graph = _POOLS.setdefault(model, GraphPool()).take(loop, batch_size, capacity)
    weakref.finalize(loop, _trim, weakref.ref(model)).atexit = False
    return graph


def release_graph(graph: DecodeGraph) -> None:
    """Mark a graph as idle: its loop has compacted the batch."""
    graph.owner = None
    _trim(graph.model)


def _trim(model_ref: "weakref.ref[Any]") -> None:
    model = model_ref()
    with LOCK:
        if model is None or (pool := _POOLS.get(model)) is None:
            return
        if model.device.type != "cuda":
            drop_graphs(model)
            return
        weight_bytes = sum(parameter.nbytes for parameter in model.parameters())
        device_bytes = torch.cuda.get_device_properties(model.device).total_memory
        pool.trim(max(MAX_IDLE_WEIGHTS_FRACTION * weight_bytes, MAX_IDLE_DEVICE_FRACTION * device_bytes))


def signature_of(model: nn.Module) -> tuple[Any, ...]:
    """What the graphs of a model on the fused path depend on, beside the values of its weights. The dtype too: weights
    in another may get the same addresses."""
    return (repr(model.config), *((parameter.data_ptr(), parameter.dtype) for parameter in model.parameters()))


def drop_graphs(model: nn.Module) -> None:
    """Free the graphs of a model that has left the GPU."""
    _POOLS.pop(model, None)

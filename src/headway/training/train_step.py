"""One training step: forward and backward over the micro-batches, gradient clipping, optimizer step.

    for micro_batch in micro_batches:  (objective(model, micro_batch) / n_targets).backward()
    clip_grad_norm;  optimizer.step()

Nothing here synchronises with a GPU. In a single-process run whose batches have one shape or a few, the step is
captured as a CUDA graph after a few warm-up steps and replayed from then on: small models spend most of their time
launching kernels.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from headway.data.loader import Batch, BatchLoader, RngKey
from headway.nn.block import Block
from headway.training.distributed import full_tensor, is_sharded, sync_gradients_on_last
from headway.training.failures import DivergenceError
from headway.training.optimizers import Optimizer

WARMUP_STEPS = 3  # eager steps of a shape before it is captured: the first ones compile and choose kernels
MAX_GRAPHS = 64


@dataclass(frozen=True)
class StepBatch:
    """A rank's rows of one batch, cut into micro-batches.

    FSDP forwards are collective, so a rank short of rows runs a dummy micro-batch, whose loss is dropped: `is_real`
    is False for it.
    """

    micro_batches: list[Batch]
    is_real: list[bool]
    n_targets: int

    def to(self, device: torch.device | str) -> Self:
        return replace(self, micro_batches=[batch.to(device) for batch in self.micro_batches])

    def pin_memory(self) -> Self:
        return replace(self, micro_batches=[batch.pin_memory() for batch in self.micro_batches])

    def tensors(self) -> list[Tensor]:
        values = (getattr(batch, f.name) for batch in self.micro_batches for f in fields(batch))
        return [value for value in values if isinstance(value, Tensor)]


def iter_step_batches(
    loader: BatchLoader[Any], step: int, grad_accum_steps: int, *, max_bucket_length: int | None = None
) -> Iterator[StepBatch]:
    """A rank's batches from `step` on, epoch after epoch, without end.

    With `max_bucket_length` sequences are padded to a few lengths up to this one, so that shapes recur and CUDA graphs
    can be reused.
    """
    epoch, start = loader.locate(step)
    while True:
        rng_key = RngKey(loader.sampler.seed, epoch)
        for epoch_step in range(start, loader.steps(epoch)):
            indices = loader.sampler.indices(epoch, epoch_step)  # of all ranks
            n_micro_batches = min(grad_accum_steps, -(-len(indices) // loader.world_size))
            parts = np.array_split(indices[loader.rank :: loader.world_size], n_micro_batches)
            is_real = [len(part) > 0 for part in parts]
            batches = [loader.dataset.collate(part if len(part) else indices[:1], rng_key) for part in parts]
            n_targets = sum(batch.n_targets for batch, real in zip(batches, is_real, strict=True) if real)
            if max_bucket_length is not None:
                batches = [batch.bucketed(max_bucket_length) for batch in batches]
            yield StepBatch(batches, is_real, n_targets)
        epoch, start = epoch + 1, 0


class TrainStep:
    """Callable: runs one step and returns its summed loss and its gradient norm, both on the device."""

    def __init__(self, module: nn.Module, optimizer: Optimizer, *, clip: float, autocast: bool, device: torch.device):
        self.module, self.optimizer = module, optimizer
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.clip, self.autocast, self.device = clip or math.inf, autocast, device

    def __call__(self, batch: StepBatch, scale: float | Tensor) -> tuple[Tensor, Tensor]:
        """`scale` turns summed nats into the mean over the batch of all ranks."""
        self.optimizer.zero_grad()
        total_loss = torch.zeros((), device=self.device)
        for i, (micro_batch, is_real) in enumerate(zip(batch.micro_batches, batch.is_real, strict=True)):
            with sync_gradients_on_last(self.module, i == len(batch.micro_batches) - 1):
                with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast, cache_enabled=False):
                    nats, _ = self.module(micro_batch)
                (nats * (scale if is_real else 0.0)).backward()
            if is_real:
                total_loss += nats.detach()
        grad_norm = full_tensor(torch.nn.utils.clip_grad_norm_(self.parameters, self.clip, foreach=True))
        if self.device.type == "cuda" and not is_sharded(self.module):
            self.optimizer.step(skip=(~grad_norm.isfinite()).float())
        else:
            if not math.isfinite(grad_norm):
                raise DivergenceError(f"the gradient norm is {grad_norm.item()}")
            self.optimizer.step()
        return total_loss, grad_norm


@dataclass(frozen=True)
class _CapturedGraph:
    graph: torch.cuda.CUDAGraph
    inputs: StepBatch
    outputs: tuple[Tensor, Tensor]


class CapturedStep:
    """A `TrainStep` as CUDA graphs, one per input shape, each captured once and then replayed. Shapes met fewer than
    `WARMUP_STEPS` times, and those beyond `MAX_GRAPHS`, run eagerly."""

    def __init__(self, step: TrainStep):
        self.step = step
        self.eager_steps: Counter[Any] = Counter()  # steps of each shape before it is captured
        self.graphs: dict[Any, _CapturedGraph] = {}
        self.scale = torch.zeros((), device=step.device)
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()  # shared: no graph's memory is needed after its step

    def __call__(self, batch: StepBatch, scale: float) -> tuple[Tensor, Tensor]:
        self.scale.fill_(scale)
        shapes = tuple(tensor.shape for tensor in batch.tensors())
        if shapes not in self.graphs:
            self.eager_steps[shapes] += 1
            if self.eager_steps[shapes] <= WARMUP_STEPS or len(self.graphs) == MAX_GRAPHS:
                return self._run_eagerly(batch)
            self.graphs[shapes] = self._capture(batch)
        captured = self.graphs[shapes]
        if captured.inputs is not batch:
            for target, value in zip(captured.inputs.tensors(), batch.tensors(), strict=True):
                target.copy_(value)
        captured.graph.replay()
        loss, grad_norm = captured.outputs
        return loss.clone(), grad_norm.clone()  # the next graph may overwrite this memory

    def _run_eagerly(self, batch: StepBatch) -> tuple[Tensor, Tensor]:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            outputs = self.step(batch, self.scale)
        torch.cuda.current_stream().wait_stream(self.stream)
        return outputs

    def _capture(self, batch: StepBatch) -> _CapturedGraph:
        self.step.optimizer.zero_grad()  # so that gradients are allocated in the graphs' memory pool
        graph = torch.cuda.CUDAGraph()
        # The prefetching thread may pin memory meanwhile: "thread_local" captures the calls of this thread only.
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            outputs = self.step(batch, self.scale)
        return _CapturedGraph(graph, batch, outputs)


def compile_blocks(module: nn.Module) -> None:
    """Compile each block of a stack. All layers share one compiled block, so this takes seconds. Compiling the whole
    model multiplies the compile time by the number of layers, for about 1 % more speed."""
    for block in module.modules():
        if isinstance(block, Block):
            block.compile(dynamic=False)


def compile_model(model: Any) -> None:
    """Compile a model up to its final hidden states as one graph: about 1 % faster than block by block, but deep
    models take minutes to compile. Worth it for a run of hours."""
    model.hidden_states = torch.compile(model.hidden_states, dynamic=False)


def use_bfloat16_residual(model: Any) -> None:
    """Keep the residual stream in bfloat16 while training: half the bytes of every norm and addition, but sums over
    layers are rounded to 8 bits. Autocast alone keeps it in float32. Evaluation stays in float32."""
    model.dropout.register_forward_hook(lambda module, inputs, output: output.bfloat16() if module.training else output)


def checkpoint_blocks(module: nn.Module) -> None:
    """Activation checkpointing: recompute each block from its input in the backward pass instead of storing its
    activations."""
    from torch.utils.checkpoint import checkpoint

    for block in module.modules():
        if isinstance(block, Block):
            forward = block.forward
            block.forward = lambda *args, forward=forward: checkpoint(forward, *args, use_reentrant=False)  # type: ignore[method-assign]

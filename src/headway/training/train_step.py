"""One step of learning: forward and back over the pieces of a batch, clip, descend.

    for piece in pieces:  (objective(model, piece) / n_targets).backward()
    clip;  optimizer.step()

Nothing here waits for a GPU. Where the run is one process, and batches have one shape or a few, the whole step is
captured as a CUDA graph after a few steps and replayed from then on: small models spend most of their time starting
kernels.
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
from headway.errors import HeadwayError
from headway.nn.block import Block
from headway.training.distributed import full_tensor, is_sharded, sync_gradients_on_last
from headway.training.optimizers import Optimizer

WARM = 3  # steps of a shape before one is captured: the first compile and choose kernels
MOST_GRAPHS = 64


@dataclass(frozen=True)
class StepBatch:
    """A rank's rows of one batch, in pieces. Where ranks share a model all must compute as often, so one that has too
    few rows gets a piece that is not counted."""

    pieces: list[Batch]
    counted: list[bool]
    n_targets: int

    def to(self, device: torch.device | str) -> Self:
        return replace(self, pieces=[piece.to(device) for piece in self.pieces])

    def pin_memory(self) -> Self:
        return replace(self, pieces=[piece.pin_memory() for piece in self.pieces])

    def tensors(self) -> list[Tensor]:
        values = (getattr(piece, f.name) for piece in self.pieces for f in fields(piece))
        return [value for value in values if isinstance(value, Tensor)]


def iter_step_batches(
    batches: BatchLoader[Any], step: int, accumulate: int, *, bucketed: int | None = None
) -> Iterator[StepBatch]:
    """The work of one rank from a step on, without end; `bucketed`: padded to at most so many tokens, so that shapes
    recur."""
    epoch, place = batches.place(step)
    while True:
        draw = RngKey(batches.sampler.seed, epoch)
        for at in range(place, batches.steps(epoch)):
            everyone = batches.sampler.indices(epoch, at)
            n_pieces = min(accumulate, -(-len(everyone) // batches.world))
            shares = np.array_split(everyone[batches.rank :: batches.world], n_pieces)
            counted = [len(share) > 0 for share in shares]
            pieces = [batches.dataset.collate(share if len(share) else everyone[:1], draw) for share in shares]
            n_targets = sum(piece.n_targets for piece, c in zip(pieces, counted, strict=True) if c)
            if bucketed is not None:
                pieces = [piece.bucketed(bucketed) for piece in pieces]
            yield StepBatch(pieces, counted, n_targets)
        epoch, place = epoch + 1, 0


class Diverged(HeadwayError):  # noqa: N818 (it is an event, and reads as one)
    """The gradient is not a number any more."""


class TrainStep:
    """Callable: does one step and returns its summed loss and gradient norm, on the device."""

    def __init__(self, module: nn.Module, optimizer: Optimizer, *, clip: float, autocast: bool, device: torch.device):
        self.module, self.optimizer = module, optimizer
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.clip, self.autocast, self.device = clip or math.inf, autocast, device

    def __call__(self, work: StepBatch, scale: float | Tensor) -> tuple[Tensor, Tensor]:
        """`scale` turns sums of nats into the mean over the batch of all ranks."""
        self.optimizer.zero_grad()
        total = torch.zeros((), device=self.device)
        for i, (piece, is_counted) in enumerate(zip(work.pieces, work.counted, strict=True)):
            with sync_gradients_on_last(self.module, i == len(work.pieces) - 1):
                with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast, cache_enabled=False):
                    nats, _ = self.module(piece)
                (nats * (scale if is_counted else 0.0)).backward()
            if is_counted:
                total += nats.detach()
        norm = full_tensor(torch.nn.utils.clip_grad_norm_(self.parameters, self.clip, foreach=True))
        if self.device.type == "cuda" and not is_sharded(self.module):
            self.optimizer.step(skip=(~norm.isfinite()).float())
        else:
            if not math.isfinite(norm):
                raise Diverged(f"the gradient norm is {norm.item()}")
            self.optimizer.step()
        return total, norm


@dataclass(frozen=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: StepBatch
    outputs: tuple[Tensor, Tensor]


class CapturedStep:
    """The same, as CUDA graphs that are recorded once for each shape of inputs and then replayed. Shapes that were seen
    a few times only, and those beyond `MOST_GRAPHS`, are computed step by step."""

    def __init__(self, step: TrainStep):
        self.step = step
        self.seen: Counter[Any] = Counter()  # how often each shape was there before it was captured
        self.captured: dict[Any, _Captured] = {}
        self.scale = torch.zeros((), device=step.device)
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()  # one for all: nothing in it is needed from one step to the next

    def __call__(self, work: StepBatch, scale: float) -> tuple[Tensor, Tensor]:
        self.scale.fill_(scale)
        key = tuple(tensor.shape for tensor in work.tensors())
        if key not in self.captured:
            self.seen[key] += 1
            if self.seen[key] <= WARM or len(self.captured) == MOST_GRAPHS:
                self.stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(self.stream):
                    outputs = self.step(work, self.scale)
                torch.cuda.current_stream().wait_stream(self.stream)
                return outputs
            self.step.optimizer.zero_grad()  # gradients then live in the graphs' own memory
            graph = torch.cuda.CUDAGraph()
            # the thread that prepares batches may pin memory meanwhile: only what this thread asks for is captured
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                outputs = self.step(work, self.scale)
            self.captured[key] = _Captured(graph, work, outputs)
        found = self.captured[key]
        if found.inputs is not work:
            for target, value in zip(found.inputs.tensors(), work.tensors(), strict=True):
                target.copy_(value)
        found.graph.replay()
        loss, norm = found.outputs
        return loss.clone(), norm.clone()  # where they are, the next graph may write


def compile_blocks(module: nn.Module) -> None:
    """Compile each block of a stack. One compiled block serves all layers, so this takes seconds, where compiling the
    whole model takes as many times longer as it has layers and gains about a hundredth."""
    for block in module.modules():
        if isinstance(block, Block):
            block.compile(dynamic=False)


def compile_model(model: Any) -> None:
    """Compile a model up to its logits in one piece: a few hundredths faster than block by block, for minutes of
    compiling where there are many layers. Worth it for a run of hours."""
    model.hidden_states = torch.compile(model.hidden_states, dynamic=False)


def use_bfloat16_residual(model: Any) -> None:
    """Have the stream between blocks in bfloat16: half the bytes of every norm and addition, and sums over layers that
    are rounded to 8 bits. Autocast alone keeps it in float32. Scores are in float32 all the same."""
    model.dropout.register_forward_hook(lambda module, inputs, output: output.bfloat16() if module.training else output)


def checkpoint_blocks(module: nn.Module) -> None:
    """Have each block computed again on the way back, from its input, instead of keeping what is inside."""
    from torch.utils.checkpoint import checkpoint

    for block in module.modules():
        if isinstance(block, Block):
            forward = block.forward
            block.forward = lambda *args, forward=forward: checkpoint(forward, *args, use_reentrant=False)  # type: ignore[method-assign]

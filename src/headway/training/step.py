"""One step of learning: forward and back over the pieces of a batch, clip, descend.

    for piece in pieces:  (objective(model, piece) / n_targets).backward()
    clip;  optimizer.step()

Nothing here waits for a GPU. Where batches have one shape and the run is one process, the whole step is captured as a
CUDA graph after a few steps and replayed from then on: small models spend most of their time starting kernels.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from headway.data.batches import Batch, Batches, Draw
from headway.errors import HeadwayError
from headway.nn.block import Block
from headway.training.optim import Optimizer
from headway.training.parallel import gathering, is_sharded, whole

WARM = 3  # steps before one is captured: the first compile and choose kernels


@dataclass(frozen=True)
class Work:
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


def work_from(batches: Batches[Any], step: int, accumulate: int) -> Iterator[Work]:
    """The work of one rank from a step on, without end."""
    epoch, place = batches.place(step)
    while True:
        draw = Draw(batches.order.seed, epoch)
        for at in range(place, batches.steps(epoch)):
            everyone = batches.order.indices(epoch, at)
            n_pieces = min(accumulate, -(-len(everyone) // batches.world))
            shares = np.array_split(everyone[batches.rank :: batches.world], n_pieces)
            counted = [len(share) > 0 for share in shares]
            pieces = [batches.examples.collate(share if len(share) else everyone[:1], draw) for share in shares]
            yield Work(pieces, counted, sum(piece.n_targets for piece, c in zip(pieces, counted, strict=True) if c))
        epoch, place = epoch + 1, 0


class Diverged(HeadwayError):  # noqa: N818 (it is an event, and reads as one)
    """The gradient is not a number any more."""


class Step:
    """Callable: does one step and returns its summed loss and gradient norm, on the device."""

    def __init__(self, module: nn.Module, optimizer: Optimizer, *, clip: float, autocast: bool, device: torch.device):
        self.module, self.optimizer = module, optimizer
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.clip, self.autocast, self.device = clip or math.inf, autocast, device

    def __call__(self, work: Work, scale: float | Tensor) -> tuple[Tensor, Tensor]:
        """`scale` turns sums of nats into the mean over the batch of all ranks."""
        self.optimizer.zero_grad()
        total = torch.zeros((), device=self.device)
        for i, (piece, is_counted) in enumerate(zip(work.pieces, work.counted, strict=True)):
            with gathering(self.module, i == len(work.pieces) - 1):
                with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast, cache_enabled=False):
                    nats, _ = self.module(piece)
                (nats * (scale if is_counted else 0.0)).backward()
            if is_counted:
                total += nats.detach()
        norm = whole(torch.nn.utils.clip_grad_norm_(self.parameters, self.clip, foreach=True))
        if self.device.type == "cuda" and not is_sharded(self.module):
            self.optimizer.step(skip=(~norm.isfinite()).float())
        else:
            if not math.isfinite(norm):
                raise Diverged(f"the gradient norm is {norm.item()}")
            self.optimizer.step()
        return total, norm


class CapturedStep:
    """The same, as a CUDA graph that is recorded once and then replayed on the inputs of each step."""

    def __init__(self, step: Step):
        self.step, self.n_calls = step, 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.key: Any = None  # what was captured: the shapes of its inputs
        self.inputs: Work
        self.outputs: tuple[Tensor, Tensor]
        self.scale = torch.zeros((), device=step.device)
        self.stream = torch.cuda.Stream()

    def __call__(self, work: Work, scale: float) -> tuple[Tensor, Tensor]:
        self.n_calls += 1
        self.scale.fill_(scale)
        key = [tensor.shape for tensor in work.tensors()]
        if self.graph is not None and key == self.key:
            for target, value in zip(self.inputs.tensors(), work.tensors(), strict=True):
                target.copy_(value)
            self.graph.replay()
            return self.outputs
        if self.graph is not None or self.n_calls <= WARM:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                outputs = self.step(work, self.scale)
            torch.cuda.current_stream().wait_stream(self.stream)
            return outputs
        self.inputs, self.key = work, key
        self.step.optimizer.zero_grad()  # gradients then live in the graph's own memory
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = self.step(work, self.scale)
        self.graph.replay()
        return self.outputs


def compile_blocks(module: nn.Module) -> None:
    """Compile each block of a stack. One compiled block serves all layers, so this takes seconds, where compiling the
    whole model takes as many times longer as it has layers and gains about a hundredth."""
    for block in module.modules():
        if isinstance(block, Block):
            block.compile(dynamic=False)


def compile_whole(model: Any) -> None:
    """Compile a model up to its logits in one piece: a few hundredths faster than block by block, for minutes of
    compiling where there are many layers. Worth it for a run of hours."""
    model.hidden = torch.compile(model.hidden, dynamic=False)


def narrow_residual(model: Any) -> None:
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

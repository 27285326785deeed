"""Many processes, one run: what torchrun starts shares the work, applied to a finished model from outside.

    torchrun --nproc-per-node=4 -m headway train RECIPE --set train.parallel=ddp      every rank holds the whole model
    torchrun --nproc-per-node=4 -m headway train RECIPE --set train.parallel=fsdp     every rank holds a share of it

A batch is that of the whole world, and each rank takes its rows of it, so the number of ranks changes who computes
what, not what is computed. Losses are sums divided by the number of targets in the whole batch; both engines average
gradients over ranks, so the loop multiplies by their number.

Decisions (stop, how long has it been, how many targets) travel over the CPU, so that they never wait for a GPU.
"""

import gc
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from headway.errors import ConfigError, HeadwayError
from headway.nn.block import Block

TIMEOUT = timedelta(minutes=10)  # how long ranks wait for one that does not answer while they compute
PATIENCE = timedelta(days=7)  # and while the first reads data for all; a rank that dies is noticed at once

T = TypeVar("T")
_joined = itertools.count()


@dataclass(frozen=True)
class DistContext:
    """Which of how many processes this is."""

    rank: int = 0
    size: int = 1
    parallel: str = "none"
    group: Any = None  # over which decisions travel

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def all_reduce_sum(self, *numbers: float) -> list[float]:
        """Each number added up over all ranks; exact for counts."""
        if self.size == 1:
            return list(numbers)
        found = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(found, group=self.group)
        return found.tolist()

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """The CPU tensors of all ranks, which must have one shape, in their order."""
        if self.size == 1:
            return [tensor]
        found = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(found, tensor, group=self.group)
        return found

    def broadcast(self, text: str | None) -> str:
        """What the first rank says, told to all."""
        if self.size == 1:
            assert text is not None
            return text
        data = torch.tensor(list((text or "").encode()) if self.is_main else [], dtype=torch.uint8)
        (size,) = self.all_reduce_sum(float(len(data)))
        data = data if self.is_main else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(data, 0, group=self.group)
        return bytes(data.tolist()).decode()

    def barrier(self) -> None:
        if self.size > 1:
            self.all_reduce_sum(0.0)

    def on_first_rank(self, work: Callable[[], T]) -> T | None:
        """Have the first rank do something while the others wait; if it fails there, all of them fail."""
        result, error = None, None
        if self.is_main:
            try:
                result = work()
            except Exception as caught:
                error = caught
        (failed,) = self.all_reduce_sum(float(error is not None))
        if error is not None:
            raise error
        if failed:
            raise HeadwayError("the first rank failed; its message says why")
        return result


@contextmanager
def init_distributed(parallel: str, device: torch.device) -> Iterator[DistContext]:
    """Join the processes that torchrun started, and leave them again. Without torchrun there is one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size > 1 and parallel == "none":
        raise ConfigError(
            f"torchrun started {size} processes, but train.parallel='none' would train the same in each: "
            f"--set train.parallel=ddp, or fsdp where one device cannot hold the model"
        )
    if parallel == "none" or (size == 1 and parallel == "ddp"):
        yield DistContext(parallel=parallel)
        return
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if size == 1:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    else:
        store, rank, size = next(dist.rendezvous("env://", timeout=TIMEOUT))
        # Ranks must not meet addresses of those that died before torchrun started them again, nor of an earlier run.
        store = dist.PrefixStore(f"attempt-{restart_count()}-{next(_joined)}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    try:
        yield DistContext(dist.get_rank(), size, parallel, dist.new_group(backend="gloo", timeout=PATIENCE))
    finally:
        gc.collect()  # engines that still hold the group would wait for it for ever when Python ends
        dist.destroy_process_group()


def local_device(device: torch.device) -> torch.device:
    """On a machine of several GPUs each process takes one."""
    if device.type == "cuda" and device.index is None and "LOCAL_RANK" in os.environ:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    return device


def rank() -> int:
    """Which of the processes that torchrun started this is; 0 without torchrun."""
    return int(os.environ.get("RANK", "0"))


def restart_count() -> int:
    """How often torchrun has started this process again after a rank died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def shard(learner: nn.Module, world: DistContext) -> None:
    """Leave each rank its share of every parameter (FSDP2): block by block, then what is left. Before the optimiser.

    Blocks that look at a source stay with the rest: their keys and values are made before their turn comes.
    """
    if world.parallel == "fsdp":
        for module in learner.modules():
            if isinstance(module, Block) and not hasattr(module, "cross_attention"):
                fully_shard(module)
        fully_shard(learner)


def is_sharded(module: nn.Module) -> bool:
    return isinstance(module, FSDPModule)


def reshard(learner: nn.Module) -> None:
    """Let go of weights that a pass without a way back has gathered from all ranks and kept (FSDP2 does so for the
    outermost module): they would hide any change to the shares."""
    if isinstance(learner, FSDPModule):
        learner.reshard()


def replicate(learner: nn.Module, world: DistContext, device: torch.device) -> nn.Module:
    """What to call in place of the learner, so that gradients are averaged over ranks (DDP)."""
    if world.parallel != "ddp" or world.size == 1:
        return learner
    ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(learner, device_ids=ids, gradient_as_bucket_view=True)


@contextmanager
def sync_gradients_on_last(module: nn.Module, is_last: bool) -> Iterator[None]:
    """Around the pieces of one step: gradients travel between ranks with the last piece alone."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(is_last)
        yield
        return
    quiet = module.no_sync() if isinstance(module, DistributedDataParallel) and not is_last else nullcontext()
    with quiet:
        yield


def full_tensor(tensor: Any) -> Any:
    """A tensor as one piece, wherever its shares are. All ranks must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

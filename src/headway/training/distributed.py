"""Distributed training: DDP and FSDP2, applied to a finished model from outside. torchrun starts the processes.

    torchrun --nproc-per-node=4 -m headway train RECIPE --set train.parallel=ddp      every rank holds the whole model
    torchrun --nproc-per-node=4 -m headway train RECIPE --set train.parallel=fsdp     every rank holds a shard of it

A batch is the batch of all ranks, and each rank takes its rows of it, so the number of ranks changes which process
computes what, not the result. Losses are sums divided by the number of targets in the whole batch; DDP and FSDP
average gradients over ranks, so the trainer multiplies the loss by the number of ranks.

Control messages (stop requests, elapsed time, target counts) travel over gloo on the CPU and never wait for a GPU.
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
import torch.distributed
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from headway.errors import ConfigError, HeadwayError
from headway.nn.block import Block

COMPUTE_TIMEOUT = timedelta(minutes=10)  # how long ranks wait for one another in a training step
CONTROL_TIMEOUT = timedelta(days=7)  # and while the first rank prepares the data; a rank that dies is noticed at once

T = TypeVar("T")
_init_counter = itertools.count()


@dataclass(frozen=True)
class DistContext:
    """The rank of this process, the number of ranks, and the collectives between them."""

    rank: int = 0
    size: int = 1
    parallel: str = "none"  # "none", "ddp" or "fsdp"
    group: Any = None  # the gloo group of control messages

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def all_reduce_sum(self, *numbers: float) -> list[float]:
        """Sum each number over all ranks, in float64: exact for counts."""
        if self.size == 1:
            return list(numbers)
        totals = torch.tensor(numbers, dtype=torch.float64)
        torch.distributed.all_reduce(totals, group=self.group)
        return totals.tolist()

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """The CPU tensors of all ranks, which must have the same shape, in the order of the ranks."""
        if self.size == 1:
            return [tensor]
        tensors = [torch.empty_like(tensor) for _ in range(self.size)]
        torch.distributed.all_gather(tensors, tensor, group=self.group)
        return tensors

    def broadcast(self, text: str | None) -> str:
        """Send a text from the first rank to all ranks."""
        if self.size == 1:
            assert text is not None
            return text
        data = torch.tensor(list((text or "").encode()) if self.is_main else [], dtype=torch.uint8)
        (n_bytes,) = self.all_reduce_sum(float(len(data)))
        data = data if self.is_main else torch.empty(int(n_bytes), dtype=torch.uint8)
        torch.distributed.broadcast(data, 0, group=self.group)
        return bytes(data.tolist()).decode()

    def barrier(self) -> None:
        if self.size > 1:
            self.all_reduce_sum(0.0)

    def on_first_rank(self, function: Callable[[], T]) -> T | None:
        """Call a function on the first rank while the others wait; if it raises there, every rank raises."""
        result, error = None, None
        if self.is_main:
            try:
                result = function()
            except Exception as caught:
                error = caught
        (has_failed,) = self.all_reduce_sum(float(error is not None))
        if error is not None:
            raise error
        if has_failed:
            raise HeadwayError("the first rank failed; its message says why")
        return result


@contextmanager
def init_distributed(parallel: str, device: torch.device) -> Iterator[DistContext]:
    """Join torchrun's process group, and leave it after the block. Without torchrun there is one rank."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size > 1 and parallel == "none":
        raise ConfigError(
            f"torchrun started {size} processes, but with train.parallel='none' each would train the same model: "
            f"--set train.parallel=ddp, or fsdp if one device cannot hold the model"
        )
    if parallel == "none" or (size == 1 and parallel == "ddp"):
        yield DistContext(parallel=parallel)
        return
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if size == 1:
        torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
    else:
        store, rank, size = next(torch.distributed.rendezvous("env://", timeout=COMPUTE_TIMEOUT))
        # A prefix per restart and per call: ranks must not read addresses of processes that died or of an earlier run.
        store = torch.distributed.PrefixStore(f"attempt-{restart_count()}-{next(_init_counter)}", store)
        torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=COMPUTE_TIMEOUT)
    try:
        group = torch.distributed.new_group(backend="gloo", timeout=CONTROL_TIMEOUT)
        yield DistContext(torch.distributed.get_rank(), size, parallel, group)
    finally:
        gc.collect()  # a DDP or FSDP module that still holds the group would block for ever when Python exits
        torch.distributed.destroy_process_group()


def local_device(device: torch.device) -> torch.device:
    """On a machine with several GPUs each process takes the one of its LOCAL_RANK."""
    if device.type == "cuda" and device.index is None and "LOCAL_RANK" in os.environ:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    return device


def rank() -> int:
    """The rank that torchrun gave this process; 0 without torchrun."""
    return int(os.environ.get("RANK", "0"))


def restart_count() -> int:
    """How often torchrun has restarted this process after a rank died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def shard(module: nn.Module, dist: DistContext) -> None:
    """Shard every parameter over the ranks (FSDP2): block by block, then the rest. Call before making the optimizer.

    Blocks with cross-attention stay with the rest: their source keys and values are computed before their forward.
    """
    if dist.parallel == "fsdp":
        for submodule in module.modules():
            if isinstance(submodule, Block) and not hasattr(submodule, "cross_attention"):
                fully_shard(submodule)
        fully_shard(module)


def is_sharded(module: nn.Module) -> bool:
    return isinstance(module, FSDPModule)


def reshard(module: nn.Module) -> None:
    """Free the unsharded weights that a forward without a backward has gathered. FSDP2 keeps those of the outermost
    module, and they would hide later changes to the shards."""
    if isinstance(module, FSDPModule):
        module.reshard()


@contextmanager
def gathered(module: nn.Module) -> Iterator[None]:
    """Inside the block, parts of a sharded module can be called by themselves: the weights that belong to none of its
    blocks are gathered. A collective, as are the calls: all ranks make the same ones."""
    if isinstance(module, FSDPModule):
        module.unshard()
    try:
        yield
    finally:
        reshard(module)


def replicate(module: nn.Module, dist: DistContext, device: torch.device) -> nn.Module:
    """The module wrapped in DDP, which averages gradients over ranks; the module itself if there is one rank."""
    if dist.parallel != "ddp" or dist.size == 1:
        return module
    device_ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(module, device_ids=device_ids, gradient_as_bucket_view=True)


@contextmanager
def sync_gradients_on_last(module: nn.Module, is_last: bool) -> Iterator[None]:
    """Around each micro-batch of a step: ranks exchange gradients with the last one only."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(is_last)
        yield
        return
    with module.no_sync() if isinstance(module, DistributedDataParallel) and not is_last else nullcontext():
        yield


def full_tensor(tensor: Any) -> Any:
    """Gather a sharded tensor. A collective: all ranks must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

"""The data loader: batches for every kind of task, addressable by epoch and step.

`BatchLoader(dataset, …)` combines a dataset (datasets/) with a batch sampler (sampler.py). Any batch is available by
random access, `loader.at(epoch=3, step=12345)`, and iteration yields the same batches.

Masks are True where a token may be attended to. Targets equal to `IGNORE_INDEX` do not contribute to the loss.
"""

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Tensor

from headway.data.sampler import BatchSampler, Indices, TokenBudgetBatchSampler
from headway.errors import ConfigError, InputError

IGNORE_INDEX = -100  # the default ignore_index of torch.nn.functional.cross_entropy


class RngKey(NamedTuple):
    """The key of all randomness in a dataset: with the example's index it determines every random choice."""

    seed: int
    epoch: int


@dataclass(frozen=True)
class Batch:
    """Tensors whose first dimension is the batch dimension."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def to(self, device: torch.device | str, *, non_blocking: bool = True) -> Self:
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        values = (getattr(self, field.name) for field in fields(self))
        return type(self)(*(function(value) if isinstance(value, Tensor) else value for value in values))

    @property
    def n_targets(self) -> int:
        """Number of targets, the denominator of the mean loss. Read it before the batch moves to a GPU: there it would
        force a synchronisation."""
        raise NotImplementedError

    def bucketed(self, max_len: int) -> Self:
        """The batch padded to one of a few shapes, where rows differ in length, so that CUDA graphs can be reused. Rows
        are at most `max_len` tokens long; the added ones have no targets."""
        return self

    def rows(self, indices: Tensor) -> Self:
        """The selected rows, in the order of `indices`."""
        return self._map(lambda tensor: tensor[indices])

    @classmethod
    def stack(cls, batches: Sequence[Self]) -> Self:
        """Concatenate batches of equal sequence length along the batch dimension."""
        columns = ([getattr(batch, field.name) for batch in batches] for field in fields(cls))
        return cls(*(torch.cat(column) if isinstance(column[0], Tensor) else column[0] for column in columns))


@dataclass(frozen=True)
class CausalBatch(Batch):
    inputs: Tensor  # (B, T)
    targets: Tensor  # (B, T)
    lengths: Tensor | None = None  # (B,) real tokens per row, if rows are padded
    documents: Tensor | None = None  # (B, T) document index of each token, −1 for padding
    carry: Tensor | None = None  # (B,) 1 where a row continues that of the previous batch, 0 where it starts afresh

    @property
    def n_targets(self) -> int:
        return count_targets(self.targets)


def count_targets(targets: Tensor) -> int:
    return int((targets != IGNORE_INDEX).sum())


B_co = TypeVar("B_co", bound=Batch, covariant=True)


class IndexedDataset(Protocol[B_co]):
    """A map-style dataset: examples have indices 0 … len − 1, and `collate` makes a batch of any of them."""

    def __len__(self) -> int: ...

    def collate(self, indices: Indices, rng: RngKey) -> B_co: ...


class BatchLoader(Generic[B_co]):
    """The batches of one rank, by epoch and step."""

    def __init__(
        self,
        dataset: IndexedDataset[B_co],
        batch_size: int | None = None,
        *,
        sampler: BatchSampler | TokenBudgetBatchSampler | None = None,
        seed: int = 0,
        shuffle: bool = True,
        rank: int = 0,
        world_size: int = 1,
    ):
        if (batch_size is None) == (sampler is None):
            raise ConfigError("give either batch_size or sampler")
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank={rank} is not in 0 … {world_size - 1} (world_size={world_size})")
        self.dataset = dataset
        self.sampler: BatchSampler | TokenBudgetBatchSampler
        if sampler is not None:
            self.sampler = sampler
        else:
            assert batch_size is not None
            self.sampler = BatchSampler(len(dataset), batch_size, seed, shuffle)
        self.rank, self.world_size = rank, world_size

    def steps(self, epoch: int = 0) -> int:
        """Batches per epoch."""
        return self.sampler.steps(epoch)

    def indices(self, epoch: int, step: int) -> Indices:
        return self.sampler.indices(epoch, step, self.rank, self.world_size)

    def at(self, epoch: int, step: int) -> B_co:
        """This rank's rows of the batch at (epoch, step)."""
        return self.dataset.collate(self.indices(epoch, step), RngKey(self.sampler.seed, epoch))

    def locate(self, step: int) -> tuple[int, int]:
        """Convert a global training step into (epoch, step within the epoch)."""
        if step < 0:
            raise InputError(f"step={step} is negative: steps count from 0")
        epoch = 0
        if isinstance(self.sampler, BatchSampler):
            return divmod(step, self.sampler.steps())
        while step >= self.steps(epoch):  # epochs may differ in length
            step -= self.steps(epoch)
            epoch += 1
        return epoch, step

    def iterate(self, epoch: int = 0, step: int = 0) -> Iterator[B_co]:
        """All batches from (epoch, step) on, epoch after epoch, without end."""
        while True:
            for epoch_step in range(step, self.steps(epoch)):
                yield self.at(epoch, epoch_step)
            epoch, step = epoch + 1, 0

    def epoch(self, epoch: int = 0) -> Iterator[B_co]:
        return (self.at(epoch, step) for step in range(self.steps(epoch)))


@runtime_checkable
class Movable(Protocol):
    """Anything `prefetch` can move to a device."""

    def to(self, device: torch.device | str) -> Self: ...

    def pin_memory(self) -> Self: ...


T = TypeVar("T")
_END: Any = object()


def prefetch(
    items: Iterable[T], depth: int = 2, *, device: torch.device | str | None = None
) -> Generator[T, None, None]:
    """Iterate over `items` in a background thread that stays up to `depth` items ahead of the caller.

    With a device, batches are also moved to it; copies to a GPU go through pinned memory, so that they overlap with
    computation.
    """
    if depth < 1:
        raise ConfigError(f"depth={depth} must be at least 1")
    ready: queue.Queue[Any] = queue.Queue(depth)
    stop = threading.Event()
    to_gpu = device is not None and torch.device(device).type == "cuda"

    def put(item: Any) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def produce() -> None:
        try:
            for item in items:
                if to_gpu and isinstance(item, Movable):
                    item = item.pin_memory()
                if not put((item, None)):
                    return
            put((_END, None))
        except BaseException as error:
            put((_END, error))

    thread = threading.Thread(target=produce, daemon=True, name="headway-prefetch")
    thread.start()
    try:
        while True:
            item: Any
            item, error = ready.get()
            if error is not None:
                raise error
            if item is _END:
                return
            if device is not None and isinstance(item, Movable):
                item = item.to(device)
            yield item
    finally:
        stop.set()
        thread.join()

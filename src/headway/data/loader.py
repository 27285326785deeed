"""Batches: what a step of training gets, for every kind of task, and where in an epoch it stands.

`Batches(examples, …)` joins a collection of examples (windows.py and the files beside it) with an order (order.py).
Any batch can be asked for by its place, `batches.at(epoch=3, step=12345)`, and iterating gives the same ones.

Masks are True where there is a token to be looked at. Targets at `IGNORE` are not predicted.
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

IGNORE = -100  # what torch.nn.functional.cross_entropy leaves out


class RngKey(NamedTuple):
    """What chance depends on, beside the example itself."""

    seed: int
    epoch: int


@dataclass(frozen=True)
class Batch:
    """Tensors that belong together, the first dimension being rows."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def to(self, device: torch.device | str, *, non_blocking: bool = True) -> Self:
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, change: Callable[[Tensor], Tensor]) -> Self:
        values = (getattr(self, field.name) for field in fields(self))
        return type(self)(*(change(value) if isinstance(value, Tensor) else value for value in values))

    @property
    def n_targets(self) -> int:
        """How many predictions are asked for: what a loss is averaged over. Ask before the batch goes to a GPU."""
        raise NotImplementedError

    def bucketed(self, most: int) -> Self:
        """The same with padding, so that few shapes recur, where rows are of different lengths: see textpairs.py."""
        return self

    def rows(self, indices: Tensor) -> Self:
        """Some rows, or all in another order."""
        return self._map(lambda tensor: tensor[indices])

    @classmethod
    def stack(cls, batches: Sequence[Self]) -> Self:
        """Rows of several batches of the same width, one under the other."""
        columns = ([getattr(batch, field.name) for batch in batches] for field in fields(cls))
        return cls(*(torch.cat(column) if isinstance(column[0], Tensor) else column[0] for column in columns))


@dataclass(frozen=True)
class CausalBatch(Batch):
    inputs: Tensor  # (B, T)
    targets: Tensor  # (B, T)
    lengths: Tensor | None = None  # (B,) real tokens, where rows are padded
    documents: Tensor | None = None  # (B, T) number of each token's document, −1 for padding
    carry: Tensor | None = None  # (B,) 1 where a row goes on from the batch before, 0 where it begins

    @property
    def n_targets(self) -> int:
        return count_targets(self.targets)


def count_targets(targets: Tensor) -> int:
    return int((targets != IGNORE).sum())


B_co = TypeVar("B_co", bound=Batch, covariant=True)


class IndexedDataset(Protocol[B_co]):
    """A collection whose examples are known by number."""

    def __len__(self) -> int: ...

    def collate(self, indices: Indices, draw: RngKey) -> B_co: ...


class BatchLoader(Generic[B_co]):
    """The batches of one rank, by epoch and step."""

    def __init__(
        self,
        examples: IndexedDataset[B_co],
        batch_size: int | None = None,
        *,
        sampler: BatchSampler | TokenBudgetBatchSampler | None = None,
        seed: int = 0,
        shuffle: bool = True,
        rank: int = 0,
        world: int = 1,
    ):
        if (batch_size is None) == (sampler is None):
            raise ConfigError("give a batch_size or a sampler")
        if not 0 <= rank < world:
            raise ConfigError(f"rank {rank} is outside a world of {world}: ranks go from 0 to {world - 1}")
        self.dataset = examples
        self.sampler: BatchSampler | TokenBudgetBatchSampler
        if sampler is not None:
            self.sampler = sampler
        else:
            assert batch_size is not None
            self.sampler = BatchSampler(len(examples), batch_size, seed, shuffle)
        self.rank, self.world = rank, world

    def steps(self, epoch: int = 0) -> int:
        """Batches in an epoch."""
        return self.sampler.steps(epoch)

    def indices(self, epoch: int, step: int) -> Indices:
        return self.sampler.indices(epoch, step, self.rank, self.world)

    def at(self, epoch: int, step: int) -> B_co:
        """The batch at this place; this rank's rows of it."""
        return self.dataset.collate(self.indices(epoch, step), RngKey(self.sampler.seed, epoch))

    def place(self, step: int) -> tuple[int, int]:
        """Epoch and step in it, of a step counted from the beginning of training."""
        if step < 0:
            raise InputError(f"step {step}: steps are counted from 0")
        epoch = 0
        if isinstance(self.sampler, BatchSampler):
            return divmod(step, self.sampler.steps())
        while step >= self.steps(epoch):  # epochs may differ in length
            step -= self.steps(epoch)
            epoch += 1
        return epoch, step

    def iterate(self, epoch: int = 0, step: int = 0) -> Iterator[B_co]:
        """From a place on, epoch after epoch, without end."""
        while True:
            for place in range(step, self.steps(epoch)):
                yield self.at(epoch, place)
            epoch, step = epoch + 1, 0

    def epoch(self, epoch: int = 0) -> Iterator[B_co]:
        return (self.at(epoch, step) for step in range(self.steps(epoch)))


@runtime_checkable
class Movable(Protocol):
    """What `prefetch` can bring to a device."""

    def to(self, device: torch.device | str) -> Self: ...

    def pin_memory(self) -> Self: ...


T = TypeVar("T")
_END: Any = object()


def prefetch(
    items: Iterable[T], depth: int = 2, *, device: torch.device | str | None = None
) -> Generator[T, None, None]:
    """The same items, made by a thread while the caller is busy with those before: up to `depth` lie ready.

    With a device, what can be moved (batches) is also moved there; to a GPU through pinned memory, so that copying
    overlaps too.
    """
    if depth < 1:
        raise ConfigError(f"depth={depth}: at least one item must lie ready")
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

    def work() -> None:
        try:
            for item in items:
                if to_gpu and isinstance(item, Movable):
                    item = item.pin_memory()
                if not put((item, None)):
                    return
            put((_END, None))
        except BaseException as error:
            put((_END, error))

    thread = threading.Thread(target=work, daemon=True, name="headway-prefetch")
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

"""Batch samplers: which examples form which batch, as a pure function of (seed, epoch, step, rank, world size).

No random generator has to be advanced. Each epoch is a pseudo-random permutation that can be evaluated at any position,
so a resumed run continues at its step without replaying the earlier ones, and a corpus of billions of examples needs no
index list.

A batch is the global batch over all ranks: with world size W, rank r takes its rows r, r + W, r + 2W, … The training
data therefore does not depend on the number of ranks, and each example is seen once per epoch.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from headway.errors import ConfigError, InputError

Indices = NDArray[np.int64]
FEISTEL_ROUNDS = 6  # four look random already; two more cost no measurable time


@lru_cache(maxsize=4096)
def hash_key(*parts: int | str) -> int:
    """A 64-bit hash of all parts."""
    text = repr([part if isinstance(part, str) else int(part) for part in parts])  # a NumPy 5 hashes like a plain 5
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def splitmix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits of 64-bit integers (finaliser of splitmix64, Steele et al. 2014): neighbours become unrelated."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def uniforms(*parts: int | str, counters: NDArray[np.integer]) -> NDArray[np.float64]:
    """Counter-based random numbers in [0, 1): each depends only on its counter and the parts of the key."""
    offset = np.uint64(hash_key(*parts))
    with np.errstate(over="ignore"):
        bits = splitmix64(counters.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + offset)
    return (bits >> np.uint64(11)).astype(np.float64) / 2.0**53


def permute(positions: Indices, n: int, *parts: int | str) -> Indices:
    """The values of a random permutation of 0 … n − 1 at these positions; `parts` are the key of the permutation.

    A Feistel network permutes the integers of 2h bits, whatever its round function. Values of n or more go through it
    again until they fall below n (cycle walking; Black & Rogaway 2002), which leaves a permutation of 0 … n − 1.
    """
    if n < 2:
        return np.zeros_like(positions)
    half = np.uint64(((n - 1).bit_length() + 1) // 2)
    low = np.uint64((1 << int(half)) - 1)
    round_keys = [np.uint64(hash_key(*parts, i)) for i in range(FEISTEL_ROUNDS)]
    values = positions.astype(np.uint64)
    walking = np.arange(len(values))
    while len(walking):
        left, right = values[walking] >> half, values[walking] & low
        for round_key in round_keys:
            with np.errstate(over="ignore"):
                left, right = right, left ^ (splitmix64(right + round_key) & low)
        values[walking] = (left << half) | right
        walking = walking[values[walking] >= n]
    return values.astype(np.int64)


@dataclass(frozen=True)
class BatchSampler:
    """Batches of `batch_size` out of n examples. `drop_last` leaves out the smaller last batch of an epoch, so that all
    batches have one shape (unless it is the only one)."""

    n: int
    batch_size: int
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.n < 1 or self.batch_size < 1:
            raise ConfigError(f"{self.n} examples in batches of {self.batch_size}: both must be at least 1")

    def steps(self, epoch: int = 0) -> int:
        return max(1, self.n // self.batch_size) if self.drop_last else -(-self.n // self.batch_size)

    def indices(self, epoch: int, step: int, rank: int = 0, world_size: int = 1) -> Indices:
        """The example indices of a batch, or of one rank's rows of it."""
        check_step(epoch, step, self.steps(epoch), rank, world_size)
        positions = np.arange(step * self.batch_size, min((step + 1) * self.batch_size, self.n))[rank::world_size]
        return permute(positions, self.n, "order", self.seed, epoch) if self.shuffle else positions


class TokenBudgetBatchSampler:
    """Batches of examples of similar length, as many as fit into `tokens_per_batch`, padding included.

    Each epoch shuffles the examples, sorts them by length within pools of about a hundred batches, cuts each pool into
    batches, and shuffles the batches: little padding, yet no two epochs are alike. `lengths` (N, k) holds the lengths
    of each example's k sequences, such as source and target; a batch costs rows × the sum of the k longest.
    """

    POOL_BATCHES = 100

    def __init__(self, lengths: NDArray[np.integer], tokens_per_batch: int, seed: int = 0, shuffle: bool = True):
        self.lengths = np.asarray(lengths, dtype=np.int64).reshape(len(lengths), -1)
        self.tokens_per_batch, self.seed, self.shuffle = tokens_per_batch, seed, shuffle
        if not len(self.lengths):
            raise ConfigError("no examples to batch: the dataset is empty")
        longest = int(self.lengths.sum(axis=1).max())
        if tokens_per_batch < longest:
            raise ConfigError(
                f"tokens_per_batch={tokens_per_batch} is less than the {longest} tokens of the longest example: "
                f"raise it, or truncate or drop long examples"
            )
        self._plan: tuple[int, list[Indices]] = (-1, [])

    def plan(self, epoch: int) -> list[Indices]:
        """All batches of an epoch."""
        if not self.shuffle:
            epoch = 0
        if self._plan[0] != epoch:
            self._plan = (epoch, self._make_batches(epoch))
        return self._plan[1]

    def _make_batches(self, epoch: int) -> list[Indices]:
        n = len(self.lengths)
        order = np.arange(n)
        if self.shuffle:
            order = permute(order, n, "order", self.seed, epoch)
        mean_length = max(1.0, float(self.lengths.sum(axis=1).mean()))
        pool_size = max(1, int(self.POOL_BATCHES * self.tokens_per_batch / mean_length))
        batches: list[Indices] = []
        for start in range(0, n, pool_size):
            pool = order[start : start + pool_size]
            # The sort is stable, so equal lengths stay shuffled and get new neighbours every epoch.
            pool = pool[np.lexsort(self.lengths[pool].T)]
            batches += self._fill_batches(pool)
        if self.shuffle:
            batches = [batches[i] for i in permute(np.arange(len(batches)), len(batches), "batches", self.seed, epoch)]
        return batches

    def _fill_batches(self, pool: Indices) -> list[Indices]:
        """Cut a sorted pool into consecutive batches, each as large as the budget allows."""
        batches, start = [], 0
        longest = np.zeros(self.lengths.shape[1], dtype=np.int64)
        for i, lengths in enumerate(self.lengths[pool]):
            new_longest = np.maximum(longest, lengths)
            if i > start and (i + 1 - start) * int(new_longest.sum()) > self.tokens_per_batch:
                batches.append(pool[start:i])
                start, new_longest = i, lengths
            longest = new_longest
        return [*batches, pool[start:]]

    def steps(self, epoch: int = 0) -> int:
        return len(self.plan(epoch))

    def indices(self, epoch: int, step: int, rank: int = 0, world_size: int = 1) -> Indices:
        check_step(epoch, step, self.steps(epoch), rank, world_size)
        return self.plan(epoch)[step][rank::world_size]


def check_step(epoch: int, step: int, steps: int, rank: int, world_size: int) -> None:
    if epoch < 0 or not 0 <= step < steps:
        raise InputError(f"there is no batch at epoch {epoch}, step {step}: an epoch has steps 0 to {steps - 1}")
    if not 0 <= rank < world_size:
        raise InputError(f"rank={rank} is not in 0 … {world_size - 1} (world_size={world_size})")

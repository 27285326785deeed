"""In which order examples are seen: a pure function of (seed, epoch, step, rank, world size).

Nothing is drawn from a generator that has to be wound forward. Each epoch is a permutation of the examples that can be
asked for any place by itself, so a run that was stopped finds its place again without reading what came before it,
and a corpus of billions of examples needs no list of them.

The batch is that of the whole machine: with a world of W ranks, rank r takes its rows r, r + W, r + 2W, … So what is
learned from does not depend on how many ranks share the work, and each example is seen once an epoch.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from headway.errors import ConfigError, InputError

Indices = NDArray[np.int64]
ROUNDS = 6  # of the Feistel network; four would do to look random, two more cost nothing that shows


@lru_cache(maxsize=4096)
def hash_key(*parts: int | str) -> int:
    """64 bits that depend on all of the parts."""
    plain = repr([part if isinstance(part, str) else int(part) for part in parts])  # numpy's 5 is 5
    return int.from_bytes(hashlib.blake2b(plain.encode(), digest_size=8).digest(), "little")


def splitmix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scatter 64-bit numbers (the finaliser of splitmix64, Steele et al. 2014): neighbours come out unrelated."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def uniforms(*parts: int | str, counters: NDArray[np.integer]) -> NDArray[np.float64]:
    """Numbers in [0, 1), each from its counter and the parts alone."""
    start = np.uint64(hash_key(*parts))
    with np.errstate(over="ignore"):
        bits = splitmix64(counters.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + start)
    return (bits >> np.uint64(11)).astype(np.float64) / 2.0**53


def permute(places: Indices, n: int, *parts: int | str) -> Indices:
    """What stands at these places of a random permutation of 0 … n − 1; `parts` say which permutation.

    A Feistel network permutes the numbers of 2h bits, whatever its rounds do; numbers that land at n or above go
    through it again until they are below (cycle walking; Black & Rogaway 2002), which leaves a permutation of the rest.
    """
    if n < 2:
        return np.zeros_like(places)
    half = np.uint64(((n - 1).bit_length() + 1) // 2)
    low = np.uint64((1 << int(half)) - 1)
    keys = [np.uint64(hash_key(*parts, i)) for i in range(ROUNDS)]
    found = places.astype(np.uint64)
    walking = np.arange(len(found))
    while len(walking):
        left, right = found[walking] >> half, found[walking] & low
        for round_key in keys:
            with np.errstate(over="ignore"):
                left, right = right, left ^ (splitmix64(right + round_key) & low)
        found[walking] = (left << half) | right
        walking = walking[found[walking] >= n]
    return found.astype(np.int64)


@dataclass(frozen=True)
class BatchSampler:
    """Batches of `batch_size` examples out of n. The last of an epoch may be smaller; with `whole` it is left out,
    so that all have one shape (unless there is no other)."""

    n: int
    batch_size: int
    seed: int = 0
    shuffle: bool = True
    whole: bool = False

    def __post_init__(self) -> None:
        if self.n < 1 or self.batch_size < 1:
            raise ConfigError(f"{self.n} examples in batches of {self.batch_size}: both must be at least 1")

    def steps(self, epoch: int = 0) -> int:
        return max(1, self.n // self.batch_size) if self.whole else -(-self.n // self.batch_size)

    def indices(self, epoch: int, step: int, rank: int = 0, world: int = 1) -> Indices:
        """The examples of a batch, or of one rank's share in it."""
        check_step(epoch, step, self.steps(epoch), rank, world)
        places = np.arange(step * self.batch_size, min((step + 1) * self.batch_size, self.n))[rank::world]
        return permute(places, self.n, "order", self.seed, epoch) if self.shuffle else places


class TokenBudgetBatchSampler:
    """Batches of examples of like length, as many as fit into a budget of tokens, padding included.

    Each epoch shuffles the examples, sorts them by length within pools of some hundred batches, cuts each pool into
    batches, and shuffles those: little padding, and yet no two epochs alike. `lengths` (N, k) are the lengths of each
    example's k sequences, such as source and target; a batch costs rows × the sum of the k longest.
    """

    POOL = 100  # batches

    def __init__(self, lengths: NDArray[np.integer], tokens_per_batch: int, seed: int = 0, shuffle: bool = True):
        self.lengths = np.asarray(lengths, dtype=np.int64).reshape(len(lengths), -1)
        self.tokens_per_batch, self.seed, self.shuffle = tokens_per_batch, seed, shuffle
        if not len(self.lengths):
            raise ConfigError("there are no examples to make batches of")
        longest = int(self.lengths.sum(axis=1).max())
        if tokens_per_batch < longest:
            raise ConfigError(
                f"tokens_per_batch={tokens_per_batch} is less than the {longest} tokens of the longest example: raise it, or "
                f"leave out or cut long examples"
            )
        self._plan: tuple[int, list[Indices]] = (-1, [])

    def plan(self, epoch: int) -> list[Indices]:
        """All batches of an epoch."""
        if not self.shuffle:
            epoch = 0
        if self._plan[0] != epoch:
            self._plan = (epoch, self._batches(epoch))
        return self._plan[1]

    def _batches(self, epoch: int) -> list[Indices]:
        n = len(self.lengths)
        order = np.arange(n)
        if self.shuffle:
            order = permute(order, n, "order", self.seed, epoch)
        size = max(1, int(self.POOL * self.tokens_per_batch / max(1.0, float(self.lengths.sum(axis=1).mean()))))
        found: list[Indices] = []
        for start in range(0, n, size):
            pool = order[start : start + size]
            # Ties stay in shuffled order, so that equal lengths do not meet the same neighbours every epoch.
            pool = pool[np.lexsort(self.lengths[pool].T)]
            found += self._cut(pool)
        if self.shuffle:
            found = [found[i] for i in permute(np.arange(len(found)), len(found), "batches", self.seed, epoch)]
        return found

    def _cut(self, pool: Indices) -> list[Indices]:
        """Consecutive batches, each as large as the budget allows."""
        found, begin = [], 0
        longest = np.zeros(self.lengths.shape[1], dtype=np.int64)
        for i, lengths in enumerate(self.lengths[pool]):
            longer = np.maximum(longest, lengths)
            if i > begin and (i + 1 - begin) * int(longer.sum()) > self.tokens_per_batch:
                found.append(pool[begin:i])
                begin, longer = i, lengths
            longest = longer
        return [*found, pool[begin:]]

    def steps(self, epoch: int = 0) -> int:
        return len(self.plan(epoch))

    def indices(self, epoch: int, step: int, rank: int = 0, world: int = 1) -> Indices:
        check_step(epoch, step, self.steps(epoch), rank, world)
        return self.plan(epoch)[step][rank::world]


def check_step(epoch: int, step: int, steps: int, rank: int, world: int) -> None:
    if epoch < 0 or not 0 <= step < steps:
        raise InputError(f"there is no batch at epoch {epoch}, step {step}: an epoch has steps 0 to {steps - 1}")
    if not 0 <= rank < world:
        raise InputError(f"rank {rank} is outside a world of {world}: ranks go from 0 to {world - 1}")

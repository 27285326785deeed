"""From 64-bit keys to their positions, vectorised: millions of lookups a second with two arrays and no dict.

The table is open addressing with linear probing, kept in ascending order of the hashes (Amble & Knuth 1974). Each hash
lies at the slot it names or, if that is taken, as few slots to the right as possible. A lookup starts at that slot and
moves right until it meets the hash (found) or a larger one (absent), so a miss costs as little as a hit.
"""

import numpy as np
import torch

from headway.models.ngram.counts import Array

LOAD_FACTOR = 0.6  # fraction of slots in use


class HashIndex:
    # 2^64 / golden ratio as a signed odd number: multiplying by it is a bijection, so equal hashes mean equal keys
    MULTIPLIER = np.int64(-7046029254386353131)

    def __init__(self, keys: Array):
        hashes, order = (x.numpy() for x in torch.from_numpy(self._hash(keys)).sort())
        self.n_slots = int(len(keys) / LOAD_FACTOR) + 1
        ranks = np.arange(len(keys))
        slots = ranks + np.maximum.accumulate(self._slot(hashes) - ranks)
        n_allocated = max([self.n_slots, *(slots[-1:] + 1)]) + 1
        self.hashes = np.full(n_allocated, 2**63 - 1)  # empty slots and the last one hold the largest number: a stop
        self.hashes[slots] = hashes
        self.positions = np.full(len(self.hashes), -1, np.int32 if len(keys) < 2**31 else np.int64)
        self.positions[slots] = order

    @property
    def nbytes(self) -> int:
        return self.hashes.nbytes + self.positions.nbytes

    def _hash(self, keys: Array) -> Array:
        return (keys ^ (keys >> 32)) * self.MULTIPLIER

    def _slot(self, hashes: Array) -> Array:
        """Monotonic in the hash: its upper half, scaled to the number of slots."""
        return (((hashes >> 32) + 2**31) * self.n_slots) >> 32

    def find(self, keys: Array) -> Array:
        """The position of each key, −1 if absent. Always int64: callers multiply it by the vocabulary size."""
        hashes = self._hash(keys)
        slots = self._slot(hashes)
        candidates = self.hashes.take(slots)
        pending = np.flatnonzero(candidates < hashes)
        while len(pending):
            slots[pending] += 1
            next_candidates = self.hashes.take(slots[pending])
            candidates[pending] = next_candidates
            pending = pending[next_candidates < hashes[pending]]
        return np.where(candidates == hashes, self.positions.take(slots), np.int64(-1))

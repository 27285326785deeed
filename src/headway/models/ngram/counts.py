"""Counting n-grams, and turning counts into probabilities, with arrays and no dict.

Every different n-gram of k tokens has a number: its place among those of k tokens, ordered by the number of its first
k − 1 tokens (its context) and then by its last. A row of tokens becomes a row of such numbers, order by order:

    number of the k-gram that ends at i  =  place of (number of the (k−1)-gram that ends at i − 1, token i)

which is one sort of integers per order. The followers of a context then lie side by side, and the k-gram without its
first token (its suffix) is the (k−1)-gram that ends at the same place.

Counting takes the tokens `CHUNK` at a time. A text of more is counted by sorted runs on disk that are merged, and the
rows of numbers lie on disk as well (`ScratchArrays`), so memory holds what differs, not what there is.
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[Any]

CHUNK = 1 << 24  # tokens counted at once: about 1 GiB of memory


@dataclass(frozen=True)
class Grams:
    """The different n-grams of one order, sorted by `keys` = context · V + last token. For one token that is every
    token of the vocabulary, seen or not."""

    keys: Array  # (M,) int64
    count: Array  # (M,) int64
    suffix: Array  # (M,) int64: the number, one order down, without the first token
    is_first: Array  # (M,) bool: it begins with the begin token, and nothing can stand before it
    is_edge: Array  # (M,) bool: it stood where a text begins without a begin token

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True)
class Counts:
    grams: list[Grams]  # of 1, 2, … tokens
    vocab_size: int
    bos_id: int | None
    first_seen: Array  # (V,) where each token was first, the begin and end token before all others, −2: never

    @property
    def n_words(self) -> int:
        """Tokens that can come next: all but the begin token."""
        return self.vocab_size - (self.bos_id is not None)

    def contexts(self, k: int) -> tuple[Array, int]:
        """The context of each n-gram of k tokens, and how many there are of its length."""
        if k == 1:
            return np.zeros(self.vocab_size, np.int64), 1
        return self.grams[k - 1].keys // self.vocab_size, len(self.grams[k - 2])


class ScratchArrays:
    """Arrays in memory, or where there are more than `CHUNK` tokens, in files that vanish with it."""

    def __init__(self, n_tokens: int):
        self.is_small = n_tokens <= CHUNK
        self.folder = None if self.is_small else tempfile.TemporaryDirectory(prefix="headway-counts-")

    def empty(self, n: int, dtype: Any) -> Array:
        if self.folder is None or n == 0:
            return np.empty(n, dtype)
        file = tempfile.NamedTemporaryFile(dir=self.folder.name, delete=False)  # noqa: SIM115 (lives with the folder)
        return np.memmap(file, dtype, "w+", shape=(n,))


def count(
    texts: Sequence[Sequence[Array]],
    order: int,
    vocab_size: int,
    *,
    bos_id: int | None = None,
    eos_id: int | None = None,
) -> Counts:
    """The n-grams of 1 to `order` tokens of several texts, each in one piece or several. None reaches over the
    beginning of a text or over a begin token, which may stand first in an n-gram and nowhere else. (A token that also
    ends texts is one like any other.)"""
    bos_id = None if bos_id == eos_id else bos_id
    V, n_tokens = vocab_size, sum(len(piece) for text in texts for piece in text)
    room = ScratchArrays(n_tokens)
    tokens, depth = room.empty(n_tokens, np.int32), room.empty(n_tokens, np.int16)  # how much of its text came so far
    at = 0
    for text in texts:
        before = 0
        for piece in text:
            here = slice(at, at + len(piece))
            tokens[here] = piece
            depth[here] = np.minimum(_depths(piece, bos_id, before), order + 1)
            at += len(piece)
            before = int(depth[at - 1]) if len(piece) else before
    numbers = room.empty(n_tokens, np.int64)  # of the n-gram that ends at each token
    numbers[:] = tokens
    unigrams = np.arange(V)
    is_bos = unigrams == (-1 if bos_id is None else bos_id)
    is_edge = np.zeros(V, dtype=bool)
    is_edge[tokens[(depth == 1) & (tokens != (-1 if bos_id is None else bos_id))]] = True
    found = [Grams(unigrams, np.bincount(tokens, minlength=V), np.zeros(V, np.int64), is_bos, is_edge)]
    for k in range(2, order + 1):
        found.append(_longer(found[-1], numbers, tokens, depth, k, V, room))
    first = np.full(V, -2, np.int64)
    first[tokens[::-1]] = np.arange(n_tokens)[::-1]  # the last one written stays
    for id in (bos_id, eos_id):
        if id is not None:
            first[id] = min(first[id], -1)
    return Counts(found, V, bos_id, first)


def _depths(piece: Array, bos_id: int | None, before: int) -> Array:
    """How many tokens of its text there are up to each token, where so many came before the piece."""
    place = np.arange(len(piece))
    if bos_id is None:
        return place + before + 1
    return place - np.maximum.accumulate(np.where(piece == bos_id, place, -before)) + 1


def _longer(shorter: Grams, numbers: Array, tokens: Array, depth: Array, k: int, V: int, room: ScratchArrays) -> Grams:
    """The n-grams of k tokens; `numbers` are those of k − 1 before, and of k after."""

    def pieces() -> Iterator[tuple[Array, Array]]:
        """Where n-grams of k tokens end, and their keys; last first, since numbers are replaced on the way."""
        for begin in reversed(range(0, len(tokens), CHUNK)):
            place = begin + np.flatnonzero(depth[begin : begin + CHUNK] >= k)
            yield place, numbers[place - 1] * V + tokens[place]

    if room.is_small:
        place, keys = next(pieces(), (np.zeros(0, np.int64),) * 2)
        unique, inverse, counts = _unique(keys)
        suffix = np.empty(len(unique), np.int64)
        suffix[inverse] = numbers[place]
        numbers[place] = inverse
    else:
        unique, counts = merged([_run(keys, room) for _, keys in pieces()], room)
        suffix = room.empty(len(unique), np.int64)
        for place, keys in pieces():
            ordered, order = (x.numpy() for x in torch.from_numpy(keys).sort())
            inverse = np.searchsorted(unique, ordered)
            suffix[inverse] = numbers[place[order]]
            numbers[place[order]] = inverse
    is_edge = np.zeros(len(unique), dtype=bool)
    is_first = shorter.is_first[unique // V]
    starts = np.flatnonzero(depth == k)
    is_edge[numbers[starts]] = True
    return Grams(unique, counts, suffix, is_first, is_edge & ~is_first)


def _unique(keys: Array) -> tuple[Array, Array, Array]:
    """Sorted and without repeats; the place of each key in that; how often each was there."""
    ordered, order = (x.numpy() for x in torch.from_numpy(keys).sort())
    is_new = np.ones(len(keys), dtype=bool)
    is_new[1:] = ordered[1:] != ordered[:-1]
    begins = np.flatnonzero(is_new)
    inverse = np.empty(len(keys), np.int64)
    inverse[order] = np.cumsum(is_new) - 1
    return ordered[begins], inverse, np.diff(begins, append=len(keys))


# ── counting on disk ──────────────────────────────────────────────────────────────────────────────────────────────


def _run(keys: Array, room: ScratchArrays) -> tuple[Array, Array]:
    """The different keys of a piece, sorted, and their counts, put aside."""
    unique, _, counts = _unique(keys)
    kept = room.empty(len(unique), np.int64), room.empty(len(unique), np.int64)
    kept[0][:], kept[1][:] = unique, counts
    return kept


def merged(runs: list[tuple[Array, Array]], room: ScratchArrays) -> tuple[Array, Array]:
    """One sorted row out of several, counts of equal keys added, a range of keys at a time: every run's share of a
    range lies side by side in it, so each is read once, from the beginning to the end."""
    total = sum(len(keys) for keys, _ in runs)
    n_ranges = max(1, -(-total // CHUNK) * 2)
    sample = np.sort(np.concatenate([keys[:: max(1, len(keys) // (8 * n_ranges))] for keys, _ in runs]))
    bounds = sample[np.linspace(0, len(sample) - 1, n_ranges + 1).astype(int)[1:-1]] if len(sample) else sample
    cuts = [np.concatenate([[0], np.searchsorted(keys, bounds), [len(keys)]]) for keys, _ in runs]
    parts: list[tuple[Array, Array]] = []
    for j in range(n_ranges):
        pieces = [
            (keys[c[j] : c[j + 1]], counts[c[j] : c[j + 1]]) for (keys, counts), c in zip(runs, cuts, strict=True)
        ]
        keys, inverse, _ = _unique(np.concatenate([keys for keys, _ in pieces]))
        weights = np.concatenate([counts for _, counts in pieces])
        kept = room.empty(len(keys), np.int64), room.empty(len(keys), np.int64)
        kept[0][:] = keys
        kept[1][:] = _summed(inverse, weights, len(keys))
        parts.append(kept)
    keys, counts = (room.empty(sum(len(p[i]) for p in parts), np.int64) for i in (0, 1))
    at = 0
    for part in parts:
        keys[at : at + len(part[0])], counts[at : at + len(part[0])] = part
        at += len(part[0])
    return keys, counts


def _summed(where: Array, what: Array, n: int) -> Array:
    """Whole numbers added up by place. (`bincount` adds them as float64, exactly up to 2^53.)"""
    return np.bincount(where, weights=what, minlength=n).astype(np.int64)

"""Counting n-grams by sorting integer arrays, without a Python object per n-gram.

Every distinct k-gram has an index: its rank among the k-grams, sorted by the index of its context (its first k − 1
tokens) and then by its last token. The indices are computed order by order, for all tokens of the text at once:

    index of the k-gram that ends at i  =  rank of (index of the (k−1)-gram that ends at i − 1, token i)

which is one integer sort per order. The k-grams that share a context are therefore contiguous, and the suffix of a
k-gram (without its first token) is the (k−1)-gram that ends at the same token.

A text of more than `CHUNK_TOKENS` tokens is counted by an external merge sort: each chunk becomes a sorted run on disk,
and the runs are merged. Arrays with one entry per token or n-gram are then memory-mapped files (`ScratchArrays`).
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headway.temporary_files import TemporaryFolder

Array = NDArray[Any]

CHUNK_TOKENS = 1 << 24  # tokens sorted at once: about 1 GiB of memory


@dataclass(frozen=True)
class Grams:
    """The M distinct n-grams of one order, sorted by `keys`. The unigrams are the whole vocabulary, counted or not."""

    keys: Array  # (M,) int64: index of the context · V + last token
    count: Array  # (M,) int64
    suffix: Array  # (M,) int64: index, one order down, of the n-gram without its first token
    starts_with_bos: Array  # (M,) bool: no token can precede it
    starts_text: Array  # (M,) bool: it occurred at the start of a text that has no BOS token

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True)
class Counts:
    grams: list[Grams]  # of order 1, 2, …
    vocab_size: int
    bos_id: int | None
    first_position: Array  # (V,) position of each token's first occurrence; BOS and EOS: −1; never counted: −2

    @property
    def n_predictable(self) -> int:
        """W, the number of tokens that can come next: all but BOS."""
        return self.vocab_size - (self.bos_id is not None)

    def contexts(self, k: int) -> tuple[Array, int]:
        """The context index of each k-gram, and the number of possible contexts."""
        if k == 1:
            return np.zeros(self.vocab_size, np.int64), 1
        return self.grams[k - 1].keys // self.vocab_size, len(self.grams[k - 2])


class ScratchArrays:
    """Allocates arrays in memory or, above `CHUNK_TOKENS` tokens, in temporary files that are deleted with it."""

    def __init__(self, n_tokens: int):
        self.in_memory = n_tokens <= CHUNK_TOKENS
        self.folder = None if self.in_memory else TemporaryFolder()

    def empty(self, n: int, dtype: Any) -> Array:
        if self.folder is None or n == 0:
            return np.empty(n, dtype)
        file = tempfile.NamedTemporaryFile(dir=self.folder.path, delete=False)  # noqa: SIM115 (lives with the folder)
        return np.memmap(file, dtype, "w+", shape=(n,))


def count_ngrams(
    texts: Sequence[Sequence[Array]],
    order: int,
    vocab_size: int,
    *,
    bos_id: int | None = None,
    eos_id: int | None = None,
) -> Counts:
    """Count the n-grams of 1 to `order` tokens in several texts, each given as one or more pieces.

    No n-gram crosses the start of a text or a BOS token: BOS occurs only as the first token of an n-gram. A BOS token
    that is also EOS separates texts and is counted like any other token.
    """
    bos_id = None if bos_id == eos_id else bos_id
    V, n_tokens = vocab_size, sum(len(piece) for text in texts for piece in text)
    scratch = ScratchArrays(n_tokens)
    tokens, positions = _concatenate(texts, n_tokens, order, bos_id, scratch)
    indices = scratch.empty(n_tokens, np.int64)  # of the n-gram that ends at each token
    indices[:] = tokens
    unigrams = np.arange(V)
    is_bos = unigrams == (-1 if bos_id is None else bos_id)
    starts_text = np.zeros(V, dtype=bool)
    starts_text[tokens[(positions == 1) & (tokens != (-1 if bos_id is None else bos_id))]] = True
    grams = [Grams(unigrams, np.bincount(tokens, minlength=V), np.zeros(V, np.int64), is_bos, starts_text)]
    for k in range(2, order + 1):
        grams.append(_count_order(k, grams[-1], indices, tokens, positions, V, scratch))
    first_position = np.full(V, -2, np.int64)
    first_position[tokens[::-1]] = np.arange(n_tokens)[::-1]  # later assignments win, so the first occurrence stays
    for id in (bos_id, eos_id):
        if id is not None:
            first_position[id] = min(first_position[id], -1)
    return Counts(grams, V, bos_id, first_position)


def _concatenate(
    texts: Sequence[Sequence[Array]], n_tokens: int, order: int, bos_id: int | None, scratch: ScratchArrays
) -> tuple[Array, Array]:
    """All tokens in one array, and the 1-based position of each in its text, at most `order` + 1."""
    tokens, positions = scratch.empty(n_tokens, np.int32), scratch.empty(n_tokens, np.int16)
    offset = 0
    for text in texts:
        last_position = 0
        for piece in text:
            span = slice(offset, offset + len(piece))
            tokens[span] = piece
            positions[span] = np.minimum(_text_positions(piece, bos_id, last_position), order + 1)
            offset += len(piece)
            last_position = int(positions[offset - 1]) if len(piece) else last_position
    return tokens, positions


def _text_positions(piece: Array, bos_id: int | None, last_position: int) -> Array:
    """The 1-based position of each token in its text, which starts anew at BOS; the piece before ended at
    `last_position`."""
    offsets = np.arange(len(piece))
    if bos_id is None:
        return offsets + last_position + 1
    return offsets - np.maximum.accumulate(np.where(piece == bos_id, offsets, -last_position)) + 1


def _count_order(
    k: int, shorter: Grams, indices: Array, tokens: Array, positions: Array, V: int, scratch: ScratchArrays
) -> Grams:
    """Count the k-grams, given the (k−1)-grams. `indices` holds those of the (k−1)-grams and is updated in place."""

    def chunks() -> Iterator[tuple[Array, Array]]:
        """The tokens where k-grams end, and their keys; last chunk first, because `indices` is overwritten."""
        for start in reversed(range(0, len(tokens), CHUNK_TOKENS)):
            ends = start + np.flatnonzero(positions[start : start + CHUNK_TOKENS] >= k)
            yield ends, indices[ends - 1] * V + tokens[ends]

    if scratch.in_memory:
        ends, keys = next(chunks(), (np.zeros(0, np.int64),) * 2)
        unique, inverse, counts = _unique(keys)
        suffix = np.empty(len(unique), np.int64)
        suffix[inverse] = indices[ends]
        indices[ends] = inverse
    else:
        unique, counts = merge_runs([_sorted_run(keys, scratch) for _, keys in chunks()], scratch)
        suffix = scratch.empty(len(unique), np.int64)
        for ends, keys in chunks():
            sorted_keys, order = (x.numpy() for x in torch.from_numpy(keys).sort())
            inverse = np.searchsorted(unique, sorted_keys)
            suffix[inverse] = indices[ends[order]]
            indices[ends[order]] = inverse
    starts_text = np.zeros(len(unique), dtype=bool)
    starts_with_bos = shorter.starts_with_bos[unique // V]
    starts_text[indices[np.flatnonzero(positions == k)]] = True
    return Grams(unique, counts, suffix, starts_with_bos, starts_text & ~starts_with_bos)


def _unique(keys: Array) -> tuple[Array, Array, Array]:
    """The distinct keys, sorted; the index of each key among them; how often each occurs."""
    sorted_keys, order = (x.numpy() for x in torch.from_numpy(keys).sort())
    is_new = np.ones(len(keys), dtype=bool)
    is_new[1:] = sorted_keys[1:] != sorted_keys[:-1]
    starts = np.flatnonzero(is_new)
    inverse = np.empty(len(keys), np.int64)
    inverse[order] = np.cumsum(is_new) - 1
    return sorted_keys[starts], inverse, np.diff(starts, append=len(keys))


# ── external merge sort ───────────────────────────────────────────────────────────────────────────────────────────


def _sorted_run(keys: Array, scratch: ScratchArrays) -> tuple[Array, Array]:
    """The distinct keys of a chunk, sorted, and their counts, in scratch arrays."""
    unique, _, counts = _unique(keys)
    run = scratch.empty(len(unique), np.int64), scratch.empty(len(unique), np.int64)
    run[0][:], run[1][:] = unique, counts
    return run


def merge_runs(runs: list[tuple[Array, Array]], scratch: ScratchArrays) -> tuple[Array, Array]:
    """Merge sorted runs of (keys, counts), adding the counts of equal keys.

    The key space is cut into ranges of about equal size, by quantiles of a sample. Each run's part of a range is
    contiguous, so every run is read once, front to back.
    """
    total = sum(len(keys) for keys, _ in runs)
    n_ranges = max(1, -(-total // CHUNK_TOKENS) * 2)
    sample = np.sort(np.concatenate([keys[:: max(1, len(keys) // (8 * n_ranges))] for keys, _ in runs]))
    bounds = sample[np.linspace(0, len(sample) - 1, n_ranges + 1).astype(int)[1:-1]] if len(sample) else sample
    cuts = [np.concatenate([[0], np.searchsorted(keys, bounds), [len(keys)]]) for keys, _ in runs]
    merged: list[tuple[Array, Array]] = []  # one per range
    for j in range(n_ranges):
        parts = [
            (keys[cut[j] : cut[j + 1]], counts[cut[j] : cut[j + 1]])
            for (keys, counts), cut in zip(runs, cuts, strict=True)
        ]
        keys, inverse, _ = _unique(np.concatenate([keys for keys, _ in parts]))
        counts = np.concatenate([counts for _, counts in parts])
        output = scratch.empty(len(keys), np.int64), scratch.empty(len(keys), np.int64)
        output[0][:] = keys
        output[1][:] = _sum_by_index(inverse, counts, len(keys))
        merged.append(output)
    keys, counts = (scratch.empty(sum(len(part[i]) for part in merged), np.int64) for i in (0, 1))
    offset = 0
    for part in merged:
        span = slice(offset, offset + len(part[0]))
        keys[span], counts[span] = part
        offset = span.stop
    return keys, counts


def _sum_by_index(indices: Array, values: Array, n: int) -> Array:
    """Sum integers by index. `bincount` adds them as float64, which is exact up to 2^53."""
    return np.bincount(indices, weights=values, minlength=n).astype(np.int64)

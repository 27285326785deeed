"""Datasets for causal language models: windows of one long token array, packed documents, and mixtures.

Each dataset has a length, and `collate` makes a batch of any of its examples by their indices.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.data.loader import IGNORE_INDEX, CausalBatch, IndexedDataset, RngKey
from headway.data.sampler import Indices, hash_key, permute
from headway.data.token_shards import TokenArray
from headway.errors import ConfigError, DataError


class CausalDataset:
    """Contiguous windows of `context` tokens: every token is a target once per epoch, except for a few at the end.

    With order="random" the first window of each epoch starts at a random offset, so that windows are cut elsewhere;
    with "sequential" it always starts at the first token. `n_streams` lays windows out for stateful truncated BPTT: row
    b of a batch continues where row b of the previous batch ended (use a sampler without shuffling and a batch size of
    `n_streams`). With `documents` a batch also holds the document index of each token. Tokens equal to `ignore_id`,
    such as a BOS that begins every document, are not targets.
    """

    def __init__(
        self,
        tokens: TokenArray,
        context: int,
        *,
        order: Literal["random", "sequential"] = "random",
        n_streams: int | None = None,
        documents: bool = False,
        ignore_id: int | None = None,
    ):
        if len(tokens) < 2:
            raise DataError(f"the text is too short to learn from (tokens: {len(tokens)}): give more")
        if context < 1 or (n_streams is not None and n_streams < 1):
            raise ConfigError(f"context={context}, n_streams={n_streams}: both must be at least 1")
        self.tokens = tokens
        self.context = min(context, len(tokens) - 1)
        self.is_random = order == "random"
        self.documents, self.ignore_id = documents, ignore_id
        n_targets = len(tokens) - 1
        reserved = min(self.context - 1, n_targets - self.context) if self.is_random else 0  # for the random offset
        self.n = (n_targets - reserved) // self.context
        self.n_streams = None if n_streams is None else min(n_streams, self.n)
        if self.n_streams is not None:
            self.n -= self.n % self.n_streams

    def __len__(self) -> int:
        return self.n

    def starts(self, indices: Indices, rng: RngKey) -> Indices:
        """The position of the first token of each window."""
        max_offset = len(self.tokens) - 1 - self.n * self.context if self.is_random else 0
        if self.n_streams is not None:
            step, stream = np.divmod(indices, self.n_streams)
            indices = stream * (self.n // self.n_streams) + step
        return indices * self.context + hash_key("offset", *rng) % (max_offset + 1)

    def collate(self, indices: Indices, rng: RngKey) -> CausalBatch:
        starts = self.starts(indices, rng)
        rows = torch.from_numpy(self.tokens.windows(starts, self.context + 1))  # (B, T + 1)
        documents = self._document_indices(starts) if self.documents else None
        targets = rows[:, 1:]
        if self.ignore_id is not None:
            targets = targets.masked_fill(targets == self.ignore_id, IGNORE_INDEX)
        carry = None if self.n_streams is None else torch.from_numpy((indices >= self.n_streams).astype(np.float32))
        return CausalBatch(rows[:, :-1], targets, None, documents, carry)

    def _document_indices(self, starts: Indices) -> Tensor:
        """(B, T) the document index of each input token, counted from the first document of the row."""
        positions = starts[:, None] + np.arange(self.context)
        documents = np.searchsorted(self.tokens.document_ends, positions, side="right")
        return torch.from_numpy(documents - documents[:, :1])


class PackedDataset:
    """Rows packed with as many whole documents as fit; a document longer than a row is cut into several chunks.

    Documents do not attend to each other (`documents` holds the document index of each token), no token is predicted
    from another document, and every token of a document but its first is a target. `bos_is_eos`: one token both
    ends a document and begins the next, and belongs to both.
    """

    def __init__(self, tokens: TokenArray, context: int, *, bos_is_eos: bool):
        if context < 1:
            raise ConfigError(f"context={context} must be at least 1")
        self.tokens, self.context = tokens, context
        ends = tokens.document_ends
        starts = np.concatenate([[0], ends[:-1] - (1 if bos_is_eos else 0)])[: len(ends)]
        chunks: list[tuple[int, int]] = []  # (start, end) of each chunk of a document, targets included
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            chunks += [(i, min(i + context + 1, end)) for i in range(start, end - 1, context)]
        if not chunks:
            raise DataError(f"the text is too short to learn from (tokens: {len(tokens)}): give more")
        self.chunks = np.array(chunks, dtype=np.int64)  # (n_chunks, 2)
        first_chunks = [0]
        space_left = context
        for i, size in enumerate((self.chunks[:, 1] - self.chunks[:, 0] - 1).tolist()):
            if size > space_left:
                first_chunks.append(i)
                space_left = context
            space_left -= size
        self.first_chunks = np.array([*first_chunks, len(chunks)], dtype=np.int64)  # of each row, and one past the last

    def __len__(self) -> int:
        return len(self.first_chunks) - 1

    def collate(self, indices: Indices, rng: RngKey) -> CausalBatch:
        B, T = len(indices), self.context
        inputs, targets = np.zeros((B, T), dtype=np.int64), np.full((B, T), IGNORE_INDEX, dtype=np.int64)
        documents, lengths = np.full((B, T), -1, dtype=np.int64), np.zeros(B, dtype=np.int64)
        for row, index in enumerate(indices.tolist()):
            offset = 0
            chunks = self.chunks[self.first_chunks[index] : self.first_chunks[index + 1]]
            for document, (start, end) in enumerate(chunks.tolist()):
                ids = self.tokens.read(start, end)
                stop = offset + len(ids) - 1
                inputs[row, offset:stop], targets[row, offset:stop] = ids[:-1], ids[1:]
                documents[row, offset:stop] = document
                offset = stop
            lengths[row] = offset
        return CausalBatch(*map(torch.from_numpy, (inputs, targets, lengths, documents)))


class MixtureDataset:
    """Several datasets mixed by weight, each traversed in its own shuffled epochs.

    Every block of `BLOCK_EXAMPLES` examples holds each dataset in proportion to its weight, in shuffled order. The
    proportions therefore hold throughout, and any example can be located without counting up to it. Use a sampler
    without shuffling.
    """

    BLOCK_EXAMPLES = 1000

    def __init__(self, weighted_datasets: Sequence[tuple[IndexedDataset[CausalBatch], float]]):
        weights = [weight for _, weight in weighted_datasets]
        total = sum(weights)
        if not weights or not total > 0 or any(weight <= 0 for weight in weights):
            raise ConfigError(f"the weights of a mixture must be positive: {weights}")
        self.datasets = [dataset for dataset, _ in weighted_datasets]
        contexts = [getattr(dataset, "context", None) for dataset in self.datasets]
        if len(set(contexts)) > 1:
            raise DataError(
                f"the rows of a mixture must have one length, not {contexts}: lower train.seq_len, "
                f"or leave out the short source"
            )
        boundaries = np.cumsum([weight / total for weight in weights]) * self.BLOCK_EXAMPLES
        self.counts = np.diff(np.rint(boundaries).astype(np.int64), prepend=0)  # examples of each dataset per block
        if not self.counts.all():
            raise ConfigError(f"a weight is below 1/{self.BLOCK_EXAMPLES} of the sum: {weights}")
        self.layout = np.repeat(np.arange(len(weights)), self.counts)  # (BLOCK_EXAMPLES,) dataset of each slot

    def __len__(self) -> int:
        return sum(map(len, self.datasets))

    def locate(self, indices: Indices, rng: RngKey) -> tuple[Indices, Indices, Indices]:
        """For each example: its dataset, the epoch of that dataset, and its index there."""
        blocks, slots = np.divmod(rng.epoch * len(self) + indices, self.BLOCK_EXAMPLES)
        datasets, ranks = np.empty_like(indices), np.empty_like(indices)
        for block in np.unique(blocks).tolist():
            shuffled = permute(np.arange(self.BLOCK_EXAMPLES), self.BLOCK_EXAMPLES, "mix", rng.seed, block)
            layout = self.layout[shuffled]
            # How many examples of the slot's dataset come before it, in this block and all earlier ones.
            slot_ranks = np.empty(self.BLOCK_EXAMPLES, dtype=np.int64)
            for dataset, count in enumerate(self.counts.tolist()):
                slot_ranks[layout == dataset] = np.arange(count) + block * count
            in_block = blocks == block
            datasets[in_block], ranks[in_block] = layout[slots[in_block]], slot_ranks[slots[in_block]]
        sizes = np.array([len(dataset) for dataset in self.datasets])[datasets]
        epochs, positions = np.divmod(ranks, sizes)
        example_indices = np.empty_like(indices)
        for dataset, epoch, rows in self._group_by_epoch(datasets, epochs):
            n = len(self.datasets[dataset])
            example_indices[rows] = permute(positions[rows], n, "order", rng.seed, dataset, epoch)
        return datasets, epochs, example_indices

    def _group_by_epoch(self, datasets: Indices, epochs: Indices) -> Iterator[tuple[int, int, NDArray[np.bool_]]]:
        """(dataset, epoch, rows): the rows that come from the same epoch of the same dataset."""
        for dataset, epoch in sorted(set(zip(datasets.tolist(), epochs.tolist(), strict=True))):
            yield dataset, epoch, (datasets == dataset) & (epochs == epoch)

    def collate(self, indices: Indices, rng: RngKey) -> CausalBatch:
        datasets, epochs, example_indices = self.locate(indices, rng)
        if not len(indices):
            return self.datasets[0].collate(indices, rng)
        batches, order = [], []
        for dataset, epoch, rows in self._group_by_epoch(datasets, epochs):
            batches.append(self.datasets[dataset].collate(example_indices[rows], RngKey(rng.seed, epoch)))
            order.append(np.flatnonzero(rows))
        return CausalBatch.stack(batches).rows(torch.from_numpy(np.argsort(np.concatenate(order))))


def consecutive_windows(stream: Tensor, context: int, batch_size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """One pass over the stream as (inputs, targets, lengths); every token but the first is a target exactly once."""
    n = len(stream) - 1
    starts = range(0, n, context)
    for i in range(0, len(starts), batch_size):
        rows = [stream[start : min(start + context, n) + 1] for start in starts[i : i + batch_size]]
        lengths = torch.tensor([len(row) - 1 for row in rows])
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        yield padded[:, :-1], padded[:, 1:], lengths

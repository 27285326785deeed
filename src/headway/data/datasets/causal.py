"""Examples for a causal language model, out of one long row of tokens.

Each class is a collection: it has a length, and makes a batch of any of its examples by their numbers.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.data.loader import IGNORE, CausalBatch, IndexedDataset, RngKey
from headway.data.sampler import Indices, hash_key, permute
from headway.data.token_shards import TokenArray
from headway.errors import ConfigError, DataError


class CausalDataset:
    """Windows of `context` tokens side by side: every token is a target once an epoch, but for the last few.

    "random": each epoch begins at another place, so that windows are cut elsewhere; "sequential": always at the first
    token. With `lanes`, windows are laid out so that row b of a batch goes on where row b of the batch before it ended,
    as truncated backpropagation through time wants it (use an order without shuffling and a batch size of `lanes`).
    With `documents` a batch also says which document each token belongs to. A token that is `given`, such as one that
    begins every document, is no target.
    """

    def __init__(
        self,
        tokens: TokenArray,
        context: int,
        *,
        order: Literal["random", "sequential"] = "random",
        lanes: int | None = None,
        documents: bool = False,
        given: int | None = None,
    ):
        if len(tokens) < 2:
            raise DataError(f"{len(tokens)} tokens are too few to learn from: give more text")
        if context < 1 or (lanes is not None and lanes < 1):
            raise ConfigError(f"context={context}, lanes={lanes}: both must be at least 1")
        self.tokens = tokens
        self.context = min(context, len(tokens) - 1)
        self.is_random = order == "random"
        self.documents, self.given = documents, given
        room = len(tokens) - 1 - (min(self.context - 1, len(tokens) - 1 - self.context) if self.is_random else 0)
        self.n = room // self.context
        self.lanes = None if lanes is None else min(lanes, self.n)
        if self.lanes is not None:
            self.n -= self.n % self.lanes

    def __len__(self) -> int:
        return self.n

    def starts(self, indices: Indices, draw: RngKey) -> Indices:
        """The first token of each window."""
        most = len(self.tokens) - 1 - self.n * self.context if self.is_random else 0
        if self.lanes is not None:
            step, lane = np.divmod(indices, self.lanes)
            indices = lane * (self.n // self.lanes) + step
        return indices * self.context + hash_key("offset", *draw) % (most + 1)

    def collate(self, indices: Indices, draw: RngKey) -> CausalBatch:
        starts = self.starts(indices, draw)
        rows = torch.from_numpy(self.tokens.windows(starts, self.context + 1))  # (B, T + 1)
        documents = self._documents(starts) if self.documents else None
        targets = rows[:, 1:]
        if self.given is not None:
            targets = targets.masked_fill(targets == self.given, IGNORE)
        carry = None if self.lanes is None else torch.from_numpy((indices >= self.lanes).astype(np.float32))
        return CausalBatch(rows[:, :-1], targets, None, documents, carry)

    def _documents(self, starts: Indices) -> Tensor:
        """The number of the document each input token belongs to, counted from the first of the row."""
        places = starts[:, None] + np.arange(self.context)
        numbers = np.searchsorted(self.tokens.document_ends, places, side="right")
        return torch.from_numpy(numbers - numbers[:, :1])


class PackedDataset:
    """Whole documents, as many to a row as fit; one that is longer than a row is cut into rows.

    Documents do not see each other (`documents` says which token is whose), none is predicted from another, and every
    token of a document is a target but its first. `shares_boundary`: the token that ends a document begins the next,
    and stands at the beginning of both.
    """

    def __init__(self, tokens: TokenArray, context: int, *, shares_boundary: bool):
        if context < 1:
            raise ConfigError(f"context={context} must be at least 1")
        self.tokens, self.context = tokens, context
        ends = tokens.document_ends
        begins = np.concatenate([[0], ends[:-1] - (1 if shares_boundary else 0)])[: len(ends)]
        pieces: list[tuple[int, int]] = []  # first and last + 1 token of each piece of a document, targets included
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            pieces += [(at, min(at + context + 1, end)) for at in range(begin, end - 1, context)]
        if not pieces:
            raise DataError(f"{len(tokens)} tokens are too few to learn from: give more text")
        self.pieces = np.array(pieces, dtype=np.int64)
        rows = [0]
        room = context
        for i, size in enumerate((self.pieces[:, 1] - self.pieces[:, 0] - 1).tolist()):
            if size > room:
                rows.append(i)
                room = context
            room -= size
        self.rows = np.array([*rows, len(pieces)], dtype=np.int64)  # first piece of each row

    def __len__(self) -> int:
        return len(self.rows) - 1

    def collate(self, indices: Indices, draw: RngKey) -> CausalBatch:
        B, T = len(indices), self.context
        inputs, targets = np.zeros((B, T), dtype=np.int64), np.full((B, T), IGNORE, dtype=np.int64)
        documents, lengths = np.full((B, T), -1, dtype=np.int64), np.zeros(B, dtype=np.int64)
        for row, index in enumerate(indices.tolist()):
            place = 0
            for number, (begin, end) in enumerate(self.pieces[self.rows[index] : self.rows[index + 1]].tolist()):
                ids = self.tokens.read(begin, end)
                stop = place + len(ids) - 1
                inputs[row, place:stop], targets[row, place:stop] = ids[:-1], ids[1:]
                documents[row, place:stop] = number
                place = stop
            lengths[row] = place
        return CausalBatch(*map(torch.from_numpy, (inputs, targets, lengths, documents)))


class MixtureDataset:
    """Several collections in given proportions, each gone through in its own shuffled epochs.

    Of every `BLOCK` examples, each collection gives its share, in shuffled places; so the proportions hold all along,
    and which example stands anywhere can be said without having counted up to there. Use an order without shuffling.
    """

    BLOCK = 1000

    def __init__(self, parts: Sequence[tuple[IndexedDataset[CausalBatch], float]]):
        total = sum(weight for _, weight in parts)
        if not parts or not total > 0 or any(weight <= 0 for _, weight in parts):
            raise ConfigError(f"the weights of a mix must be positive: {[weight for _, weight in parts]}")
        self.parts = [examples for examples, _ in parts]
        widths = [getattr(examples, "context", None) for examples in self.parts]
        if len(set(widths)) > 1:
            raise DataError(
                f"rows of a mix have one width, but these have {widths}: a source is shorter than the context"
            )
        edges = np.rint(np.cumsum([weight / total for _, weight in parts]) * self.BLOCK).astype(np.int64)
        self.shares = np.diff(edges, prepend=0)  # examples of each collection in a block
        if not self.shares.all():
            raise ConfigError(f"a weight is below 1/{self.BLOCK} of the sum: {[weight for _, weight in parts]}")
        self.layout = np.repeat(np.arange(len(parts)), self.shares)  # (BLOCK,) collection of each slot, unshuffled

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def locate(self, indices: Indices, draw: RngKey) -> tuple[Indices, Indices, Indices]:
        """For each example: which collection it comes from, in which epoch of its own, and its number there."""
        blocks, slots = np.divmod(draw.epoch * len(self) + indices, self.BLOCK)
        parts, counts = np.empty_like(indices), np.empty_like(indices)
        for block in np.unique(blocks).tolist():
            layout = self.layout[permute(np.arange(self.BLOCK), self.BLOCK, "mix", draw.seed, block)]
            # How many of its own collection stand before each slot of the block, and in all blocks before.
            before = np.empty(self.BLOCK, dtype=np.int64)
            for part, share in enumerate(self.shares.tolist()):
                own = layout == part
                before[own] = np.arange(share) + block * share
            here = blocks == block
            parts[here], counts[here] = layout[slots[here]], before[slots[here]]
        sizes = np.array([len(part) for part in self.parts])[parts]
        epochs, places = np.divmod(counts, sizes)
        numbers = np.empty_like(indices)
        for part, epoch, rows in self._groups(parts, epochs):
            numbers[rows] = permute(places[rows], len(self.parts[part]), "order", draw.seed, part, epoch)
        return parts, epochs, numbers

    def _groups(self, parts: Indices, epochs: Indices) -> Iterator[tuple[int, int, NDArray[np.bool_]]]:
        """Rows that come from the same epoch of the same collection."""
        for part, epoch in sorted(set(zip(parts.tolist(), epochs.tolist(), strict=True))):
            yield part, epoch, (parts == part) & (epochs == epoch)

    def collate(self, indices: Indices, draw: RngKey) -> CausalBatch:
        parts, epochs, numbers = self.locate(indices, draw)
        if not len(indices):
            return self.parts[0].collate(indices, draw)
        batches, order = [], []
        for part, epoch, rows in self._groups(parts, epochs):
            batches.append(self.parts[part].collate(numbers[rows], RngKey(draw.seed, epoch)))
            order.append(np.flatnonzero(rows))
        return CausalBatch.stack(batches).rows(torch.from_numpy(np.argsort(np.concatenate(order))))


def consecutive_windows(stream: Tensor, context: int, batch_size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The whole stream once: (inputs, targets, lengths), every token but the first a target exactly once."""
    n = len(stream) - 1
    begins = range(0, n, context)
    for i in range(0, len(begins), batch_size):
        rows = [stream[b : min(b + context, n) + 1] for b in begins[i : i + batch_size]]
        lengths = torch.tensor([len(row) - 1 for row in rows])
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        yield padded[:, :-1], padded[:, 1:], lengths

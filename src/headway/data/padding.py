"""Rows of different lengths, close together in memory, and padded when they come out."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.data.sampler import Indices
from headway.errors import ConfigError
from headway.tokenizers import Tokenizer


def room_for(tokenizer: Tokenizer, context: int, n_texts: int = 1) -> tuple[int, int]:
    """Tokens of text that fit into a row beside the special ones, and how many of those come first."""
    frame, _ = tokenizer.frame([], [] if n_texts == 2 else None)
    room = context - len(frame)
    if room < n_texts:
        raise ConfigError(f"context={context} leaves no room for text beside {len(frame)} special tokens")
    return room, tokenizer.frame([-1])[0].index(-1)


class RaggedArray:
    def __init__(self, rows: Iterable[Sequence[int]]):
        pieces = [np.asarray(row, dtype=np.int32) for row in rows]
        self.values = np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int32)
        self.ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> NDArray[np.int32]:
        return self.values[self.ends[index - 1] if index else 0 : self.ends[index]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.ends, prepend=0)

    def padded(self, indices: Indices, fill: int) -> tuple[Tensor, Tensor]:
        """Some rows, (B, T), filled up at their ends, and the mask of what is real."""
        return pad([self[i] for i in indices.tolist()], fill)


def pad(rows: Sequence[Sequence[int] | NDArray[np.int32]], fill: int) -> tuple[Tensor, Tensor]:
    width = max((len(row) for row in rows), default=0)
    values = np.full((len(rows), width), fill, dtype=np.int64)
    mask = np.zeros((len(rows), width), dtype=bool)
    for i, row in enumerate(rows):
        values[i, : len(row)] = row
        mask[i, : len(row)] = True
    return torch.from_numpy(values), torch.from_numpy(mask)

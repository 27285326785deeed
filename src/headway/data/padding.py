"""Variable-length rows: stored contiguously, padded when batched."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from headway.data.sampler import Indices
from headway.errors import ConfigError
from headway.tokenizers import Tokenizer

ROW_MULTIPLE, TOKEN_MULTIPLE = 32, 8  # bucketed batches are padded to multiples of these; fewer rows to a power of two


def text_capacity(tokenizer: Tokenizer, context: int, n_texts: int = 1) -> tuple[int, int]:
    """How many text tokens fit into `context` next to the special tokens, and how many special tokens precede them."""
    special_ids, _ = tokenizer.build_inputs([], [] if n_texts == 2 else None)
    capacity = context - len(special_ids)
    if capacity < n_texts:
        raise ConfigError(
            f"context={context} has no space for text next to {len(special_ids)} special tokens: raise it"
        )
    return capacity, tokenizer.build_inputs([-1])[0].index(-1)


class RaggedArray:
    """Rows of different lengths in one contiguous array."""

    def __init__(self, rows: Iterable[Sequence[int]]):
        arrays = [np.asarray(row, dtype=np.int32) for row in rows]
        self.values = np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int32)
        self.ends = np.cumsum([len(array) for array in arrays], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> NDArray[np.int32]:
        return self.values[self.ends[index - 1] if index else 0 : self.ends[index]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.ends, prepend=0)

    def padded(self, indices: Indices, fill: int) -> tuple[Tensor, Tensor]:
        """The selected rows, right-padded (B, T), and the mask of real values (B, T)."""
        return pad([self[i] for i in indices.tolist()], fill)


def pad(rows: Sequence[Sequence[int] | NDArray[np.int32]], fill: int) -> tuple[Tensor, Tensor]:
    """Rows right-padded with `fill` to the longest (B, T), and the mask of real values (B, T)."""
    width = max((len(row) for row in rows), default=0)
    values = np.full((len(rows), width), fill, dtype=np.int64)
    mask = np.zeros((len(rows), width), dtype=bool)
    for i, row in enumerate(rows):
        values[i, : len(row)] = row
        mask[i, : len(row)] = True
    return torch.from_numpy(values), torch.from_numpy(mask)


def pad_rows(values: Tensor, fill: int) -> Tensor:
    """Values per row (B, …), with the batch dimension padded to a power of two, or a multiple of `ROW_MULTIPLE`."""
    n_rows = len(values)
    n_added = -n_rows % ROW_MULTIPLE if n_rows > ROW_MULTIPLE else (1 << (n_rows - 1).bit_length()) - n_rows
    return F.pad(values, (0, 0) * (values.dim() - 1) + (0, n_added), value=fill)


def pad_rows_and_tokens(values: Tensor, fill: int, max_len: int) -> Tensor:
    """Values per token (B, T), with rows padded as by `pad_rows`, and tokens to a multiple of `TOKEN_MULTIPLE`, but to
    at most `max_len`.

    The batches of the recipe multi30k-en-de then have 44 shapes instead of 333, with 29 % more tokens.
    """
    n_new_tokens = max(0, min(-values.shape[1] % TOKEN_MULTIPLE, max_len - values.shape[1]))
    return pad_rows(F.pad(values, (0, n_new_tokens), value=fill), fill)


def pad_mask(mask: Tensor, max_len: int) -> Tensor:
    """A mask (B, T) padded likewise. An added row has one token: attention over an empty row would be undefined."""
    padded = pad_rows_and_tokens(mask, False, max_len)
    padded[len(mask) :, 0] = True
    return padded

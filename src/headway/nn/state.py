"""The decoding state: its protocol, and its simplest implementation, `TokenWindow`.

`model.step` takes a state and returns the next one; a model never stores it. A Transformer's state is a KV cache
(kv_cache.py), an LSTM's is its (h, c), and an n-gram's is a window over the last n − 1 tokens (`TokenWindow`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

from headway.errors import InputError, count


class State(Protocol):
    """What a model's `step` takes and returns: a KV cache, an (h, c) or the last n − 1 tokens."""

    @property
    def length(self) -> Tensor:
        """(B,) tokens each row has consumed."""
        ...

    @property
    def nbytes(self) -> int: ...

    def reorder(self, rows: Tensor | Sequence[int]) -> Self:
        """Row i of the result is row `rows[i]`: repeat rows for beams, drop finished ones."""
        ...

    def copy(self) -> Self: ...


def row_indices(rows: Tensor | Sequence[int], length: Tensor) -> Tensor:
    """The rows of a state to keep, as indices (N,) on its device. Values are checked only if they are on the host."""
    indices = torch.as_tensor(rows)
    if indices.numel() == 0:
        indices = indices.long().reshape(0)
    if indices.dim() != 1 or indices.dtype not in (torch.int64, torch.int32):
        raise InputError(
            f"rows of shape {tuple(indices.shape)} and type {indices.dtype}: reorder takes a list of row indices, such "
            f"as [0, 0, 2]"
        )
    if indices.device.type == "cpu" and indices.numel():
        low, high = (int(bound) for bound in indices.aminmax())
        if not 0 <= low <= high < len(length):
            raise InputError(
                f"rows {indices.tolist()} for a state of {len(length)} rows: indices run from 0 to {len(length) - 1}"
            )
    return indices.to(length.device, torch.long)


def describe_state(state: State) -> str:
    """The repr of a state: its rows and its size, without the tensors. Lengths on a GPU are not read."""
    return f"{type(state).__name__}({describe_rows(state.length)}, {state.nbytes:,} bytes)"


def describe_rows(length: Tensor) -> str:
    """2 rows of 3 to 5 tokens."""
    rows = count(len(length), "row")
    if length.device.type != "cpu" or not len(length):
        return rows
    low, high = (int(bound) for bound in length.aminmax())
    return f"{rows} of {count(high, 'token')}" if low == high else f"{rows} of {low:,} to {high:,} tokens"


@dataclass(frozen=True, repr=False)
class TokenWindow:
    """The last n tokens of each row (B, n), −1 before the start of the text: the state of fixed-context models."""

    tokens: Tensor
    length: Tensor  # (B,)

    @classmethod
    def start(cls, batch_size: int, n: int, device: torch.device) -> "TokenWindow":
        if batch_size < 0:
            raise InputError(f"start(batch_size={batch_size}): batch_size must be at least 0")
        tokens = torch.full((batch_size, n), -1, device=device)
        return cls(tokens, torch.zeros(batch_size, dtype=torch.long, device=device))

    def __repr__(self) -> str:
        return describe_state(self)

    @property
    def nbytes(self) -> int:
        return self.tokens.nbytes

    def concat(self, ids: Tensor) -> Tensor:
        """The window followed by the new tokens (B, T): (B, n + T)."""
        return torch.cat((self.tokens, ids.long().to(self.tokens.device)), dim=1)

    def append(self, ids: Tensor, lengths: Tensor | None) -> "TokenWindow":
        """The window after the new tokens (B, T), of which the first `lengths` (B,) are real."""
        n = self.tokens.shape[1]
        n_new = torch.full_like(self.length, ids.shape[1]) if lengths is None else lengths.to(self.length.device)
        last = n_new[:, None] + torch.arange(n, device=self.length.device)
        return TokenWindow(self.concat(ids).gather(1, last), self.length + n_new)

    def reorder(self, rows: Tensor | Sequence[int]) -> "TokenWindow":
        rows = row_indices(rows, self.length)
        return TokenWindow(self.tokens[rows], self.length[rows])

    def copy(self) -> "TokenWindow":
        return TokenWindow(self.tokens.clone(), self.length.clone())

"""The token ids of each row so far: ragged lists, or a right-padded tensor with lengths, which needs no copy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headway.errors import InputError


@dataclass(frozen=True)
class History:
    """Token ids (B, T), right-padded; row i has `lengths[i]` tokens, the first `n_prompt[i]` of them the prompt."""

    ids: Tensor
    lengths: Tensor  # (B, 1)
    n_prompt: Tensor  # (B, 1)

    @staticmethod
    def of(
        history: Any,
        n_prompt: Sequence[int] | Tensor | int | None,
        n_rows: int,
        device: torch.device,
    ) -> "History":
        """From a History, lists of ids, (ids, lengths), a tensor without padding, or None."""
        if isinstance(history, History):
            return history
        if history is None:
            no_tokens = torch.zeros(n_rows, 0, dtype=torch.long, device=device)
            history = (no_tokens, torch.zeros(n_rows, dtype=torch.long, device=device))
        if hasattr(history, "shape"):  # a tensor or an array: all rows have its full length
            history = (torch.as_tensor(history), [history.shape[-1]] * history.shape[0])
        if isinstance(history, tuple) and len(history) == 2 and torch.as_tensor(history[0]).dim() == 2:
            ids, lengths = torch.as_tensor(history[0]), torch.as_tensor(history[1])
            is_outside = lengths.device.type == "cpu" and bool(((lengths < 0) | (lengths > ids.shape[1])).any())
            if is_outside:
                raise InputError(f"history lengths {lengths.tolist()} must lie between 0 and the width {ids.shape[1]}")
        else:
            rows = [torch.as_tensor(row, dtype=torch.long) for row in history]
            if any(row.dim() != 1 for row in rows):
                raise InputError("a history is a list of token ids per row, or (ids, lengths) with ids right-padded")
            lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True) if rows else torch.zeros(0, 0).long()
        if ids.dim() != 2 or ids.shape[0] != n_rows or lengths.shape != (n_rows,):
            raise InputError(
                f"a history of shape {tuple(ids.shape)} for logits of {n_rows} rows: pass a list of token ids per row, "
                f"or (ids, lengths) with ids (B, T) right-padded and lengths (B,)"
            )
        n = torch.zeros(n_rows, dtype=torch.long, device=device) if n_prompt is None else torch.as_tensor(n_prompt)
        if n.dim() > 1 or (n.dim() == 1 and n.shape != (n_rows,)):
            raise InputError(
                f"n_prompt of shape {tuple(n.shape)} for logits of {n_rows} rows: pass one number, or one per row"
            )
        n = n.to(device, torch.long).expand(n_rows)
        return History(ids.to(device, torch.long), lengths.to(device, torch.long)[:, None], n[:, None])

    @property
    def n_generated(self) -> Tensor:
        """(B, 1)"""
        return (self.lengths - self.n_prompt).clamp(min=0)

    def in_window(self, window: Tensor, generated_only: Tensor | None = None) -> Tensor:
        """(B, T): True for the last `window` tokens (0: all), without the prompt in rows where `generated_only`."""
        position = torch.arange(self.ids.shape[1], device=self.ids.device)[None]
        start = torch.zeros_like(self.lengths)
        if generated_only is not None:
            start = torch.where(generated_only, self.n_prompt, 0)
        start = torch.where(window > 0, torch.maximum(start, self.lengths - window), start)
        return (position >= start) & (position < self.lengths)

    def widened(self, n: int) -> "History":
        """A copy with capacity for n more tokens."""
        ids = torch.nn.functional.pad(self.ids, (0, n))
        return History(ids, self.lengths.clone(), self.n_prompt)

    def reorder(self, rows: Tensor) -> "History":
        return History(self.ids[rows], self.lengths[rows], self.n_prompt[rows])


def members(ids: Tensor | None, tokens: Tensor, vocab_size: int) -> Tensor:
    """(B, N): whether each of ids (B, N) is in `tokens` (B or 1, M), padded with −1; None: the whole vocabulary.

    Membership is a table lookup, so thousands of tokens cost no more than one.
    """
    table = torch.zeros(tokens.shape[0], vocab_size + 1, dtype=torch.bool, device=tokens.device)
    index = torch.where((tokens >= 0) & (tokens < vocab_size), tokens, vocab_size)
    table.scatter_(1, index, index < vocab_size)
    if ids is None:
        return table[:, :-1]
    index = torch.where((ids >= 0) & (ids < vocab_size), ids, vocab_size)
    return table.expand(ids.shape[0], -1).gather(1, index)

"""What each row has said so far: ragged lists, or a right-padded tensor with lengths, which needs no copy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headway.errors import InputError


@dataclass(frozen=True)
class History:
    """Token ids (B, T), right-padded; `lengths` (B, 1) of them are real, the first `n_prompt` (B, 1) the prompt's."""

    ids: Tensor
    lengths: Tensor
    n_prompt: Tensor

    @staticmethod
    def of(
        history: Any,  # a History, lists of ids, (ids, lengths), a tensor, or None
        n_prompt: Sequence[int] | Tensor | int | None,
        n_rows: int,
        device: torch.device,
    ) -> "History":
        """From lists, (ids, lengths), a tensor without padding, or nothing."""
        if isinstance(history, History):
            return history
        if history is None:
            history = [[]] * n_rows
        if hasattr(history, "shape"):  # a tensor or an array: every row as long as it is
            history = (torch.as_tensor(history), [history.shape[-1]] * history.shape[0])
        if isinstance(history, tuple) and len(history) == 2 and torch.as_tensor(history[0]).dim() == 2:
            ids, lengths = torch.as_tensor(history[0]), torch.as_tensor(history[1])
            is_outside = lengths.device.type == "cpu" and bool(((lengths < 0) | (lengths > ids.shape[1])).any())
            if is_outside:
                raise InputError(
                    f"lengths {lengths.tolist()} for histories of {ids.shape[1]} places: from 0 to that many"
                )
        else:
            rows = [torch.as_tensor(row, dtype=torch.long) for row in history]
            if any(row.dim() != 1 for row in rows):
                raise InputError("a history is a list of token ids per row, or (ids, lengths), right-padded")
            lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)
            ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True) if rows else torch.zeros(0, 0).long()
        if ids.dim() != 2 or ids.shape[0] != n_rows or lengths.shape != (n_rows,):
            raise InputError(
                f"a history of shape {tuple(ids.shape)} for logits of {n_rows} rows: one list of token ids per row, or "
                f"(ids, lengths) with ids (B, T) right-padded and lengths (B,)"
            )
        n = torch.zeros(n_rows, dtype=torch.long, device=device) if n_prompt is None else torch.as_tensor(n_prompt)
        if n.dim() > 1 or (n.dim() == 1 and n.shape != (n_rows,)):
            raise InputError(
                f"n_prompt of shape {tuple(n.shape)} for logits of {n_rows} rows: one number, or one per row"
            )
        n = n.to(device, torch.long).expand(n_rows)
        return History(ids.to(device, torch.long), lengths.to(device, torch.long)[:, None], n[:, None])

    @property
    def n_generated(self) -> Tensor:
        """(B, 1)"""
        return (self.lengths - self.n_prompt).clamp(min=0)

    def inside(self, window: Tensor, generated: Tensor | None = None) -> Tensor:
        """(B, T): True for the tokens that are among the last `window` (0: all), where `generated` of those alone."""
        at = torch.arange(self.ids.shape[1], device=self.ids.device)[None]
        start = torch.zeros_like(self.lengths) if generated is None else torch.where(generated, self.n_prompt, 0)
        start = torch.where(window > 0, torch.maximum(start, self.lengths - window), start)
        return (at >= start) & (at < self.lengths)

    def widened(self, n: int) -> "History":
        """A copy with room for n more tokens."""
        ids = torch.nn.functional.pad(self.ids, (0, n))
        return History(ids, self.lengths.clone(), self.n_prompt)

    def reorder(self, rows: Tensor) -> "History":
        return History(self.ids[rows], self.lengths[rows], self.n_prompt[rows])


def members(ids: Tensor | None, tokens: Tensor, vocab_size: int) -> Tensor:
    """(B, N): whether each of ids (B, N) is one of `tokens` (B or 1, M), −1 filling up; None: the whole vocabulary.
    By a table, so that thousands of tokens cost no more than one."""
    table = torch.zeros(tokens.shape[0], vocab_size + 1, dtype=torch.bool, device=tokens.device)
    place = torch.where((tokens >= 0) & (tokens < vocab_size), tokens, vocab_size)
    table.scatter_(1, place, place < vocab_size)
    if ids is None:
        return table[:, :-1]
    place = torch.where((ids >= 0) & (ids < vocab_size), ids, vocab_size)
    return table.expand(ids.shape[0], -1).gather(1, place)

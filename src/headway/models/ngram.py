"""n-gram: the next token as it was counted after the last n − 1 (Shannon 1948; Jelinek & Mercer 1980).

    p_k(w | h) = (count(h w) + distinct(h) · p_{k−1}(w | h')) / (count(h) + distinct(h))

h: the last k tokens, h': without the oldest, distinct(h): how many different tokens followed h; p_{−1} = 1/V.
This is Witten-Bell smoothing (1991, method C): it has nothing to tune, and no probability is ever zero.

Contexts are numbered by what was seen: a context of k tokens is the pair (number of its last k − 1, oldest token),
looked up in a sorted array. No dict per n-gram, so counting and scoring are a few array operations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.config import NGramConfig
from headway.errors import CheckpointError, InputError
from headway.models.base import Model, blank_padding, last_real
from headway.models.stack import check_rows
from headway.nn.embedding import check_ids
from headway.nn.state import as_rows


@dataclass(frozen=True)
class NGramState:
    """The last n − 1 tokens of each row (B, n − 1), −1 where its text had not begun."""

    tail: Tensor
    length: Tensor  # (B,)

    @property
    def nbytes(self) -> int:
        return self.tail.nbytes

    def reorder(self, rows: Tensor | Sequence[int]) -> "NGramState":
        rows = as_rows(rows, self.length)
        return NGramState(self.tail[rows], self.length[rows])

    def copy(self) -> "NGramState":
        return NGramState(self.tail.clone(), self.length.clone())


class NGram(Model):
    """Tables per context length k: `contexts` sorted keys, `start` where the followers of each begin, `token` and
    `count` of the followers."""

    config: NGramConfig
    TABLES = ("contexts", "start", "token", "count")

    def __init__(self, config: NGramConfig):
        super().__init__()
        self.config = config
        for k in range(config.order):
            for name in self.TABLES:
                self.register_buffer(f"{name}{k}", torch.zeros(0, dtype=torch.long))
        self.init_weights()

    def init_weights(self) -> None:
        """Nothing counted yet: every token is equally likely."""
        for k in range(self.config.order):
            self._set_table(k, *(torch.zeros(n, dtype=torch.long, device=self.device) for n in (0, 1, 0, 0)))

    @property
    def device(self) -> torch.device:
        return self.get_buffer("contexts0").device

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def n_params(self) -> int:
        """Counts held: one per different n-gram."""
        return sum(self.get_buffer(f"count{k}").numel() for k in range(self.config.order))

    def load_weights(self, tensors: Mapping[str, Tensor]) -> None:
        names = {f"{name}{k}" for k in range(self.config.order) for name in self.TABLES}
        if odd := sorted(names ^ set(tensors)):
            raise CheckpointError(f"the tables lack or should not have {odd[0]!r} for order={self.config.order}")
        for k in range(self.config.order):
            contexts, start, token, count = (tensors[f"{name}{k}"] for name in self.TABLES)
            fit = len(start) == len(contexts) + 1 and len(token) == len(count) == int(start[-1])
            if not fit or (token.numel() and int(token.max()) >= self.config.vocab_size):
                raise CheckpointError(f"the tables of context length {k} do not fit each other or config.json")
        for k in range(self.config.order):
            self._set_table(k, *(tensors[f"{name}{k}"] for name in self.TABLES))

    def _set_table(self, k: int, *tables: Tensor) -> None:
        for name, table in zip(self.TABLES, tables, strict=True):
            setattr(self, f"{name}{k}", table)

    def fit(self, ids: Tensor) -> "NGram":
        """Count a text (N,), or rows of them (B, N)."""
        ids = ids.reshape(1, -1) if ids.dim() == 1 else ids
        check_ids(ids, self.config.vocab_size)
        V, ids = self.config.vocab_size, ids.long()
        history, following = ids[:, :-1], ids[:, 1:]
        numbers = torch.zeros_like(history)  # the empty context is number 0
        for k in range(self.config.order):
            older = self._shifted(history, k)
            keys = torch.where((numbers >= 0) & (older >= 0), numbers * (V + 1) + older, -1)
            contexts = keys[keys >= 0].unique()
            numbers = _find(contexts, keys)
            known = numbers >= 0
            pairs, count = (numbers[known] * V + following[known]).unique(return_counts=True)
            start = torch.searchsorted(pairs, torch.arange(contexts.numel() + 1, device=ids.device) * V)
            self._set_table(k, contexts, start, pairs % V, count)
        return self

    @staticmethod
    def _shifted(history: Tensor, k: int) -> Tensor:
        """The token that makes a context of k − 1 one of k: k − 1 places back. The empty context adds nothing (0)."""
        if k == 0:
            return torch.zeros_like(history)
        older = torch.full_like(history, -1)
        older[:, k - 1 :] = history[:, : max(0, history.shape[1] - (k - 1))]
        return older

    def probabilities(self, history: Tensor) -> Tensor:
        """p(next token) after each position of history (B, T), which may hold −1 for "nothing": (B, T, V)."""
        V = self.config.vocab_size
        # float64: a rare token after a long, sure context is far below what float32 can hold.
        p = torch.full((history.numel(), V), 1 / V, dtype=torch.float64, device=history.device)
        numbers = torch.zeros_like(history)
        for k in range(self.config.order):
            contexts, start, token, count = (self.get_buffer(f"{name}{k}") for name in self.TABLES)
            older = self._shifted(history, k)
            keys = torch.where((numbers >= 0) & (older >= 0), numbers * (V + 1) + older, -1)
            numbers = _find(contexts, keys)
            row = (numbers.flatten() >= 0).nonzero().squeeze(1)
            n = numbers.flatten()[row]
            distinct = start[n + 1] - start[n]  # (N,) followers of each context
            # All followers of all contexts, end to end: the j-th of context n is at start[n] + j.
            which = torch.repeat_interleave(torch.arange(len(n), device=n.device), distinct)
            first = distinct.cumsum(0) - distinct
            at = start[n][which] + torch.arange(len(which), device=n.device) - first[which]
            total = torch.zeros(len(n), dtype=p.dtype, device=p.device).index_add_(0, which, count[at].to(p.dtype))
            p[row] *= (distinct / (total + distinct))[:, None]
            p[row[which], token[at]] += count[at] / (total + distinct)[which]
        return p.view(*history.shape, V)

    def forward(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        ids, _ = blank_padding(ids, lengths)
        check_ids(ids, self.config.vocab_size)
        return self.probabilities(ids.long()).log().float()

    def start(self, batch_size: int = 1, capacity: int | None = None) -> NGramState:
        """No room is needed, so `capacity` is for the contract's sake."""
        if batch_size < 0:
            raise InputError(f"start(batch_size={batch_size}): rows from 0")
        tail = torch.full((batch_size, self.config.order - 1), -1, device=self.device)
        return NGramState(tail, torch.zeros(batch_size, dtype=torch.long, device=self.device))

    def step(
        self, ids: Tensor, state: NGramState, lengths: Tensor | None = None, *, last: bool = False
    ) -> tuple[Tensor, NGramState]:
        ids, lengths = blank_padding(ids, lengths)
        check_rows(ids, state.tail.shape[0])
        check_ids(ids, self.config.vocab_size)
        n, T = state.tail.shape[1], ids.shape[1]
        seen = torch.cat((state.tail, ids.long()), dim=1)  # (B, n + T)
        real = torch.full_like(state.length, T) if lengths is None else lengths
        logits = self.probabilities(seen)[:, n:].log().float()
        keep = real[:, None] + torch.arange(n, device=ids.device)  # the n tokens before the end of each row
        return last_real(logits, lengths) if last else logits, NGramState(seen.gather(1, keep), state.length + real)


def _find(table: Tensor, keys: Tensor) -> Tensor:
    """The place of each key in a sorted table, −1 where it is not there."""
    if table.numel() == 0:
        return torch.full_like(keys, -1)
    place = torch.searchsorted(table, keys).clamp(max=table.numel() - 1)
    return torch.where(table[place] == keys, place, -1)

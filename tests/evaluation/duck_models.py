"""Two small models that keep the contract without inheriting from anything, written to be broken one part at a time."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import torch
from torch import Tensor

V, D = 31, 8


def weights(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.5


def new_tokens(ids: Tensor, lengths: Tensor | None) -> Tensor:
    """The number of real tokens of each row (B,)."""
    return torch.full((len(ids),), ids.shape[1]) if lengths is None else lengths


def without_padding(ids: Tensor, n_new: Tensor) -> Tensor:
    return ids.masked_fill(torch.arange(ids.shape[1]) >= n_new[:, None], 0)


def last_of(logits: Tensor, n_new: Tensor) -> Tensor:
    return logits[torch.arange(len(logits)), (n_new - 1).clamp(min=0)][:, None]


@dataclass(frozen=True)
class HiddenState:
    h: Tensor  # (B, D)
    length: Tensor  # (B,)

    @property
    def nbytes(self) -> int:
        return self.h.nbytes

    def reorder(self, rows):
        return type(self)(self.h[rows], self.length[rows])

    def copy(self):
        return type(self)(self.h.clone(), self.length.clone())


class Recurrent:
    """h_t = tanh(h_{t−1} W + E[x_t]), logits = h_t U."""

    state_class = HiddenState

    def __init__(self):
        self.config = SimpleNamespace(vocab_size=V, context=None)
        self.E, self.W, self.U = weights(V, D, seed=1), weights(D, D, seed=2), weights(D, V, seed=3)

    def run(self, ids, h, n_new):
        outputs = []
        for t, x in enumerate(without_padding(ids, n_new).unbind(dim=1)):
            new = torch.tanh(h @ self.W + self.E[x])
            h = torch.where((t < n_new)[:, None], new, h)
            outputs.append(new)
        return torch.stack(outputs, dim=1) @ self.U, h

    def __call__(self, ids, lengths=None):
        return self.run(ids, torch.zeros(len(ids), D), new_tokens(ids, lengths))[0]

    def start(self, batch_size=1, capacity=None):
        return self.state_class(torch.zeros(batch_size, D), torch.zeros(batch_size, dtype=torch.long))

    def step(self, ids, state, lengths=None, *, last=False):
        n_new = new_tokens(ids, lengths)
        logits, h = self.run(ids, state.h, n_new)
        return last_of(logits, n_new) if last else logits, self.state_class(h, state.length + n_new)


@dataclass(frozen=True)
class CacheState:
    x: Tensor  # (B, capacity, D), written in place
    length: Tensor  # (B,)

    @property
    def nbytes(self) -> int:
        return self.x.nbytes

    def reorder(self, rows):
        return replace(self, x=self.x[rows], length=self.length[rows])

    def copy(self):
        return replace(self, x=self.x.clone(), length=self.length.clone())


class Attention:
    """One attention layer over embeddings with learned positions, and a cache."""

    def __init__(self):
        self.config = SimpleNamespace(vocab_size=V, context=16)
        self.E, self.P, self.U = weights(V, D, seed=1), weights(16, D, seed=2), weights(D, V, seed=3)
        self.Q, self.K = weights(D, D, seed=4), weights(D, D, seed=5)

    def positions(self, state, n_tokens):
        return state.length[:, None] + torch.arange(n_tokens)  # (B, T)

    def may_attend(self, positions, n_slots):
        return torch.arange(n_slots) <= positions[..., None]  # (B, T, S)

    def write(self, x, state, positions, n_new):
        is_real = torch.arange(x.shape[1]) < n_new[:, None]
        if int(positions[is_real].max()) >= state.x.shape[1]:
            raise ValueError("the cache is full")
        rows = torch.arange(len(x))[:, None].expand_as(positions)
        state.x[rows[is_real], positions[is_real]] = x[is_real]

    def __call__(self, ids, lengths=None):
        return self.step(ids, self.start(len(ids), ids.shape[1]), lengths)[0]

    def start(self, batch_size=1, capacity=None):
        return CacheState(torch.zeros(batch_size, capacity or 16, D), torch.zeros(batch_size, dtype=torch.long))

    def step(self, ids, state, lengths=None, *, last=False):
        n_new = new_tokens(ids, lengths)
        positions = self.positions(state, ids.shape[1])
        x = self.E[without_padding(ids, n_new)] + self.P[positions.clamp(max=15)]
        self.write(x, state, positions, n_new)
        scores = (x @ self.Q) @ (state.x @ self.K).transpose(1, 2)  # (B, T, S)
        mask = self.may_attend(positions, state.x.shape[1])
        attended = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1) @ state.x
        logits = (x + attended) @ self.U
        return last_of(logits, n_new) if last else logits, replace(state, length=state.length + n_new)

"""From token ids to vectors and back. Tied, the same matrix serves both ways (Press & Wolf 2017)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.errors import InputError
from headway.nn.linear import linear


class Embedding(nn.Module):
    """ids (B, T) → vectors (B, T, D); `unembed` turns vectors into logits (B, T, V)."""

    def __init__(self, vocab_size: int, d_model: int, *, scale: bool = False, tied: bool = True):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))
        self.output = None if tied else nn.Parameter(torch.empty(vocab_size, d_model))
        self.scale = math.sqrt(d_model) if scale else 1.0  # Vaswani et al. 2017, §3.4

    def forward(self, ids: Tensor, what: str = "ids") -> Tensor:
        check_ids(ids, self.weight.shape[0], what)
        x = F.embedding(ids, self.weight)
        return x * self.scale if self.scale != 1.0 else x

    @property
    def table(self) -> nn.Parameter:
        """The matrix (V, D) that turns vectors into logits."""
        return self.weight if self.output is None else self.output

    def unembed(self, x: Tensor) -> Tensor:
        return linear(x, self.table)


def check_shape(ids: Tensor, what: str = "ids") -> None:
    if not isinstance(ids, Tensor):
        raise InputError(f"{what} of type {type(ids).__name__}: expected a tensor; use torch.tensor({what})")
    if ids.dim() != 2:
        raise InputError(f"{what} of shape {tuple(ids.shape)}: expected (batch, tokens); one text is {what}[None]")


def check_ids(ids: Tensor, vocab_size: int, what: str = "ids") -> None:
    """Refuse ids that are not integers (B, T) below the vocabulary size.

    Values are looked at on the CPU alone: on a GPU that would wait for all work queued so far, at every step.
    """
    check_shape(ids, what)
    if ids.dtype not in (torch.int64, torch.int32):
        raise InputError(f"{what} of type {ids.dtype}: token ids are integers; use .long()")
    if ids.shape[1] == 0:
        raise InputError(
            f"{what} of shape {tuple(ids.shape)} hold no token: give at least one, such as the begin token"
        )
    if ids.device.type != "cpu" or torch.compiler.is_compiling() or ids.numel() == 0:
        return
    low, high = (int(bound) for bound in ids.aminmax())
    if low < 0 or high >= vocab_size:
        raise InputError(
            f"{'token id' if what == 'ids' else what} {low if low < 0 else high} is outside the vocabulary of "
            f"{vocab_size}: ids run from 0 to {vocab_size - 1}; was the text encoded with another tokenizer?"
        )

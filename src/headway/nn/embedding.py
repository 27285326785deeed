"""Token embedding and unembedding. Tied embeddings share one matrix (Press & Wolf 2017)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.errors import InputError


class Embedding(nn.Module):
    """ids (B, T) → embeddings (B, T, D); `unembed` maps hidden states (B, T, D) to logits (B, T, V)."""

    def __init__(self, vocab_size: int, d_model: int, *, scale: bool = False, tied: bool = True):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))
        self.output = None if tied else nn.Parameter(torch.empty(vocab_size, d_model))
        self.scale = math.sqrt(d_model) if scale else 1.0  # Vaswani et al. 2017, §3.4

    def forward(self, ids: Tensor, name: str = "ids") -> Tensor:
        check_ids(ids, self.weight.shape[0], name)
        x = F.embedding(ids, self.weight)
        return x * self.scale if self.scale != 1.0 else x

    @property
    def table(self) -> nn.Parameter:
        """The output matrix (V, D)."""
        return self.weight if self.output is None else self.output


def check_shape(ids: Tensor, name: str = "ids") -> None:
    if not isinstance(ids, Tensor):
        raise InputError(f"{name} of type {type(ids).__name__}: expected a tensor; use torch.tensor({name})")
    if ids.dim() != 2:
        raise InputError(f"{name} of shape {tuple(ids.shape)}: expected (batch, tokens); for one text use {name}[None]")


def check_ids(ids: Tensor, vocab_size: int, name: str = "ids") -> None:
    """Require integer ids (B, T) below the vocabulary size.

    Values are checked on the CPU only: on a GPU the check would force a synchronisation at every step.
    """
    check_shape(ids, name)
    if ids.dtype not in (torch.int64, torch.int32):
        raise InputError(f"{name} of type {ids.dtype}: token ids are integers; use .long()")
    if ids.shape[1] == 0:
        raise InputError(
            f"{name} of shape {tuple(ids.shape)} contain no tokens: pass at least one, such as the BOS token"
        )
    if ids.device.type != "cpu" or torch.compiler.is_compiling() or ids.numel() == 0:
        return
    low, high = (int(bound) for bound in ids.aminmax())
    if low < 0 or high >= vocab_size:
        raise InputError(
            f"{'token id' if name == 'ids' else name} {low if low < 0 else high} is outside the vocabulary of "
            f"{vocab_size}: ids run from 0 to {vocab_size - 1}; was the text encoded with another tokenizer?"
        )

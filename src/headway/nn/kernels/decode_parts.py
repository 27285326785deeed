"""Parameters of norms and tables of positions, for the decode kernels in Triton and in C."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class PositionTables:
    """What positions do to queries, keys and scores, for every position up to the capacity of the cache."""

    cos: Tensor | None = None  # (capacity, K/2), float32: rotary
    sin: Tensor | None = None
    offsets: Tensor | None = None  # (capacity, K): per-layer
    bias: Tensor | None = None  # (H, n): of distances 1 − n … 0: relative, ALiBi


def norm_parameters(norm: nn.Module | None) -> tuple[str, Tensor | None, Tensor | None, float]:
    """Kind, gain, bias and ε of a norm."""
    if norm is None or isinstance(norm, nn.Identity):
        return "none", None, None, 0.0
    if isinstance(norm, nn.LayerNorm):
        return "layer", norm.weight, norm.bias, norm.eps
    assert isinstance(norm, nn.RMSNorm)
    return "rms", norm.weight, None, norm.eps if norm.eps is not None else torch.finfo(torch.float32).eps

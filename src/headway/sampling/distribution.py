"""A row of logits as a distribution over the tokens alive: those that are not −inf."""

from types import ModuleType

import torch
from torch import Tensor

MANY = 4096  # columns from which a GPU computes in float32, whose sums are good to 1e-6


def on_host(tensor: Tensor) -> bool:
    """Whether a value may be looked at: not on a GPU, which would stall, nor while compiling, which would end there."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def alive(l: Tensor) -> Tensor:
    return l > -torch.inf


def widened(l: Tensor) -> Tensor:
    """The row in float64, in which equal masses compare as equal; in float32 where that is slow, or not there."""
    is_slow = l.is_cuda and l.shape[-1] > MANY
    return l.float() if is_slow or l.device.type == "mps" else l.double()


def gpu_kernels(l: Tensor) -> ModuleType | None:
    """kernels.py, for rows so long that a GPU computes with them in float32; None where PyTorch has no Triton."""
    if not l.is_cuda or l.dtype != torch.float32 or l.shape[-1] <= MANY:
        return None
    try:
        from headway.sampling import kernels
    except ImportError:
        return None
    return kernels


def narrowed(l: Tensor, dtype: torch.dtype) -> Tensor:
    """In this type; what is alive stays finite."""
    if l.dtype == dtype:
        return l
    limit = torch.finfo(dtype)
    return torch.where(alive(l), l.clamp(limit.min, limit.max), l).to(dtype)


def probabilities(l: Tensor) -> Tensor:
    return widened(l).softmax(dim=-1)


def entropy(p: Tensor) -> Tensor:
    """(B, 1) in nats; 0 ln 0 = 0."""
    return torch.special.entr(p).sum(dim=-1, keepdim=True, dtype=torch.float64)

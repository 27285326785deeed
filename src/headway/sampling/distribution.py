"""A row of logits as a distribution over its live tokens: those that are not −inf."""

from types import ModuleType

import torch
from torch import Tensor

from headway.compilers import triton_works

FLOAT32_COLUMNS = 4096  # longer rows use float32 on a GPU, whose sums are accurate to 1e-6


def on_host(tensor: Tensor) -> bool:
    """Whether code may branch on values: not on a GPU (a synchronisation) nor while compiling (a graph break)."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def alive(l: Tensor) -> Tensor:
    return l > -torch.inf


def widened(l: Tensor) -> Tensor:
    """The row in float64, where equal masses compare equal; in float32 where float64 is slow or missing."""
    is_slow = l.is_cuda and l.shape[-1] > FLOAT32_COLUMNS
    return l.float() if is_slow or l.device.type == "mps" else l.double()


def gpu_kernels(l: Tensor, min_columns: int = FLOAT32_COLUMNS + 1) -> ModuleType | None:
    """kernels.py for float32 rows on a GPU, by default only for rows whose sums are in float32; None for others, and
    where Triton does not work."""
    if not l.is_cuda or l.dtype != torch.float32 or l.shape[-1] < min_columns or not triton_works(l.device):
        return None
    from headway.sampling import kernels

    return kernels


def narrowed(l: Tensor, dtype: torch.dtype) -> Tensor:
    """The row in this dtype; live tokens stay finite."""
    if l.dtype == dtype:
        return l
    limit = torch.finfo(dtype)
    return torch.where(alive(l), l.clamp(limit.min, limit.max), l).to(dtype)


def probabilities(l: Tensor) -> Tensor:
    return widened(l).softmax(dim=-1)


def entropy(p: Tensor) -> Tensor:
    """(B, 1) in nats; 0 ln 0 = 0."""
    return torch.special.entr(p).sum(dim=-1, keepdim=True, dtype=torch.float64)

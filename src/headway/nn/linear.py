"""y = x Wᵀ + b, with a product that can be exchanged from outside.

`Linear` computes by `linear_fn`, which is `F.linear` unless `use_linear` or a faster kernel (kernels/cpu_linear.py)
replaces it, as `use_attention` replaces attention.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch.nn.functional as F
from torch import Tensor, nn

LinearFn = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # x (…, in), weight (out, in), bias (out,) → (…, out)


class Linear(nn.Linear):
    """`nn.Linear` with an exchangeable product. `parts` holds the rows of each matrix if several are stacked."""

    def __init__(self, n_in: int, n_out: int | Sequence[int], *, bias: bool = True):
        self.parts = [n_out] if isinstance(n_out, int) else list(n_out)
        super().__init__(n_in, sum(self.parts), bias=bias)
        self.linear_fn: LinearFn = F.linear

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_fn(x, self.weight, self.bias)


M = TypeVar("M", bound=nn.Module)


def use_linear(model: M, linear_fn: LinearFn) -> M:
    """Make every matrix product of a model's layers and of its unembedding use this function; returns the model."""
    for module in model.modules():
        for name in ("linear_fn", "unembed_fn"):
            if name in module.__dict__:
                setattr(module, name, linear_fn)
    return model

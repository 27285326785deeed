"""y = x Wᵀ + b, and the same for the few rows of a decoding step on a CPU.

One token needs every weight once, so a step takes as long as reading them. BLAS multiplies a matrix by one vector on a
single core, which cannot ask for memory fast enough; cut into a batch of smaller matrices, all cores read at once.
GPT-2's 3072 × 768 on two cores: 690 µs as `F.linear`, 270 µs in two halves (benchmarks/linear.py).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEW_ROWS = 4  # beyond these the ordinary product is as good
LEAST_WEIGHTS = 2**16  # below these there is nothing to wait for


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (…, in), weight (out, in), bias (out,) → (…, out), by whichever way is fast."""
    if (
        x.device.type == "cpu"
        and x.numel() <= FEW_ROWS * weight.shape[1]
        and weight.numel() >= LEAST_WEIGHTS
        and not torch.is_grad_enabled()
        and x.dtype == torch.float32
        and not torch.compiler.is_compiling()
        and weight.is_contiguous()
        and torch.get_num_threads() > 1
    ):
        return few_rows_linear(x, weight, bias, torch.get_num_threads())
    return F.linear(x, weight, bias)


def few_rows_linear(x: Tensor, weight: Tensor, bias: Tensor | None, n_parts: int) -> Tensor:
    """The same product with W cut into `n_parts` bands of rows, which BLAS takes as a batch, a core each."""
    rows = x.reshape(-1, x.shape[-1]).T  # (in, M)
    n_out, n_in = weight.shape
    band = n_out // n_parts
    even = n_parts * band
    y = weight.new_empty(n_out, rows.shape[1])
    bands = weight[:even].view(n_parts, band, n_in)
    torch.bmm(bands, rows.expand(n_parts, -1, -1), out=y[:even].view(n_parts, band, rows.shape[1]))
    if even < n_out:
        torch.mm(weight[even:], rows, out=y[even:])
    if bias is not None:
        y += bias[:, None]
    return y.T.reshape(*x.shape[:-1], n_out)


class Linear(nn.Linear):
    """`nn.Linear`, computed by `linear`. `parts` says how many rows each matrix has where it is several in one."""

    def __init__(self, n_in: int, n_out: int | Sequence[int], *, bias: bool = True):
        self.parts = [n_out] if isinstance(n_out, int) else list(n_out)
        super().__init__(n_in, sum(self.parts), bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)

"""y = x Wᵀ + b, and the same on a CPU for the few rows of a decoding step, and for learning.

One token needs every weight once, so a step takes as long as reading them. BLAS multiplies a matrix by one vector on a
single core, which cannot ask for memory fast enough; cut into a batch of smaller matrices, all cores read at once.
GPT-2's 3072 × 768 on two cores: 690 µs as `F.linear`, 270 µs in two halves (benchmarks/linear.py). For more rows MKL
takes its time on processors that are not Intel's; oneDNN does not: 8 rows 910 → 560 µs, of the unembedding 25 → 10 ms.
And with the matrix in oneDNN's own order, which it would otherwise make for every product, 8 rows take 310 µs: what
multiplies by the same weights again and again keeps them so (`PackedWeights`).
"""

from collections.abc import Sequence
from contextvars import ContextVar, Token
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

FEW_ROWS = 4  # up to these the banded product is the fastest
SOME_ROWS = 16  # up to these it beats MKL's ordinary one
FEWEST_PACKED, MOST_PACKED = 3, 512  # rows for which packed weights are the fastest, and worth their memory
LEAST_WEIGHTS = 2**16  # below these there is nothing to wait for


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (…, in), weight (out, in), bias (out,) → (…, out), by whichever way is fast."""
    if x.device.type == "cpu" and x.dtype == torch.float32 and not torch.compiler.is_compiling():
        if weight.numel() < LEAST_WEIGHTS or torch.is_autocast_enabled("cpu"):
            return F.linear(x, weight, bias)
        n_rows, n_threads = x.numel() // max(1, weight.shape[1]), torch.get_num_threads()
        packs = _packs.get()
        if packs is not None and FEWEST_PACKED <= n_rows <= MOST_PACKED and not torch.is_grad_enabled():
            return torch.ops.mkldnn._linear_pointwise(x, packs.of(weight), bias, "none", [], "")
        can_band = not torch.is_grad_enabled() and weight.is_contiguous() and n_threads > 1
        if can_band and n_rows <= (FEW_ROWS if _prefers_onednn() else SOME_ROWS):
            return few_rows_linear(x, weight, bias, n_threads)
        if _prefers_onednn():
            return onednn_linear(x, weight, bias)
    return F.linear(x, weight, bias)


class PackedWeights:
    """Inside the block, weights are packed when first used, and kept packed as long as this object lives: twice the
    memory, so for those who decode. (Weights that change meanwhile would not be noticed: hence a block.)

    Inside another block of the same kind that one's are used. Where oneDNN is not the choice it does nothing.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}  # by id; the weight is kept too, so that its id stays its own
        self._before: list[Token[PackedWeights | None]] = []

    def __enter__(self) -> "PackedWeights":
        around = _packs.get()
        can_pack = _prefers_onednn() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        self._before.append(_packs.set(around or (self if can_pack else None)))
        return self

    def __exit__(self, *exception: object) -> None:
        _packs.reset(self._before.pop())

    def of(self, weight: Tensor) -> Tensor:
        found = self._kept.get(id(weight))
        if found is None:
            # Of ordinary rows, whatever the call: how it is packed changes no number.
            found = self._kept[id(weight)] = weight, torch.ops.mkldnn._reorder_linear_weight(weight.detach(), SOME_ROWS)
        return found[1]


_packs: ContextVar[PackedWeights | None] = ContextVar("packs", default=None)


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


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same product by oneDNN, where that is the faster library: on processors that are not Intel's, with its
    gradients 1.1 times MKL for x Wᵀ and for the gradient of x, not for that of W (benchmarks/linear.py --learning)."""
    if not torch.is_grad_enabled():
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return _ByOneDNN.apply(x, weight, bias)


class _ByOneDNN(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        grad_x = grad_w = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.ops.mkldnn._linear_pointwise(grad, weight.t(), None, "none", [], "")
        if ctx.needs_input_grad[1]:
            grad_w = rows.t() @ x.reshape(-1, x.shape[-1])
        if ctx.has_bias and ctx.needs_input_grad[2]:
            grad_b = rows.sum(0)
        return grad_x, grad_w, grad_b


@cache
def _prefers_onednn() -> bool:
    """By the maker of the processor, not by trying: what is computed must not depend on how busy the machine was."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")[:4096]
    except OSError:
        return False


class Linear(nn.Linear):
    """`nn.Linear`, computed by `linear`. `parts` says how many rows each matrix has where it is several in one."""

    def __init__(self, n_in: int, n_out: int | Sequence[int], *, bias: bool = True):
        self.parts = [n_out] if isinstance(n_out, int) else list(n_out)
        super().__init__(n_in, sum(self.parts), bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)

"""Matrix products x Wᵀ + b on a CPU, in float32, for the few rows of a decode step and for training.

    F.linear(x, weight, bias)                                 what every kernel here computes

A decode step reads every weight once, so it takes as long as reading them. Three facts make it faster than `F.linear`
(figures: GPT-2's 3072 × 768 matrix on two cores, `python benchmarks/linear.py`):

- BLAS multiplies a matrix by one vector on a single core, which cannot saturate memory bandwidth. Cut into bands of
  rows, the product is a batched one and every core reads its own band: 690 → 270 µs (`banded_linear`).
- For more rows, MKL is slow on processors that are not Intel's; oneDNN is not: 8 rows 910 → 560 µs (`onednn_linear`).
- oneDNN reorders the weights on every call. Packed once into its own layout, 8 rows take 310 µs. That needs the memory
  of the weights again, so only decoding does it (`CPULinear` with `pack=True`).

Layers do not know these kernels. The decode loops, evaluation and training install them on a built model, as
`use_attention` swaps attention.
"""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from headway.nn.linear import Linear, LinearFn, use_linear

MIN_WEIGHTS = 2**16  # smaller matrices fit in cache: F.linear is as fast
MAX_BANDED_ROWS = {"onednn": 4, "mkl": 16}  # up to here bands beat the library's own product
MIN_PACKED_ROWS, MAX_PACKED_ROWS = 3, 512  # rows for which packed weights are the fastest
PACK_FOR_ROWS = 16  # the layout does not depend on it


class CPULinear:
    """The product of one weight matrix, by the fastest kernel for the number of rows. Without gradients."""

    def __init__(self, *, pack: bool):
        self.pack = pack and can_pack()
        self.packed: Tensor | None = None  # the weight in oneDNN's layout, made at the first use

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if torch.is_grad_enabled() or not is_plain_float32(x, weight):
            return F.linear(x, weight, bias)
        n_rows, n_threads = x.numel() // max(1, weight.shape[1]), torch.get_num_threads()
        if self.pack and MIN_PACKED_ROWS <= n_rows <= MAX_PACKED_ROWS:
            return torch.ops.mkldnn._linear_pointwise(x, self.onednn_weight(weight), bias, "none", [], "")
        library = "onednn" if _prefers_onednn() else "mkl"
        if n_threads > 1 and n_rows <= MAX_BANDED_ROWS[library] and weight.is_contiguous():
            return banded_linear(x, weight, bias, n_threads)
        return onednn_linear(x, weight, bias) if library == "onednn" else F.linear(x, weight, bias)

    def onednn_weight(self, weight: Tensor) -> Tensor:
        """The weight as oneDNN gets it: packed at the first use if at all."""
        if not self.pack:
            return weight
        if self.packed is None:
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), PACK_FOR_ROWS)
        return self.packed


class CPUKernels:
    """A reusable context: inside it, the model's matrix products use `CPULinear`. Does nothing on a GPU.

    With `pack`, weights are packed when first used and stay packed as long as this object lives. Weights that change in
    the meantime are not noticed, so make a new object after an optimizer step. Nested contexts share the outermost one.
    """

    def __init__(self, model: object, *, pack: bool = True):
        self.model = model if isinstance(model, nn.Module) and is_on_cpu(model) else None
        self.linear = {} if self.model is None else {site: CPULinear(pack=pack) for site in _sites(self.model)}
        self.kernels: dict[tuple[nn.Module, str], Callable[..., Tensor]] = {**self.linear}
        self.previous: dict[tuple[nn.Module, str], Callable[..., Tensor] | None] = {}  # None: the method of the class
        self.depth = 0

    def __enter__(self) -> "CPUKernels":
        self.depth += 1
        if self.depth > 1 or any(isinstance(module.__dict__[name], CPULinear) for module, name in self.linear):
            return self
        for (module, name), kernel in self.kernels.items():
            self.previous[module, name] = module.__dict__.get(name)
            module.__dict__[name] = kernel  # past nn.Module.__setattr__, which costs microseconds per layer and token
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.depth -= 1
        if self.depth == 0:
            for (module, name), function in self.previous.items():
                if function is None:
                    del module.__dict__[name]
                else:
                    module.__dict__[name] = function
            self.previous = {}


def use_cpu_training_kernels(model: nn.Module) -> None:
    """Train with oneDNN's products where they are the faster ones: a CPU that is not Intel's, in float32."""
    if is_on_cpu(model) and _prefers_onednn():
        use_linear(model, onednn_linear)


def training_linear_fn(device: torch.device) -> LinearFn:
    """The product that training uses on a device."""
    return onednn_linear if device.type == "cpu" and _prefers_onednn() else F.linear


def banded_linear(x: Tensor, weight: Tensor, bias: Tensor | None, n_bands: int) -> Tensor:
    """W cut into `n_bands` bands of rows, multiplied as a batch: one core per band. In few operations: a decode step of
    GPT-2 small takes 49 products, and each operation a microsecond."""
    n_out, n_in = weight.shape
    columns = x.reshape(-1, n_in).T  # (in, M); BLAS needs it as a transposed matrix: as a copy it is 3 times slower
    if n_out % n_bands:
        n_even = n_out - n_out % n_bands
        y = weight.new_empty(n_out, columns.shape[1])
        y_even = y[:n_even].view(n_bands, -1, columns.shape[1])
        torch.bmm(weight[:n_even].view(n_bands, -1, n_in), columns.expand(n_bands, -1, -1), out=y_even)
        torch.mm(weight[n_even:], columns, out=y[n_even:])
        if bias is not None:
            y += bias[:, None]
    else:
        bands, columns = weight.view(n_bands, -1, n_in), columns.expand(n_bands, -1, -1)
        y = torch.bmm(bands, columns) if bias is None else torch.baddbmm(bias.view(n_bands, -1, 1), bands, columns)
        if columns.shape[-1] == 1:
            return y.view(*x.shape[:-1], n_out)
        y = y.view(n_out, -1)
    return y.T.reshape(*x.shape[:-1], n_out)


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product by oneDNN, with gradients. Where oneDNN is the faster library it is 1.1 times MKL for x Wᵀ and for
    the gradient of x, but not for that of W (`python benchmarks/linear.py --training`)."""
    if not is_plain_float32(x, weight):
        return F.linear(x, weight, bias)
    if not torch.is_grad_enabled():
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return _OneDNNLinear.apply(x, weight, bias)


class _OneDNNLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad_rows = grad.reshape(-1, grad.shape[-1])
        grad_x = grad_w = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.ops.mkldnn._linear_pointwise(grad, weight.t(), None, "none", [], "")
        if ctx.needs_input_grad[1]:
            grad_w = grad_rows.t() @ x.reshape(-1, x.shape[-1])
        if ctx.has_bias and ctx.needs_input_grad[2]:
            grad_b = grad_rows.sum(0)
        return grad_x, grad_w, grad_b


def _sites(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Where a model's products are exchanged: every `Linear`, and the unembedding."""
    for module in model.modules():
        if isinstance(module, Linear):
            yield module, "linear_fn"
        elif "unembed_fn" in module.__dict__:
            yield module, "unembed_fn"


def is_plain_float32(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernels above apply: float32 on a CPU, not traced or autocast, and large enough to matter."""
    return (
        x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and weight.numel() >= MIN_WEIGHTS
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
    )


def is_on_cpu(model: nn.Module) -> bool:
    parameter = next(model.parameters(), None)
    return parameter is not None and parameter.device.type == "cpu"


@cache
def _prefers_onednn() -> bool:
    """By the processor's vendor rather than by timing: results must not depend on how busy the machine was."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")[:4096]
    except OSError:
        return False


def can_pack() -> bool:
    return _prefers_onednn() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")

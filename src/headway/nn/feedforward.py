"""The position-wise feed-forward network: two matrices with a non-linearity, or three with a gate.

FFN(x) = act(x W₁ + b₁) W₂ + b₂                  Vaswani et al. 2017, eq. 2 (ReLU); GELU: Hendrycks & Gimpel 2016
SwiGLU(x) = (SiLU(x W_gate) ⊙ x W_up) W_down     Shazeer 2020, eq. 6
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.nn.linear import Linear


def gelu(x: Tensor) -> Tensor:
    """x Φ(x), with Φ the standard normal CDF (Hendrycks & Gimpel 2016, eq. 1)."""
    return _CompiledGELU.apply(x) if torch.compiler.is_compiling() else F.gelu(x)


def gelu_tanh(x: Tensor) -> Tensor:
    """The tanh approximation GPT-1 and GPT-2 were trained with (eq. 2). (1 + tanh u)/2 is the logistic function of 2u,
    which compiles to one exponential, where tanh takes a dozen operations."""
    if not torch.compiler.is_compiling():
        return F.gelu(x, approximate="tanh")
    x32 = x.float()
    return (x32 * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x32 + 0.044715 * x32**3))).to(x.dtype)


class _CompiledGELU(torch.autograd.Function):
    """The erf form of GELU for compiled code, where the built-in erf takes longer than reading and writing x.

    1 − erf(z) = (a₁ t + … + a₅ t⁵) e^(−z²), t = 1/(1 + p z), z ≥ 0, to 1.5e-7 (Abramowitz & Stegun 7.1.26).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        x32 = x.float()
        return (x32 * _normal(x32)[0]).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x32 = ctx.saved_tensors[0].float()
        cdf, pdf = _normal(x32)
        return (grad.float() * (cdf + x32 * pdf)).to(grad.dtype)


def _normal(x: Tensor) -> tuple[Tensor, Tensor]:
    """Φ(x) and φ(x)."""
    exponential = torch.exp(-0.5 * x * x)
    t = 1 / (1 + (0.3275911 / math.sqrt(2)) * x.abs())
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * series * exponential  # Φ(−|x|)
    return torch.where(x >= 0, 1 - tail, tail), exponential / math.sqrt(2 * math.pi)


def relu(x: Tensor) -> Tensor:
    """max(0, x). In place when gradients are disabled: the input is not needed again."""
    return F.relu(x, inplace=not torch.is_grad_enabled())


def relu2(x: Tensor) -> Tensor:
    """ReLU squared (So et al. 2021, §3.2)."""
    return F.relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": relu,
    "gelu": gelu,
    "gelu-tanh": gelu_tanh,
    "relu2": relu2,
}


class FeedForward(nn.Module):
    def __init__(self, d_model: int, d_ff: int, activation: Callable[[Tensor], Tensor], *, bias: bool = True):
        super().__init__()
        self.up = Linear(d_model, d_ff, bias=bias)
        self.down = Linear(d_ff, d_model, bias=bias)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D)
        return self.down(self.activation(self.up(x)))


class GatedFeedForward(nn.Module):
    """SwiGLU. Gate and up projections are one matrix of 2F rows: one matmul instead of two."""

    def __init__(self, d_model: int, d_ff: int, *, bias: bool = False):
        super().__init__()
        self.gate_up = Linear(d_model, [d_ff, d_ff], bias=bias)
        self.down = Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D)
        gate, up = self.gate_up(x).chunk(2, dim=-1)  # (B, T, F) each
        return self.down(F.silu(gate) * up)


def make_feed_forward(kind: str, d_model: int, d_ff: int, *, bias: bool) -> FeedForward | GatedFeedForward:
    """The feed-forward network named `kind` in the config."""
    if kind == "swiglu":
        return GatedFeedForward(d_model, d_ff, bias=bias)
    return FeedForward(d_model, d_ff, ACTIVATIONS[kind], bias=bias)

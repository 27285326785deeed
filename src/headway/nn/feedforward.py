"""The position-wise feed-forward network: two matrices with a non-linearity, or three with a gate.

FFN(x) = act(x W₁ + b₁) W₂ + b₂                  Vaswani et al. 2017, eq. 2 (ReLU); GELU: Hendrycks & Gimpel 2016
SwiGLU(x) = (SiLU(x W_gate) ⊙ x W_up) W_down     Shazeer 2020, eq. 6
"""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from headway.nn.linear import Linear


def relu2(x: Tensor) -> Tensor:
    """ReLU squared (So et al. 2021, §3.2)."""
    return F.relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),  # the approximation GPT-1 and GPT-2 were trained with
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
    """SwiGLU. Gate and up are one matrix of 2F rows: one product instead of two."""

    def __init__(self, d_model: int, d_ff: int, *, bias: bool = False):
        super().__init__()
        self.gate_up = Linear(d_model, [d_ff, d_ff], bias=bias)
        self.down = Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D)
        gate, up = self.gate_up(x).chunk(2, dim=-1)  # (B, T, F) each
        return self.down(F.silu(gate) * up)


def feed_forward(kind: str, d_model: int, d_ff: int, *, bias: bool) -> FeedForward | GatedFeedForward:
    """A feed-forward network by its name in the config."""
    if kind == "swiglu":
        return GatedFeedForward(d_model, d_ff, bias=bias)
    return FeedForward(d_model, d_ff, ACTIVATIONS[kind], bias=bias)

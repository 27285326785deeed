"""Normalisation over the model dimension, with or without centring.

LayerNorm (Ba et al. 2016):  y = (x − mean x) / √(var x + ε) · γ + β,  var divides by D, not D − 1
RMSNorm (Zhang & Sennrich 2019):  y = x / √(mean x² + ε) · γ
"""

from torch import nn

LayerNorm = nn.LayerNorm
RMSNorm = nn.RMSNorm


def make_norm(kind: str, d_model: int, *, eps: float, bias: bool) -> nn.Module:
    """The norm named `kind` in the config: "layer", "rms" (which has no bias), or "none"."""
    if kind == "none":
        return nn.Identity()
    return RMSNorm(d_model, eps=eps) if kind == "rms" else LayerNorm(d_model, eps=eps, bias=bias)

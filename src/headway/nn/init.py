"""Filling parameters. Each model says which of these its paper asks for."""

import math

from torch import nn


def normal(module: nn.Module, std: float) -> None:
    """Matrices and tables from N(0, std²), biases 0, gains of norms 1."""
    for name, parameter in module.named_parameters():
        if parameter.dim() >= 2:
            nn.init.normal_(parameter, std=std)
        else:
            nn.init.constant_(parameter, 1.0 if name.endswith("weight") else 0.0)


def truncated_normal(module: nn.Module, std: float) -> None:
    """As `normal`, with draws beyond two standard deviations drawn again."""
    normal(module, std)
    for parameter in module.parameters():
        if parameter.dim() >= 2:
            nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)


def xavier(module: nn.Module) -> None:
    """Matrices uniform in ±√(6 / (rows + columns)) (Glorot & Bengio 2010, eq. 16); biases 0, gains 1.

    A matrix that is several in one (W_Q, W_K, W_V) is drawn with the bound of its parts.
    """
    for name, parameter in module.named_parameters():
        if parameter.dim() >= 2:
            parts = 3 if name.endswith("qkv.weight") else 2 if name.endswith(("kv.weight", "gate_up.weight")) else 1
            rows, columns = parameter.shape[0] / parts, parameter.shape[1]
            bound = math.sqrt(6 / (rows + columns))
            nn.init.uniform_(parameter, -bound, bound)
        else:
            nn.init.constant_(parameter, 1.0 if name.endswith("weight") else 0.0)

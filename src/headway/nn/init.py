"""Weight initialisation. Each model picks the scheme of its paper."""

import math

import torch
from torch import Tensor, nn

from headway.nn.recurrent import Recurrent


def draw_normal(parameter: Tensor, std: float) -> None:
    """N(0, std²). Skipped on the meta device, which has no data: PyTorch would import its compiler."""
    if parameter.device.type != "meta":
        nn.init.normal_(parameter, std=std)


def normal(module: nn.Module, std: float) -> None:
    """Matrices and embeddings from N(0, std²), biases 0, norm gains 1."""
    for name, parameter in module.named_parameters():
        if parameter.dim() >= 2:
            draw_normal(parameter, std)
        else:
            nn.init.constant_(parameter, 1.0 if name.endswith("weight") else 0.0)


def truncated_normal(module: nn.Module, std: float) -> None:
    """As `normal`, with values beyond two standard deviations redrawn."""
    normal(module, std)
    for parameter in module.parameters():
        if parameter.dim() >= 2:
            nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)


def orthogonal(module: nn.Module) -> None:
    """For recurrent encoder-decoders: hidden-to-hidden matrices orthogonal (Saxe et al. 2014) and input matrices
    Xavier-uniform, gate by gate; embeddings N(0, 1/D), so that their expected norm is 1; biases 0."""
    recurrent = {m.weight_h: m.d_out for m in module.modules() if isinstance(m, Recurrent)}
    inputs = {m.weight_x: m.d_out for m in module.modules() if isinstance(m, Recurrent)}
    for name, parameter in module.named_parameters():
        if parameter.dim() < 2:
            nn.init.zeros_(parameter)
        elif parameter in recurrent:
            for gate in parameter.split(recurrent[parameter]):
                _orthogonal(gate)
        elif name.endswith("embedding"):
            draw_normal(parameter, parameter.shape[1] ** -0.5)
        else:
            for gate in parameter.split(inputs.get(parameter, len(parameter))):
                nn.init.xavier_uniform_(gate)


def _orthogonal(matrix: Tensor) -> None:
    """In float32 at least: PyTorch has no QR decomposition of bfloat16 and float16."""
    if matrix.device.type == "meta":
        return
    wide = torch.empty_like(matrix, dtype=torch.promote_types(matrix.dtype, torch.float32))
    nn.init.orthogonal_(wide)
    with torch.no_grad():
        matrix.copy_(wide)


def xavier(module: nn.Module) -> None:
    """Matrices uniform in ±√(6 / (rows + columns)) (Glorot & Bengio 2010, eq. 16); biases 0, gains 1.

    A stacked matrix (W_Q, W_K, W_V) is drawn part by part, each with the bound of its own shape.
    """
    for name, parameter in module.named_parameters():
        if parameter.dim() < 2:
            nn.init.constant_(parameter, 1.0 if name.endswith("weight") else 0.0)
    for part in module.modules():
        for parameter in part.parameters(recurse=False):
            if parameter.dim() >= 2:
                for matrix in parameter.split(getattr(part, "parts", None) or [len(parameter)]):
                    bound = math.sqrt(6 / sum(matrix.shape))
                    nn.init.uniform_(matrix, -bound, bound)

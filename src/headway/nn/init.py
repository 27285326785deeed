"""Weight initialisation. Each model picks the scheme of its paper."""

import math

from torch import nn

from headway.nn.recurrent import Recurrent


def normal(module: nn.Module, std: float) -> None:
    """Matrices and embeddings from N(0, std²), biases 0, norm gains 1."""
    for name, parameter in module.named_parameters():
        if parameter.dim() >= 2:
            nn.init.normal_(parameter, std=std)
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
                nn.init.orthogonal_(gate)
        elif name.endswith("embedding"):
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        else:
            for gate in parameter.split(inputs.get(parameter, len(parameter))):
                nn.init.xavier_uniform_(gate)


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

"""How far back a model feels: the gradient of a prediction by each earlier input (Bengio, Simard & Frasconi 1994).

    reach(d) = ‖∂ log p(x_t | x_<t) / ∂ e(x_{t−d})‖        e: the vector of a token; d = 1: the token just before

averaged over places t of a text, in proportion to reach(1). In an Elman network it falls by a factor with every step
back, in an LSTM more slowly, and a Transformer looks wherever it has learned to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from headway.analysis.plotting import pyplot
from headway.errors import InputError
from headway.models.base import Model, eval_mode, language_model


@dataclass(frozen=True)
class GradientReach:
    """Of one model: how much the token d steps back counts, d = 1, 2, …, in proportion to the first."""

    name: str
    values: list[float]


class _Inputs(TorchFunctionMode):
    """Inside, the first look-up of vectors for these ids is what gradients are taken by."""

    def __init__(self, ids: Tensor):
        super().__init__()
        self.ids = ids
        self.vectors: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        is_wide = func is F.embedding and args[0].dim() == 2 and args[0].shape[1] >= self.ids.shape[1]
        if is_wide and self.vectors is None:  # of the ids, and of what a window has before the first
            self.vectors = found.detach().requires_grad_()
            return self.vectors
        return found


def gradient_reach(
    model: Model, ids: Sequence[int], *, distance: int = 32, places: int = 16, name: str = ""
) -> GradientReach:
    """Over so many places, spread over the text, each with `distance` tokens before it."""
    language_model(model)
    limit = model.config.context
    if limit is not None and distance > limit:
        raise InputError(f"distance={distance} is more than the context of {limit}: ask for at most {limit}")
    if len(ids) <= distance:
        raise InputError(f"{len(ids)} tokens are too few to look {distance} back: give a longer text")
    total = torch.zeros(distance)
    ends = torch.linspace(distance, len(ids) - 1, min(places, len(ids) - distance)).long().tolist()
    for end in ends:
        row = torch.tensor([list(ids[end - distance : end])], device=model.device)
        # cuDNN goes back through recurrent layers while training only.
        with eval_mode(model), torch.enable_grad(), torch.backends.cudnn.flags(enabled=False), _Inputs(row) as inputs:
            log_p = model(row)[0, -1].float().log_softmax(dim=-1)[ids[end]]
        if inputs.vectors is None:
            raise InputError(f"a {type(model).__name__} has no vectors for tokens, so there is no gradient by them")
        (gradient,) = torch.autograd.grad(log_p, inputs.vectors)
        total += gradient[0].norm(dim=-1).flip(0).cpu()[:distance]
    return GradientReach(name, (total / total[0].clamp(min=1e-30)).tolist())


def as_text(found: Sequence[GradientReach]) -> str:
    width = max(len("steps back"), *(len(one.name) for one in found))
    n = len(found[0].values)
    shown = sorted({d for d in (1, 2, 4, 8, 16, 32, 64, 128, n) if d <= n})
    lines = [f"  {'steps back':<{width}}  " + "".join(f"{d:>10}" for d in shown)]
    lines += [f"  {one.name:<{width}}  " + "".join(f"{one.values[d - 1]:>10.2g}" for d in shown) for one in found]
    return "\n".join(lines)


def draw(found: Sequence[GradientReach], file: str | Path) -> Path:
    plot = pyplot()
    figure, axes = plot.subplots(figsize=(7, 4), layout="constrained")
    for one in found:
        axes.plot(range(1, len(one.values) + 1), [max(v, 1e-12) for v in one.values], label=one.name)
    axes.set(xlabel="steps back", ylabel="gradient, in proportion to the last token's", yscale="log")
    axes.legend()
    figure.savefig(file, dpi=150)
    plot.close(figure)
    return Path(file)

"""How far back a model's predictions depend on its input: the gradient of a prediction with respect to the embedding of
each earlier token (Bengio, Simard & Frasconi 1994).

    reach(d) = ‖∂ log p(x_t | x_<t) / ∂ e(x_{t−d})‖        e: a token's embedding; d = 1: the previous token

averaged over positions t of a text, relative to reach(1). In an Elman RNN it decays by a constant factor per step, in
an LSTM more slowly; a Transformer can attend to any distance.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from headway.analysis.plotting import pyplot, save_figure
from headway.config import load_recipe
from headway.data import load_documents, read_split
from headway.errors import ConfigError, InputError
from headway.models import load
from headway.models.base import Model, eval_mode, language_model
from headway.runs import Run

MIN_PLOTTED = 1e-12  # the y axis is logarithmic: zeros are drawn here


@dataclass(frozen=True)
class GradientReach:
    """The relative gradient norm of one model at the distances 1, 2, …"""

    name: str
    values: list[float]


class _CaptureEmbeddings(TorchFunctionMode):
    """Make the result of the first embedding lookup for `ids` a leaf that gradients are taken with respect to."""

    def __init__(self, ids: Tensor):
        super().__init__()
        self.ids = ids
        self.embeddings: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        # At least as many columns as ids: a fixed-window model pads the start of the text.
        is_lookup = func is F.embedding and args[0].dim() == 2 and args[0].shape[1] >= self.ids.shape[1]
        if is_lookup and self.embeddings is None:
            self.embeddings = result.detach().requires_grad_()
            return self.embeddings
        return result


def gradient_reach(
    model: Model, ids: Sequence[int], *, distance: int = 32, n_positions: int = 16, name: str = ""
) -> GradientReach:
    """The reach up to `distance` tokens back, averaged over so many positions (`n_positions`) spread over the text."""
    language_model(model)
    context = model.config.context
    if context is not None and distance > context:
        raise InputError(f"distance={distance} is more than the context of {context}: choose at most {context}")
    if len(ids) <= distance:
        raise InputError(f"{len(ids)} tokens are too few for distance={distance}: pass a longer text")
    total = torch.zeros(distance)
    positions = torch.linspace(distance, len(ids) - 1, min(n_positions, len(ids) - distance)).long().tolist()
    for position in positions:
        prefix = torch.tensor([list(ids[position - distance : position])], device=model.device)
        # cuDNN's recurrent layers have no backward in eval mode, so use PyTorch's own.
        no_cudnn = torch.backends.cudnn.flags(enabled=False)
        with eval_mode(model), torch.enable_grad(), no_cudnn, _CaptureEmbeddings(prefix) as capture:
            log_p = model(prefix)[0, -1].float().log_softmax(dim=-1)[ids[position]]
        if capture.embeddings is None:
            raise InputError(f"a {type(model).__name__} has no token embeddings to take gradients of")
        (gradient,) = torch.autograd.grad(log_p, capture.embeddings)
        total += gradient[0].norm(dim=-1).flip(0).cpu()[:distance]
    return GradientReach(name, (total / total[0].clamp(min=1e-30)).tolist())


def compare_reach(
    models: Sequence[str | Path], *, text: str | Path | None = None, distance: int = 32, n_positions: int = 16
) -> list[GradientReach]:
    """The reach of several models, each a model directory or a run, on one text file; by default on the validation
    split of the first, which must then be a run."""
    if text is not None:
        documents = load_documents(str(text))
    elif Run.exists(models[0]):
        documents = list(read_split(load_recipe(Path(models[0])).data, "valid"))
    else:
        raise ConfigError(f"{models[0]} is not a run, so it has no validation split: name a text file with --text")
    reaches = []
    for path in models:
        model: Any = load(path)
        ids = model.tokenizer.encode_stream(documents)
        reaches.append(gradient_reach(model, ids, distance=distance, n_positions=n_positions, name=str(path)))
    return reaches


def render_text(reaches: Sequence[GradientReach]) -> str:
    """A table with a row per model and a column per distance, at powers of two."""
    width = max(len("steps back"), *(len(reach.name) for reach in reaches))
    n = len(reaches[0].values)
    distances = sorted({d for d in (1, 2, 4, 8, 16, 32, 64, 128, n) if d <= n})
    lines = [f"  {'steps back':<{width}}  " + "".join(f"{d:>10}" for d in distances)]
    lines += [f"  {r.name:<{width}}  " + "".join(f"{r.values[d - 1]:>10.2g}" for d in distances) for r in reaches]
    return "\n".join(lines)


def plot(reaches: Sequence[GradientReach], file: str | Path) -> Path:
    """The reach of all models against the distance, on a logarithmic axis."""
    figure, axes = pyplot().subplots(figsize=(7, 4), layout="constrained")
    for reach in reaches:
        values = [max(value, MIN_PLOTTED) for value in reach.values]
        axes.plot(range(1, len(values) + 1), values, label=reach.name)
    axes.set(xlabel="steps back", ylabel="gradient norm relative to the last token's", yscale="log")
    axes.legend()
    return save_figure(figure, file)

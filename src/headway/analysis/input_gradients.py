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

from headway.analysis.plotting import MARKERS, figure_text, label_line_ends, open_figure, set_title, theme
from headway.config import load_recipe
from headway.data import load_documents, read_split
from headway.errors import ConfigError, InputError
from headway.models import find_model, load
from headway.models.adapter import language_model
from headway.models.base import Model, described, eval_mode
from headway.runs import Run

MIN_PLOTTED = 1e-12  # the logarithmic y axis ends here: a curve that falls lower, or to zero, is cut
COLUMN_WIDTH = 9  # characters of a column of the table


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
            raise InputError(f"{described(model)} has no token embeddings to take gradients of")
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
        if not Path(models[0]).exists():
            find_model(models[0])  # its error names the nearest runs
        raise ConfigError(f"{models[0]} is not a run, so it has no validation split: name a text file with --text")
    reaches = []
    for path in models:
        model: Any = load(path)
        ids = model.tokenizer.encode_stream(documents)
        reaches.append(gradient_reach(model, ids, distance=distance, n_positions=n_positions, name=str(path)))
    return reaches


def render_text(reaches: Sequence[GradientReach], *, width: int = 80) -> str:
    """A table with a row per model and a column per distance: powers of two and the last, as many as fit into `width`
    characters."""
    names = _short_names(reaches)
    label_width = max(map(len, ["tokens back", *names]))
    n = len(reaches[0].values)
    distances = sorted({d for d in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, n) if d <= n})
    n_columns = max(2, (width - label_width - 2) // COLUMN_WIDTH)
    if len(distances) > n_columns:
        distances = [*distances[: n_columns - 1], distances[-1]]
    lines = [f"  {'tokens back':<{label_width}}" + "".join(f"{d:>{COLUMN_WIDTH}}" for d in distances)]
    for name, reach in zip(names, reaches, strict=True):
        cells = "".join(f"{reach.values[d - 1]:>{COLUMN_WIDTH}.2g}" for d in distances)
        lines.append(f"  {name:<{label_width}}{cells}")
    return "\n".join(lines)


def plot(reaches: Sequence[GradientReach], file: str | Path) -> Path:
    """Write a picture of the reach of all models against the distance, on a logarithmic axis."""
    with open_figure(file, width=7, height=4) as figure:
        draw(figure, reaches)
    return Path(file)


def draw(figure: Any, reaches: Sequence[GradientReach]) -> None:
    """Draw the curves into an empty figure. A curve that falls below the axis ends, with an arrow and a note."""
    axes = figure.subplots()
    lowest = min(value for reach in reaches for value in reach.values if value >= MIN_PLOTTED)
    floor = max(MIN_PLOTTED, lowest / 3)
    ends: list[tuple[float, float, str, str]] = []
    n_cut = 0  # curves that end before the last distance
    for i, (name, reach) in enumerate(zip(_short_names(reaches), reaches, strict=True)):
        colour = theme().colour(i)
        n_shown = next((d for d, value in enumerate(reach.values) if value < MIN_PLOTTED), len(reach.values))
        distances, values = list(range(1, n_shown + 1)), reach.values[:n_shown]
        axes.plot(distances, values, color=colour, marker=MARKERS[i % len(MARKERS)], markevery=max(1, n_shown // 16))
        if n_shown == 0:
            continue
        if n_shown == len(reach.values):
            ends.append((distances[-1], values[-1], name, colour))
            continue
        drop = {"arrowstyle": "->", "color": colour, "linestyle": ":", "linewidth": 1.2}
        axes.annotate("", (n_shown, floor), (n_shown, values[-1]), arrowprops=drop)
        tail_value = "0" if not any(reach.values[n_shown:]) else f"below {MIN_PLOTTED:.0e}"
        note = figure_text(f"{name}: {tail_value} beyond {n_shown}")
        background = {"facecolor": theme().background, "linewidth": 0, "pad": 1}
        axes.annotate(note, (n_shown, floor), (5, 4 + 12 * n_cut), textcoords="offset points", fontsize=8,
                      bbox=background)  # fmt: skip
        n_cut += 1
    axes.set(xlabel="distance to the input token (tokens back)", yscale="log", ylim=(floor, None))
    axes.set_ylabel("gradient norm (relative to distance 1)")
    axes.set_xlim(0.5, max(len(reach.values) for reach in reaches) + 0.5)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid()
    label_line_ends(axes, ends)
    set_title(figure, "How far back a prediction depends on its input")


def _short_names(reaches: Sequence[GradientReach]) -> list[str]:
    """The names of the models' folders, or their paths if two folders have the same name."""
    names = [Path(reach.name).name for reach in reaches]
    return names if len(set(names)) == len(names) else [reach.name for reach in reaches]

"""From scores to weights in four panels: scaled scores, the mask, masked scores, softmax. Darker is more.

Short texts have the numbers in the cells; masked cells are hatched in every panel.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.analysis.attention import AttentionMap
from headway.analysis.attention_plots import AXIS_LABELS, MAX_TITLE_TEXT, SIDES, axis_label, highest_weight_of
from headway.analysis.attention_tables import format_number, scale_formula
from headway.analysis.layer_attention import TextAttentionSteps
from headway.analysis.plotting import fit_tick_labels, hatch_cells, open_figure, set_title, shorten, theme
from headway.analysis.worked_attention import AttentionSteps
from headway.errors import InputError

MAX_NUMBERED = 12  # tokens: of longer texts the cells have no numbers
CELL = 0.42  # inches: a number fits
MIN_PANEL, MAX_PANEL = 2.2, 5.2  # inches: width; the height of a panel is at least that of one cell


class _Panel(NamedTuple):
    title: str
    values: Tensor  # (T, S)
    visible: Tensor  # (T, S) True: coloured by its value, False: hatched
    decimals: int
    colour_range: tuple[float, float] | None  # None: no colours
    colour_bar: str  # its label, for texts without numbers


def plot(attention: AttentionSteps | TextAttentionSteps, file: str | Path, *, model: str = "") -> Path:
    """Write the picture. `model` is named in the title."""
    steps = attention.steps if isinstance(attention, TextAttentionSteps) else attention
    n_rows, n_columns = steps.mask.shape[-2:]
    panel_width = min(MAX_PANEL, max(MIN_PANEL, CELL * n_columns))
    panel_height = min(MAX_PANEL, CELL * n_rows)
    labels = 0.075 * max(len(axis_label(label)) for label in (*steps.rows, *steps.columns)) + 0.5
    width, height = 2 * (panel_width + 0.3) + labels, 2 * (panel_height + 0.4) + labels + 0.7
    with open_figure(file, width=max(5.2, width), height=height) as figure:
        draw(figure, attention, model=model)
    return Path(file)


def draw(figure: Any, attention: AttentionSteps | TextAttentionSteps, *, model: str = "") -> None:
    """Draw the four panels into an empty figure."""
    steps = attention.steps if isinstance(attention, TextAttentionSteps) else attention
    if steps.mask.dim() != 2:
        raise InputError(f"these steps are of {steps.mask.shape[0]} heads, and a picture shows one: choose a head")
    has_numbers = max(steps.mask.shape) <= MAX_NUMBERED
    grid = figure.subplots(2, 2, sharex=True, sharey=True)
    for axes, panel in zip(grid.flat, _panels(steps), strict=True):
        lowest, highest = panel.colour_range or (0.0, 1.0)
        hidden = ~panel.visible if panel.colour_range else torch.ones_like(panel.visible)
        values = panel.values.masked_fill(hidden, math.nan).numpy()
        image = axes.imshow(values, cmap=theme().sequential, vmin=lowest, vmax=highest, aspect="auto")
        hatch_cells(axes, (~panel.visible).tolist())
        if has_numbers:
            _write_numbers(axes, panel, image, hidden)
        elif panel.colour_range:
            extend = "max" if float(panel.values.max()) > highest + 1e-6 else "neither"
            figure.colorbar(image, ax=axes, pad=0.02, aspect=30, label=panel.colour_bar, extend=extend, extendfrac=0.02)
        axes.spines[:].set_visible(True)
        axes.set_title(panel.title)
    _label_axes(figure, grid, attention, steps)
    set_title(figure, *_title(attention, model))


def _panels(steps: AttentionSteps) -> list[_Panel]:
    bias, mask = steps.bias, steps.mask
    scores = steps.scaled if bias is None else steps.scaled + bias
    is_finite = scores.isfinite()  # scores given as plain numbers may be −∞ already
    lowest, highest = float(scores[is_finite].min()), float(scores[is_finite].max())
    score_range = (lowest, highest) if highest > lowest else (lowest - 1, highest + 1)  # of both panels of scores
    largest = max(abs(lowest), abs(highest))
    decimals = 1 if largest >= 100 else 2 if largest >= 0.1 else 3
    highest_weight = 1.0
    if max(mask.shape) > MAX_NUMBERED:
        highest_weight = highest_weight_of([AttentionMap("", 0, [0], steps.weights[None], mask)])
    formula = scale_formula(steps) + ("" if bias is None else " + bias")
    return [
        _Panel(f"1. {formula}", scores, is_finite, decimals, score_range, "score"),
        _Panel("2. mask: 0 or −∞", steps.additive_mask, mask, 0, None, ""),
        _Panel("3. scores + mask", steps.masked, mask, decimals, score_range, "score"),
        _Panel("4. softmax of each row", steps.weights, mask, 2, (0.0, highest_weight), "attention weight"),
    ]


def _write_numbers(axes: Any, panel: _Panel, image: Any, is_plain: Tensor) -> None:
    """The number of each cell, in a colour that stands out from the cell's own; plain cells have none."""
    size = 8 if panel.values.shape[1] <= 8 and panel.decimals < 3 else 7
    plain_box = {"facecolor": theme().background, "edgecolor": "none", "pad": 1}
    for t, row in enumerate(panel.values.tolist()):
        for s, value in enumerate(row):
            plain = bool(is_plain[t, s])
            is_zero = value == 0 and not bool(panel.visible[t, s])  # exactly: a masked weight
            axes.text(
                s,
                t,
                "0" if is_zero else format_number(value, panel.decimals),
                horizontalalignment="center",
                verticalalignment="center",
                fontsize=size,
                color=theme().text if plain else _contrasting(image.cmap(image.norm(value))),
                bbox=plain_box if plain else None,
            )


def _contrasting(rgba: tuple[float, float, float, float]) -> str:
    """Black or white, whichever is easier to read on this colour."""
    red, green, blue, _ = rgba
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def _label_axes(figure: Any, grid: Any, attention: AttentionSteps | TextAttentionSteps, steps: AttentionSteps) -> None:
    row_axis, column_axis = ("query", "key")
    if isinstance(attention, TextAttentionSteps):
        row_axis, column_axis = AXIS_LABELS[attention.side]
    figure.supylabel(row_axis, fontsize=9)
    figure.supxlabel(column_axis + " (hatched: masked)" * (not bool(steps.mask.all())), fontsize=9)
    panels = list(grid.flat)
    for axes in panels:
        axes.tick_params(length=2, labelsize=8)
    panels[0].xaxis.set_ticks(range(len(steps.columns)), labels=list(map(axis_label, steps.columns)))
    panels[0].yaxis.set_ticks(range(len(steps.rows)), labels=list(map(axis_label, steps.rows)))
    for i, axes in enumerate(panels):
        is_lowest, is_first = i + grid.shape[1] >= len(panels), i % grid.shape[1] == 0
        axes.tick_params(labelbottom=is_lowest, labelleft=is_first)
    fit_tick_labels(panels)


def _title(attention: AttentionSteps | TextAttentionSteps, model: str) -> list[str]:
    if not isinstance(attention, TextAttentionSteps):
        return ["Attention, from scores to weights"]
    side = SIDES[attention.side]
    name = f"{model}: {side}" if model else side.capitalize()
    text = f"“{shorten(attention.text, MAX_TITLE_TEXT)}”"
    if attention.target is not None and attention.side != "encoder":
        text += f" → “{shorten(attention.target, MAX_TITLE_TEXT)}”"
    if attention.second_text is not None:
        text += f" + “{shorten(attention.second_text, MAX_TITLE_TEXT)}”"
    return [f"{name}, layer {attention.layer}, head {attention.head}", text]

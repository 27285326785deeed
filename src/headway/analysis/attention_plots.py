"""Attention maps as a table for the terminal and as a picture: a panel per layer and head, darker is more."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.cells import cell_len, set_cell_size
from torch import Tensor

from headway.analysis.attention import AttentionMap, TextAttention
from headway.analysis.plotting import (
    DPI,
    figure_text,
    fit_tick_labels,
    hatch_cells,
    open_figure,
    set_title,
    shorten,
    theme,
)
from headway.errors import InputError

SIDES = {"encoder": "encoder self-attention", "decoder": "decoder self-attention", "cross": "cross-attention"}
AXIS_LABELS = {  # of rows and columns
    "encoder": ("token that attends", "token attended to"),
    "decoder": ("token that attends", "token attended to"),
    "cross": ("token being written", "source token"),
}
MAX_LABEL = 16  # characters of a token's label
CLS_MARK = "▸"  # of the row of [CLS], in a table
NARROW = frozenset(".,:;!'`´’‘|-‐‑–·_~^\"")  # marks that are hard to recognise alone, and harder when rotated
LONG_ROW = 48  # tokens attended to: of more, most have weights that a linear colour scale leaves white
MAX_TITLE_TEXT = 70  # characters of a text in the title

CELL = 0.21  # inches: a label fits
SMALL_CELL = 0.05  # inches: a panel's cells are hard to see if they are smaller
MIN_LABEL = 0.12  # inches: labels of 7 points touch if they are closer
COLOUR_BAR = 0.14  # inches: its width
MIN_PANEL, MAX_PANELS = 0.7, 14.0  # inches: of one panel, and of all panels beside each other
MAX_PIXELS = 4500  # of a picture's side


def render_text(
    attention: AttentionMap,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    n_best: int = 3,
    width: int = 80,
    cls_row: int | None = None,
) -> str:
    """For each row the columns it attends to most, averaged over the heads, in lines of at most `width` characters.
    Columns that the row may not attend to are left out. The row `cls_row` is marked."""
    means = attention.weights.mean(dim=0)  # (T, S)
    table = [
        [cut_label(label), *_largest(weights, visible, columns, n_best)]
        for label, weights, visible in zip(rows, means, attention.mask, strict=True)
    ]
    n_columns = max(map(len, table))
    widths = [max(cell_len(row[i]) for row in table if i < len(row)) for i in range(n_columns)]
    while n_columns > 2 and 2 * n_columns + sum(widths[:n_columns]) > width:
        n_columns -= 1  # show fewer tokens per row
    lines = [
        "".join(f"  {set_cell_size(cell, size)}" for cell, size in zip(row, widths[:n_columns], strict=False)).rstrip()
        for row in table
    ]
    if cls_row is not None:
        lines[cls_row] = CLS_MARK + lines[cls_row][1:]
    return "\n".join(lines)


def _largest(weights: Tensor, visible: Tensor, columns: Sequence[str], n_best: int) -> list[str]:
    """The visible columns with the largest weights: "label 53%"."""
    best = weights.masked_fill(~visible, -1).topk(min(n_best, int(visible.sum())))
    return [
        f"{cut_label(columns[i])} {p:.0%}" for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def cut_label(label: str, length: int = MAX_LABEL) -> str:
    """The label, cut to `length` columns of the terminal."""
    return label if cell_len(label) <= length else set_cell_size(label, length - 1) + "…"


def axis_label(label: str) -> str:
    """The label, in quotes if it is of narrow marks alone: a rotated comma looks like a dash."""
    return figure_text(f"‘{label}’" if NARROW.issuperset(label) else cut_label(label))


def has_small_panels(attention: TextAttention) -> bool:
    """Whether the picture has several panels whose cells are hard to see."""
    grid = _Grid(attention)
    cell = min(grid.panel_width / len(attention.columns), grid.panel_height / len(attention.rows))
    return grid.n_panels > 1 and cell < SMALL_CELL


def plot(attention: TextAttention, file: str | Path, *, model: str = "") -> Path:
    """Write a picture with a panel per layer and head; masked cells are hatched. `model` is named in the title."""
    grid = _Grid(attention)
    with open_figure(file, width=grid.figure_width, height=grid.figure_height) as figure:
        draw(figure, attention, model=model)
    return Path(file)


class _Grid:
    """How panels are arranged, and how large they are, in inches.

    Several layers and heads: a row of panels per layer, a column per head. One layer (or one head): its panels are
    wrapped into a rectangle.
    """

    def __init__(self, attention: TextAttention):
        n_layers, n_heads = len(attention.maps), len(attention.maps[0].heads)
        self.is_wrapped = 1 in (n_layers, n_heads)
        self.n_panels = n_layers * n_heads
        self.n_columns = _n_columns(self.n_panels) if self.is_wrapped else n_heads
        self.n_rows = math.ceil(self.n_panels / self.n_columns)
        self.panel_width, self.panel_height = (
            max(MIN_PANEL, min(CELL * max(n_tokens, 6), MAX_PANELS / max(n_panels, 2 if self.n_panels > 1 else 1)))
            for n_tokens, n_panels in ((len(attention.columns), self.n_columns), (len(attention.rows), self.n_rows))
        )
        label_length = max(min(cell_len(label), MAX_LABEL) for label in (*attention.rows, *attention.columns))
        margin = 0.4 + 0.075 * label_length  # an axis name and tick labels
        self.figure_width = max(4.5, self.n_columns * (self.panel_width + 0.12) + margin + 0.9)  # 0.9: the colour bar
        self.figure_height = self.n_rows * (self.panel_height + 0.3) + margin + 1.1  # 1.1: the title and the legend
        if max(self.figure_width, self.figure_height) * DPI > MAX_PIXELS:
            raise InputError(
                f"{n_layers} layers × {n_heads} heads are too many panels for one picture: choose a layer or a head"
            )


def _n_columns(n_panels: int) -> int:
    """Columns of a rectangle that is about as high as wide and, if possible, full: 4 × 2 for 8 panels."""
    if n_panels <= 4:
        return n_panels
    full = [n for n in range(math.isqrt(n_panels - 1) + 1, 2 * math.isqrt(n_panels) + 1) if n_panels % n == 0]
    return full[0] if full else math.isqrt(n_panels - 1) + 1


def draw(figure: Any, attention: TextAttention, *, model: str = "") -> None:
    """Draw the maps into an empty figure."""
    grid = _Grid(attention)
    panels = figure.subplots(grid.n_rows, grid.n_columns, sharex=True, sharey=True, squeeze=False)
    maps = [(m.layer, head, m.weights[i], m.mask) for m in attention.maps for i, head in enumerate(m.heads)]
    highest = highest_weight_of(attention.maps)
    image: Any = None
    for axes, (layer, head, weights, mask) in zip(panels.flat, maps, strict=False):
        values = weights.masked_fill(~mask, math.nan).numpy()
        image = axes.imshow(values, cmap=theme().sequential, norm=_colour_scale(attention, highest), aspect="auto")
        hatch_cells(axes, (~mask).tolist())
        if attention.cls_row is not None:
            _frame_row(axes, attention.cls_row, len(attention.columns))
        axes.spines[:].set_visible(True)
        _set_panel_title(axes, attention, layer, head)
    for axes in panels.flat[grid.n_panels :]:
        axes.remove()
    row_axis, column_axis = AXIS_LABELS[attention.side]
    is_masked = any(not m.mask.all() for m in attention.maps)
    figure.supylabel(row_axis + " (framed: [CLS])" * (attention.cls_row is not None), fontsize=9)
    figure.supxlabel(column_axis + " (hatched: masked)" * is_masked, fontsize=9)
    is_clipped = any(float(m.weights.max()) > highest + 1e-6 for m in attention.maps)
    figure.colorbar(
        image,
        ax=panels.flat[: grid.n_panels].tolist(),
        label="attention weight",
        aspect=grid.n_rows * grid.panel_height / COLOUR_BAR,
        pad=0.02,
        extend="max" if is_clipped else "neither",
        extendfrac=0.02,
    )
    set_title(figure, *_title(attention, model))
    _label_tokens(panels.flat[: grid.n_panels], grid, attention)
    figure.align_ylabels()


def _frame_row(axes: Any, row: int, n_columns: int) -> None:
    from matplotlib.patches import Rectangle

    frame = Rectangle((-0.5, row - 0.5), n_columns, 1, fill=False, edgecolor=theme().colour(1), linewidth=1.5, zorder=3)
    axes.add_patch(frame)


def _colour_scale(attention: TextAttention, highest: float) -> Any:
    """Colours from 0 to `highest`; of long rows by the square root of the weight, so that small weights show."""
    from matplotlib.colors import PowerNorm

    return PowerNorm(0.5 if len(attention.columns) > LONG_ROW else 1, vmin=0, vmax=highest)


def highest_weight_of(maps: Sequence[AttentionMap]) -> float:
    """The end of the colour scale: 1, or less if weights are small, as they are in long texts; the largest weights of
    nine rows in ten then lie on it. A row with one visible token, such as a text's first, has the weight 1 in any
    model and does not count."""
    largest = torch.cat([m.weights[:, m.mask.sum(dim=-1) > 1].amax(dim=-1).flatten() for m in maps])
    highest = float(largest.quantile(0.9)) if len(largest) else 1.0
    return highest if highest < 0.5 else 1.0


def _set_panel_title(axes: Any, attention: TextAttention, layer: int, head: int) -> None:
    n_layers, n_heads = len(attention.maps), len(attention.maps[0].heads)
    if n_layers > 1 and n_heads > 1:
        grid_cell = axes.get_subplotspec()
        if grid_cell.is_first_row():
            axes.set_title(f"head {head}")
        if grid_cell.is_first_col():
            axes.set_ylabel(f"layer {layer}")
    elif n_heads > 1:
        axes.set_title(f"head {head}")
    elif n_layers > 1:
        axes.set_title(f"layer {layer}")


def _title(attention: TextAttention, model: str) -> list[str]:
    """What is shown: the model and the kind of attention, the layer and head if there is one, and the text."""
    first = attention.maps[0]
    parts = [f"{model}: {SIDES[first.side]}" if model else SIDES[first.side].capitalize()]
    if len(attention.maps) == 1:
        parts.append(f"layer {first.layer}")
    if len(first.heads) == 1:
        parts.append(f"head {first.heads[0]}")
    text = f"“{shorten(attention.text, MAX_TITLE_TEXT)}”"
    if attention.target is not None and first.side != "encoder":
        text += f" → “{shorten(attention.target, MAX_TITLE_TEXT)}”"
    if attention.second_text is not None:
        text += f" + “{shorten(attention.second_text, MAX_TITLE_TEXT)}”"
    return [", ".join(parts), text]


def _label_tokens(panels: Sequence[Any], grid: _Grid, attention: TextAttention) -> None:
    """Tokens on the outer axes: all of them, or as many as fit. The panels share their axes."""
    for i, axes in enumerate(panels):
        is_lowest = i + grid.n_columns >= grid.n_panels
        axes.tick_params(length=2, labelsize=7, labelbottom=is_lowest, labelleft=i % grid.n_columns == 0)
    for axis, labels, size in (
        (panels[0].xaxis, attention.columns, grid.panel_width),
        (panels[0].yaxis, attention.rows, grid.panel_height),
    ):
        step = math.ceil(len(labels) * MIN_LABEL / size)  # a first guess, so that few labels have to be measured
        axis.set_ticks(range(0, len(labels), step), labels=list(map(axis_label, labels[::step])))
    fit_tick_labels(panels)

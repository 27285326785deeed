"""Plots of a comparison: scores against training FLOPs, against the progress of training, and against the length of
the source.

Lines are named at their ends. Each has its own marker, too, so that the plot can be read without colours.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.analysis.plotting import MARKERS, label_line_ends, legend_entry, log_ticks, open_figure, set_title, theme

WIDTH, HEIGHT = 7.5, 4.5  # inches
DASHES = ("-", (0, (5, 3)), (0, (1, 2)))
END_WITHOUT_X = 10.0  # of the x axis, if no line has any x
WORST_SHOWN = 1.5  # times the worst model's best score: untrained models would flatten all curves


@dataclass(frozen=True)
class PlotLine:
    """One model: the points of its curve, or its one score if `x` is empty."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def plot_compute(lines: Sequence[PlotLine], file: str | Path, *, ylabel: str, title: str = "") -> Path:
    """Write a picture of scores against training FLOPs, on a logarithmic axis."""
    with open_figure(file, width=WIDTH, height=HEIGHT) as figure:
        draw_compute(figure, lines, ylabel=ylabel, title=title)
    return Path(file)


def draw_compute(figure: Any, lines: Sequence[PlotLine], *, ylabel: str, title: str = "") -> None:
    """Draw scores against training FLOPs. A line without x, of a model that is trained without multiplications, is
    drawn across the whole plot. The large marker of a line is its best checkpoint."""
    axes = figure.subplots()
    axes.set(xlabel="training compute (FLOPs)", ylabel=ylabel, xscale="log")
    ends = _draw_curves(figure, axes, lines, best=min, without_x="no FLOPs")
    _show_trained(axes, lines)
    log_ticks(axes.xaxis)
    axes.grid(which="both")
    set_title(figure, title)
    label_line_ends(axes, ends)


def plot_training(
    lines: Sequence[PlotLine], file: str | Path, *, xlabel: str, ylabel: str, title: str = "", suffix: str = ""
) -> Path:
    """Write a picture of scores against the progress of training; `draw_training` has the arguments."""
    with open_figure(file, width=WIDTH, height=HEIGHT) as figure:
        draw_training(figure, lines, xlabel=xlabel, ylabel=ylabel, title=title, suffix=suffix)
    return Path(file)


def draw_training(
    figure: Any, lines: Sequence[PlotLine], *, xlabel: str, ylabel: str, title: str = "", suffix: str = ""
) -> None:
    """Draw scores, of which the highest is the best, against the progress of training, from its start. A line without
    x, of a model that was not trained here, is drawn across the whole plot; `suffix` follows its name."""
    axes = figure.subplots()
    ends = _draw_curves(figure, axes, lines, best=max, without_x=suffix)
    if any(line.x for line in lines):
        axes.set(xlabel=xlabel, xlim=(0, 1.03 * max(x for line in lines for x in line.x)))
        axes.xaxis.set_major_formatter("{x:,.6g}")
    else:
        axes.set(xlim=(0, END_WITHOUT_X), xticks=[])
    axes.set_ylabel(ylabel)
    axes.grid()
    set_title(figure, title)
    label_line_ends(axes, ends)


def _draw_curves(
    figure: Any, axes: Any, lines: Sequence[PlotLine], *, best: Callable[..., int], without_x: str
) -> list[tuple[float, float, str, str]]:
    """Draw the curves, with a large marker at the best of each, and lines without x across the whole plot; returns
    their ends, as `label_line_ends` takes them."""
    ends = []
    right = max((x for line in lines for x in line.x), default=END_WITHOUT_X)
    for i, line in enumerate(lines):
        colour, marker = theme().colour(i), MARKERS[i % len(MARKERS)]
        if not line.x:
            axes.axhline(line.y[-1], color=colour, linestyle="--", linewidth=1.2)
            ends.append((right, line.y[-1], ", ".join(filter(None, (line.name, without_x))), colour))
            continue
        axes.plot(line.x, line.y, color=colour, marker=marker)
        if len(line.y) > 1:
            kept = best(reversed(range(len(line.y))), key=line.y.__getitem__)  # the checkpoint; of equals the latest
            axes.plot(line.x[kept], line.y[kept], color=colour, marker=marker, markersize=9)
        ends.append((line.x[-1], line.y[-1], line.name, colour))
    if any(len(line.x) > 1 for line in lines):
        label = "large marker: the best checkpoint, which is the one scored"
        entry = legend_entry("line", color=theme().grey, marker="o", markersize=9, linestyle="", label=label)
        figure.legend(handles=[entry], loc="outside lower right")
    return ends


def _show_trained(axes: Any, lines: Sequence[PlotLine]) -> None:
    """Leave out the points of models that have hardly been trained yet; their lines come in from the edge."""
    limit = WORST_SHOWN * max(min(line.y) for line in lines)
    points = [(x, y) for line in lines if line.x for x, y in zip(line.x, line.y, strict=True) if x > 0]
    shown = [(x, y) for x, y in points if y <= limit]
    if not shown or len(shown) == len(points):
        return
    left, right = min(x for x, _ in shown), max(x for x, _ in shown)
    bottom, top = min(min(line.y) for line in lines), max(y for _, y in shown)
    margin = 0.06 * (top - bottom)
    axes.set_xlim(left * (left / right) ** 0.06, right * (right / left) ** 0.06)
    axes.set_ylim(bottom - margin, top + 2 * margin)


def plot_lengths(
    lines: Sequence[PlotLine],
    file: str | Path,
    *,
    ylabel: str,
    xlabel: str,
    title: str = "",
    top: float | None = None,
    longest: float | None = None,
) -> Path:
    """Write a picture of scores against the length of the source; `draw_lengths` has the arguments."""
    with open_figure(file, width=WIDTH, height=HEIGHT) as figure:
        draw_lengths(figure, lines, ylabel=ylabel, xlabel=xlabel, title=title, top=top, longest=longest)
    return Path(file)


def draw_lengths(
    figure: Any,
    lines: Sequence[PlotLine],
    *,
    ylabel: str,
    xlabel: str,
    title: str = "",
    top: float | None = None,
    longest: float | None = None,
) -> None:
    """Draw scores against the length of the source, from 0 to `top`, the best possible score; shaded where it is longer
    than `longest`, the longest in training."""
    axes = figure.subplots()
    for i, line in enumerate(lines):  # where lines coincide, the dashes of the later ones show those below
        colour, marker, dashes = theme().colour(i), MARKERS[i % len(MARKERS)], DASHES[i % len(DASHES)]
        axes.plot(line.x, line.y, color=colour, marker=marker, linestyle=dashes, markersize=6 - i % 3)
    if longest is not None and any(x > longest for line in lines for x in line.x):
        left, right = axes.get_xlim()
        axes.axvspan(longest, right, color=theme().shade, zorder=0, linewidth=0)
        axes.set_xlim(left, right)
        axes.annotate("longer than any in training", (longest, 1), xycoords=("data", "axes fraction"),
                      xytext=(3, 3), textcoords="offset points", fontsize=8, color=theme().grey)  # fmt: skip
    axes.set(xlabel=xlabel, ylabel=ylabel)
    highest = top if top is not None else max([10.0, *(y for line in lines for y in line.y)])
    axes.set_ylim(-0.02 * highest, 1.03 * highest)
    axes.grid()
    set_title(figure, title)
    names = zip(lines, theme().colours * len(lines), strict=False)
    label_line_ends(axes, [(line.x[-1], line.y[-1], line.name, colour) for line, colour in names if line.x])

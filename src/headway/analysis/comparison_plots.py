"""Pictures of a comparison: what learning costs and what it gives, and how length tells on what is written."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.analysis.plotting import pyplot


@dataclass(frozen=True)
class PlotLine:
    """One contestant: points along the way, or the one number it has."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def draw_compute(lines: Sequence[PlotLine], file: str | Path, *, ylabel: str) -> Path:
    """The score against the operations of training, on a scale of powers of ten. A line without an x, of what was
    learned without multiplying, is drawn through the whole picture."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    colours = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    for i, line in enumerate(lines):
        colour = colours[i % len(colours)]
        if not line.x:
            axes.axhline(line.y[-1], color=colour, linestyle="--", linewidth=1.2, label=line.name)
            continue
        axes.plot(line.x, line.y, color=colour, marker=".", linewidth=1.4, label=line.name)
        best = min(range(len(line.y)), key=line.y.__getitem__)  # the checkpoint that is kept
        axes.plot(line.x[best], line.y[best], color=colour, marker="o", markersize=8)
    axes.set(xlabel="floating-point operations of training", ylabel=ylabel, xscale="log")
    ticker = plt.matplotlib.ticker
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))  # all nine of a power of ten would run together
    axes.xaxis.set_major_formatter(ticker.LogFormatterSciNotation(minor_thresholds=(math.inf, math.inf)))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize="small")
    return _save(plt, figure, file)


def draw_lengths(
    lines: Sequence[PlotLine], file: str | Path, *, ylabel: str, longest: float | None = None, xlabel: str
) -> Path:
    """The score against the length of the source; to the right of `longest` nothing was learned from."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for line in lines:
        axes.plot(line.x, line.y, marker="o", linewidth=1.4, label=line.name)
    if longest is not None and any(x > longest for line in lines for x in line.x):
        axes.axvspan(longest, max(x for line in lines for x in line.x), color="0.92", zorder=0)
        axes.annotate("longer than any learned from", (longest, 0.02), xycoords=("data", "axes fraction"),
                      xytext=(4, 0), textcoords="offset points", fontsize="small", color="0.35")  # fmt: skip
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return _save(plt, figure, file)


def _save(plt: Any, figure: Any, file: str | Path) -> Path:
    figure.savefig(file, dpi=120)
    plt.close(figure)
    return Path(file)

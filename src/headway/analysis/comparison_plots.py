"""Plots of a comparison: scores against training FLOPs, and against the length of the source."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.analysis.plotting import pyplot, save_figure

DPI = 120


@dataclass(frozen=True)
class PlotLine:
    """One model: the points of its curve, or its one score if `x` is empty."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def plot_compute(lines: Sequence[PlotLine], file: str | Path, *, ylabel: str) -> Path:
    """Scores against training FLOPs, on a logarithmic axis. A line without x, of a model that is trained without
    multiplications, is drawn across the whole plot."""
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
    axes.set(xlabel="training FLOPs", ylabel=ylabel, xscale="log")
    ticker = plt.matplotlib.ticker
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))  # labels at all nine steps would overlap
    axes.xaxis.set_major_formatter(ticker.LogFormatterSciNotation(minor_thresholds=(math.inf, math.inf)))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize="small")
    return save_figure(figure, file, dpi=DPI)


def plot_lengths(
    lines: Sequence[PlotLine], file: str | Path, *, ylabel: str, xlabel: str, longest: float | None = None
) -> Path:
    """Scores against the length of the source; shaded where it is longer than `longest`, the longest in training."""
    figure, axes = pyplot().subplots(figsize=(8, 5), layout="constrained")
    for line in lines:
        axes.plot(line.x, line.y, marker="o", linewidth=1.4, label=line.name)
    if longest is not None and any(x > longest for line in lines for x in line.x):
        axes.axvspan(longest, max(x for line in lines for x in line.x), color="0.92", zorder=0)
        axes.annotate("longer than any in training", (longest, 0.02), xycoords=("data", "axes fraction"),
                      xytext=(4, 0), textcoords="offset points", fontsize="small", color="0.35")  # fmt: skip
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return save_figure(figure, file, dpi=DPI)

"""Training curves of one or several runs, from their logs: as a plot, or as text in the terminal."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.analysis.plotting import pyplot, save_figure
from headway.errors import CheckpointError, InputError, suggest
from headway.runs import Run

X_LABELS = {"step": "steps", "seconds": "seconds", "lr": "learning rate"}
MARKERS = "•×+o*#"  # of curves in the terminal
FEW_POINTS = 40  # curves with fewer are plotted with a dot at each


@dataclass(frozen=True)
class Curve:
    """One logged metric of one run."""

    name: str
    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)


def read_curves(runs: Sequence[str | Path], metric: str = "loss", x: str = "step") -> list[Curve]:
    """The metric of each run, by "step" or by "seconds". Raises if a run has not logged it."""
    curves = []
    for run in runs:
        records = _step_records(run)
        curve = Curve(str(run))
        for record in records:
            y_value, x_value = record.get(metric), record.get(x)
            if isinstance(y_value, int | float) and isinstance(x_value, int | float) and math.isfinite(y_value):
                curve.x.append(float(x_value))
                curve.y.append(float(y_value))
        if not curve.x:
            names = sorted({key for record in records for key, v in record.items() if isinstance(v, int | float)})
            hint = suggest(metric, names, otherwise=f" It has: {', '.join(names)}")
            raise InputError(f"{run} has logged no {metric!r}.{hint}")
        curves.append(curve)
    return curves


def _step_records(run: str | Path) -> list[dict[str, Any]]:
    """The log records of training steps and evaluations."""
    if not Run(run).log_file.is_file():
        raise CheckpointError(f"{run} is not a run: it has no log.jsonl")
    return [record for record in Run(run).read_log() if "event" not in record and "step" in record]


def plot(curves: Sequence[Curve], file: str | Path, *, metric: str, x: str = "step", log: bool = False) -> Path:
    """All curves in one plot; `log` makes the y axis logarithmic."""
    figure, axes = pyplot().subplots(figsize=(8, 4.5), layout="constrained")
    for curve in curves:
        marker = "." if len(curve.x) < FEW_POINTS else None
        axes.plot(curve.x, curve.y, label=curve.name, linewidth=1.3, marker=marker)
    axes.set(xlabel=X_LABELS[x], ylabel=metric.replace("_", " "), yscale="log" if log else "linear")
    if x == "lr":
        axes.set_xscale("log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return save_figure(figure, file)


def render_text(curves: Sequence[Curve], *, width: int = 72, height: int = 16) -> str:
    """The curves plotted in characters, then the last and the lowest value of each."""
    xs, ys = [x for curve in curves for x in curve.x], [y for curve in curves for y in curve.y]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    grid = [[" "] * width for _ in range(height)]
    for number, curve in enumerate(curves):
        for x, y in zip(curve.x, curve.y, strict=True):
            column = round((x - left) / (right - left or 1) * (width - 1))
            row = round((high - y) / (high - low or 1) * (height - 1))
            grid[row][column] = MARKERS[number % len(MARKERS)]
    lines = []
    for i, cells in enumerate(grid):
        value = high - i * (high - low) / (height - 1)
        label = f"{value:10.4g}" if i % 5 == 0 or i == height - 1 else " " * 10
        lines.append(f"{label} │{''.join(cells).rstrip()}")
    lines.append(f"{'':10} └{'─' * width}")
    lines.append(f"{'':11} {left:<{width // 2},.6g}{right:>{width - width // 2},.6g}")
    for number, curve in enumerate(curves):
        marker = MARKERS[number % len(MARKERS)]
        lines.append(f"  {marker} {curve.name}: last {curve.y[-1]:.4f}, lowest {min(curve.y):.4f}")
    return "\n".join(lines)

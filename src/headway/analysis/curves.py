"""Training curves of one or several runs, from their logs: as a picture, or as text in the terminal."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.analysis.plotting import pyplot
from headway.errors import CheckpointError, InputError, suggest
from headway.runs import Run

X_AXES = {"step": "steps", "seconds": "seconds", "lr": "learning rate"}


@dataclass(frozen=True)
class Curve:
    """One metric of one run along the way."""

    name: str
    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)


def read_log(run: str | Path) -> list[dict[str, Any]]:
    """The lines of a run's log.jsonl, whole ones; of a step that was done twice, the last."""
    file = Run(run).log_file
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        raise CheckpointError(f"{run} is no run: it has no log.jsonl") from None
    found = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:  # half a line, of a process that was killed
            continue
        if isinstance(record, dict) and "event" not in record and "step" in record:
            found.append(record)
    return found


def curves(runs: Sequence[str | Path], metric: str = "loss", x: str = "step") -> list[Curve]:
    """The metric in each run, by step or by seconds. A run that never logged it is refused by what it has."""
    found = []
    for run in runs:
        records = read_log(run)
        curve = Curve(str(run))
        for record in records:
            value, place = record.get(metric), record.get(x)
            if isinstance(value, int | float) and isinstance(place, int | float) and math.isfinite(value):
                curve.x.append(float(place))
                curve.y.append(float(value))
        if not curve.x:
            names = sorted({key for record in records for key, v in record.items() if isinstance(v, int | float)})
            near = suggest(metric, names, otherwise=f" It has: {', '.join(names)}")
            raise InputError(f"{run} has logged no {metric!r}.{near}")
        found.append(curve)
    return found


def draw(found: Sequence[Curve], file: str | Path, *, metric: str, x: str = "step", log: bool = False) -> Path:
    """A picture of the curves, one colour each."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for curve in found:
        axes.plot(curve.x, curve.y, label=curve.name, linewidth=1.3, marker="." if len(curve.x) < 40 else None)
    axes.set(xlabel=X_AXES[x], ylabel=metric.replace("_", " "), yscale="log" if log else "linear")
    if x == "lr":
        axes.set_xscale("log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(file, dpi=150)
    plt.close(figure)
    return Path(file)


MARKS = "•×+o*#"


def as_text(found: Sequence[Curve], *, width: int = 72, height: int = 16) -> str:
    """The curves in characters, and the last and the best value of each."""
    xs, ys = [v for c in found for v in c.x], [v for c in found for v in c.y]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    rows = [[" "] * width for _ in range(height)]
    for number, curve in enumerate(found):
        for x, y in zip(curve.x, curve.y, strict=True):
            column = round((x - left) / (right - left or 1) * (width - 1))
            row = round((high - y) / (high - low or 1) * (height - 1))
            rows[row][column] = MARKS[number % len(MARKS)]
    lines = []
    for i, cells in enumerate(rows):
        value = high - i * (high - low) / (height - 1)
        label = f"{value:10.4g}" if i % 5 == 0 or i == height - 1 else " " * 10
        lines.append(f"{label} │{''.join(cells).rstrip()}")
    lines.append(f"{'':10} └{'─' * width}")
    lines.append(f"{'':11} {left:<{width // 2},.6g}{right:>{width - width // 2},.6g}")
    for number, curve in enumerate(found):
        best = min(curve.y)
        lines.append(f"  {MARKS[number % len(MARKS)]} {curve.name}: last {curve.y[-1]:.4f}, least {best:.4f}")
    return "\n".join(lines)

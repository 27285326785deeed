"""Training curves of runs, from their logs: as a plot, or as text in the terminal.

Training and validation loss belong together, so "loss" and "bits_per_byte" give both: the training loss of a step is
noisy and is smoothed, the validation loss is drawn as it is. Runs may be named one by one, or by a folder that holds
them: a sweep, a comparison, or runs/ itself.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.analysis.plotting import COLOURS, figure_text, open_figure, set_title
from headway.errors import InputError, suggest
from headway.run_reader import TrainingRun, find_runs, open_run

X_COLUMNS = {"step": "step", "seconds": "seconds", "tokens": "train_tokens"}  # → their names in the log
X_LABELS = {
    "step": "training steps",
    "seconds": "training time in seconds",
    "tokens": "training tokens",
}
Y_LABELS = {
    "bits_per_byte": "bits per byte",
    "nats_per_token": "nats per token",
    "nats_per_target": "nats per target",
    "lr": "learning rate",
    "grad_norm": "gradient norm",
    "tokens_per_second": "tokens per second",
    "mfu": "MFU (model FLOPs utilisation)",
    "memory": "memory in bytes",
    "bleu": "BLEU",
    "exact": "exact match",
}
VALIDATION_LOSSES = ("nats_per_token", "nats_per_target")  # what the training loss compares with
NOISY = frozenset({"loss", "bits_per_byte", "grad_norm"})  # smoothed when it is of training
MARKERS = "•×+o*#@%&abcdefghijklmnpqrstuvwyz"  # of curves in the terminal
FEW_POINTS = 40  # curves with fewer are plotted with a dot at each, and not smoothed
MAX_POINTS = 1000  # of a curve in a plot
MAX_TEXT_CURVES = 8  # in the terminal
MAX_NAMED = 12  # runs in the legend of a plot
SMOOTHING_FRACTION = 0.02  # of a curve, that its moving average spans
MAX_NAME = 44  # characters of a run's name in a legend


@dataclass(frozen=True)
class Curve:
    """One metric of one run. A curve of a single point without an x is a level: an n-gram, which has no steps."""

    name: str
    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    is_validation: bool = False
    is_smoothable: bool = False

    @property
    def is_level(self) -> bool:
        return not self.x and bool(self.y)


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────


def read_curves(runs: Mapping[str, TrainingRun], metric: str = "loss", x: str = "step") -> list[Curve]:
    """The metric of each run by "step", "seconds" or "tokens": for "loss" and "bits_per_byte" of training and of
    validation. Raises if no run has logged the metric."""
    curves = [curve for name, run in runs.items() for curve in _run_curves(name, run, metric, x)]
    if not curves:
        names = sorted({name for run in runs.values() for name in run.history if name not in X_COLUMNS.values()})
        which = f"{next(iter(runs))} has logged no" if len(runs) == 1 else f"none of the {len(runs)} runs has logged"
        hint = suggest(metric, names, otherwise=f" Logged: {', '.join(names)}" if names else " The log is empty")
        raise InputError(f"{which} {metric!r}.{hint}")
    return curves


def named_runs(paths: Sequence[str | Path]) -> dict[str, TrainingRun]:
    """The runs at these paths and below them. A run of the only folder given is named relative to it."""
    runs: dict[str, TrainingRun] = {}
    for path in map(Path, paths):
        inside = [run for run in find_runs(path) if run.path != path]
        if not inside:
            runs[str(path)] = open_run(path)
        for run in inside:
            name = run.path.relative_to(path) if len(paths) == 1 else run.path
            runs[name.as_posix()] = run
    return runs


def loss_unit(runs: Mapping[str, TrainingRun]) -> str:
    """What the loss of these runs is measured in: "nats per token", or "nats per target" if not all are of text."""
    is_text = all(run.metadata.get("objective", "causal") in ("causal", "masked") for run in runs.values())
    return "nats per token" if is_text else "nats per target"


def tokenizers_differ(runs: Mapping[str, TrainingRun]) -> bool:
    """Whether the losses of the runs are per tokens of different length, and so do not compare."""
    ratios = {run.metadata.get("bytes_per_token") for run in runs.values()} - {None}
    return len(ratios) > 1


def _run_curves(name: str, run: TrainingRun, metric: str, x: str) -> list[Curve]:
    history = dict(run.history)
    if "train_tokens" not in history and run.steps:  # a log of an older version
        history["train_tokens"] = [run.n_tokens * step / run.steps for step in history["step"]]
    columns: list[tuple[list[float], bool]] = []
    if metric in ("loss", "bits_per_byte"):
        columns = [(_training_loss(run, history, metric), False), (_validation_loss(history, metric), True)]
    elif metric in history:
        columns = [(history[metric], metric in run.validation and metric not in X_COLUMNS.values())]
    curves = []
    for values, is_validation in columns:
        points = [(px, py) for px, py in zip(history.get(X_COLUMNS[x], []), values, strict=False) if _is_finite(px, py)]
        if run.steps == 0 and points:
            curves.append(Curve(name, [], [points[-1][1]], is_validation))
        elif points:
            xs, ys = map(list, zip(*points, strict=True))
            curves.append(Curve(name, xs, ys, is_validation, metric in NOISY and not is_validation))
    return curves


def _training_loss(run: TrainingRun, history: Mapping[str, list[float]], metric: str) -> list[float]:
    losses = history.get("loss", [])
    if metric == "loss":
        return losses
    bytes_per_token = run.metadata.get("bytes_per_token")
    return [loss / math.log(2) / bytes_per_token for loss in losses] if bytes_per_token else []


def _validation_loss(history: Mapping[str, list[float]], metric: str) -> list[float]:
    names = VALIDATION_LOSSES if metric == "loss" else ("bits_per_byte",)
    return next((history[name] for name in names if name in history), [])


def _is_finite(*values: float) -> bool:
    return all(math.isfinite(value) for value in values)


def smoothed(curve: Curve) -> Curve:
    """A noisy curve as the mean of two exponential moving averages, one from each end, so that it does not lag. They
    span 2 % of the curve. Other curves, and those of few points, come back as they are."""
    if not curve.is_smoothable or len(curve.x) < FEW_POINTS:
        return curve
    span = SMOOTHING_FRACTION * (curve.x[-1] - curve.x[0])
    span = max(span, 2 * (curve.x[-1] - curve.x[0]) / len(curve.x))  # at least two points
    forward = _moving_average(curve.x, curve.y, span)
    backward = _moving_average([-x for x in reversed(curve.x)], curve.y[::-1], span)[::-1]
    averages = [(a + b) / 2 for a, b in zip(forward, backward, strict=True)]
    return Curve(curve.name, curve.x, averages, curve.is_validation)


def _moving_average(xs: Sequence[float], ys: Sequence[float], span: float) -> list[float]:
    """The mean of all values so far, with weights that fall by e per `span`."""
    total, weight, averages, previous = 0.0, 0.0, [], xs[0]
    for x, y in zip(xs, ys, strict=True):
        decay = math.exp(-(x - previous) / span) if span > 0 else 0.0
        total, weight, previous = decay * total + y, decay * weight + 1.0, x
        averages.append(total / weight)
    return averages


# ── a plot ────────────────────────────────────────────────────────────────────────────────────────────────────────


def plot(
    curves: Sequence[Curve],
    file: str | Path,
    *,
    metric: str,
    x: str = "step",
    log: bool = False,
    unit: str = "nats per token",
    title: str = "Training curves",
) -> Path:
    """All curves in one plot, a colour per run: training solid, its smoothed line over the thin raw one; validation
    dashed. `log` makes the y axis logarithmic."""
    names = list(dict.fromkeys(curve.name for curve in curves))
    ranked = sorted(names, key=lambda name: _final_value(curves, name))
    is_crowded = len(names) > MAX_NAMED
    with open_figure(file, width=8.5, height=4.5) as figure:
        axes = figure.subplots()
        colours = _rank_colours(ranked) if is_crowded else {n: COLOURS[i % len(COLOURS)] for i, n in enumerate(names)}
        for curve in curves:
            _draw(axes, curve, colours[curve.name], is_crowded=is_crowded)
        axes.set(xlabel=X_LABELS[x], ylabel=y_label(metric, unit), yscale="log" if log else "linear")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.grid(True)
        set_title(figure, title)
        _add_legend(axes, curves, ranked[:MAX_NAMED] if is_crowded else names, colours, len(names) - MAX_NAMED)
    return Path(file)


def y_label(metric: str, unit: str = "nats per token") -> str:
    """The name of a metric with its unit."""
    if metric == "loss":
        return f"loss in {unit}"
    return Y_LABELS.get(metric, metric.replace("_", " "))


def _draw(axes: Any, curve: Curve, colour: Any, *, is_crowded: bool) -> None:
    if curve.is_level:
        axes.axhline(curve.y[0], color=colour, linestyle=":", linewidth=1.5)
        return
    line = smoothed(curve)
    if line is not curve and not is_crowded:
        axes.plot(*_thinned(curve), color=colour, linewidth=0.6, alpha=0.3)
    xs, ys = _thinned(line)
    style = "--" if curve.is_validation else "-"
    marker = "." if len(xs) < FEW_POINTS and not is_crowded else None
    width = 0.9 if is_crowded else 1.6
    axes.plot(xs, ys, color=colour, linewidth=width, linestyle=style, marker=marker, markersize=5)


def _add_legend(
    axes: Any, curves: Sequence[Curve], names: Sequence[str], colours: Mapping[str, Any], n_more: int
) -> None:
    """Beside the plot, where it hides nothing: what the line styles mean, and a colour per run."""
    from matplotlib.lines import Line2D

    styles = {
        "training": any(not curve.is_validation and not curve.is_level for curve in curves),
        "validation": any(curve.is_validation and not curve.is_level for curve in curves),
        "validation, no steps": any(curve.is_level for curve in curves),
    }
    handles: list[Any] = []
    if styles["validation"] or styles["validation, no steps"]:
        dashes: Any = ("-", "--", ":")
        for (label, is_used), dash in zip(styles.items(), dashes, strict=True):
            handles += [Line2D([], [], color="0.3", linestyle=dash, label=label)] if is_used else []
    handles += [Line2D([], [], color=colours[n], linewidth=3, label=figure_text(_short(n))) for n in names]
    if n_more > 0:
        handles.append(Line2D([], [], linestyle="", label=f"and {n_more} more runs"))
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _thinned(curve: Curve) -> tuple[list[float], list[float]]:
    """At most MAX_POINTS points, evenly chosen, the last one included."""
    stride = -(-len(curve.x) // MAX_POINTS)
    kept = sorted({*range(0, len(curve.x), stride), len(curve.x) - 1})
    return [curve.x[i] for i in kept], [curve.y[i] for i in kept]


def _rank_colours(ranked: Sequence[str]) -> dict[str, Any]:
    """From dark (the lowest last value) to light."""
    from matplotlib import colormaps

    scale = colormaps["viridis"]
    return {name: scale(0.9 * i / max(1, len(ranked) - 1)) for i, name in enumerate(ranked)}


def _final_value(curves: Sequence[Curve], name: str) -> float:
    """The last validation value of a run, or of training if it has none."""
    own = [curve for curve in curves if curve.name == name]
    return next((curve.y[-1] for curve in own if curve.is_validation), own[-1].y[-1])


def _short(name: str) -> str:
    """A long name without its middle."""
    half = (MAX_NAME - 1) // 2
    return name if len(name) <= MAX_NAME else f"{name[:half]}…{name[-half:]}"


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def render_text(curves: Sequence[Curve], *, width: int = 72, height: int = 16) -> str:
    """The curves plotted in characters, then the last and the lowest value of each.

    Of many runs the chart has the validation curves alone, or the training curves if those have no more than a point,
    and of these the lowest.
    """
    lines = [smoothed(curve) for curve in curves]
    shown = _charted(lines)
    xs = [x for curve in shown for x in curve.x] or [0.0]
    ys = [y for curve in shown for y in curve.y]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    grid = [[" "] * width for _ in range(height)]
    for number, curve in enumerate(shown):
        points = zip(curve.x, curve.y, strict=True)
        if curve.is_level:
            points = zip([left + (right - left) * i / (width - 1) for i in range(width)], curve.y * width, strict=True)
        for x, y in points:
            column = round((x - left) / (right - left or 1) * (width - 1))
            row = round((high - y) / (high - low or 1) * (height - 1))
            grid[row][column] = MARKERS[number % len(MARKERS)]
    text = []
    for i, cells in enumerate(grid):
        value = high - i * (high - low) / (height - 1)
        label = f"{value:10.4g}" if i % 5 == 0 or i == height - 1 else " " * 10
        text.append(f"{label} │{''.join(cells).rstrip()}")
    text.append(f"{'':10} └{'─' * width}")
    text.append(f"{'':11} {left:<{width // 2},.6g}{right:>{width - width // 2},.6g}")
    has_both = len({curve.is_validation for curve in lines}) > 1
    for number, curve in enumerate(shown):
        split = (", validation" if curve.is_validation else ", training") if has_both else ""
        marker = MARKERS[number % len(MARKERS)]
        text.append(f"  {marker} {curve.name}{split}: last {curve.y[-1]:.4f}, lowest {min(curve.y):.4f}")
    n_runs, n_shown = (len({curve.name for curve in group}) for group in (lines, shown))
    if n_shown < n_runs:
        text.append(f"  and {n_runs - n_shown} more; `headway runs` lists them")
    return "\n".join(text)


def _charted(curves: Sequence[Curve]) -> list[Curve]:
    if len(curves) <= MAX_TEXT_CURVES:
        return list(curves)
    validation = [curve for curve in curves if curve.is_validation]
    has_lines = any(len(curve.x) > 1 for curve in validation)
    chosen = validation if has_lines else [curve for curve in curves if not curve.is_validation] or validation
    return sorted(chosen, key=lambda curve: curve.y[-1])[:MAX_TEXT_CURVES]

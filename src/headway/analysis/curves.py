"""Training curves of runs, from their logs: as a plot, or as text in the terminal.

Training and validation loss belong together, so "loss" and "bits_per_byte" give both: the training loss of a step is
noisy and is smoothed, the validation loss is drawn as it is. Runs may be named one by one, or by a folder that holds
them: a sweep, a comparison, or runs/ itself.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, cycle
from pathlib import Path
from typing import Any

from headway.analysis.plotting import figure_text, open_figure, set_title, theme
from headway.errors import InputError, suggest
from headway.run_reader import TrainingRun, find_runs, open_run

X_COLUMNS = {"step": "step", "seconds": "seconds", "tokens": "train_tokens"}  # → their names in the log
BUILT_IN_OBJECTIVES = frozenset({"causal", "masked", "pairs", "classify", "tag", "span"})
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
FEW_POINTS = 40  # curves with fewer are plotted with a marker at each, and not smoothed
MAX_POINTS = 1000  # of a curve in a plot
MAX_TEXT_CURVES = 8  # in the terminal
MAX_NAMED = 12  # runs in the legend of a plot
SMOOTHING_FRACTION = 0.03  # of a curve's points, on either side of one, that its moving average spans
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
    """What the loss of these runs is measured in: "nats per token", or "nats per target" if not all are of text. The
    training loss of a registered objective has a unit of its own."""
    objectives = {str(run.metadata.get("objective", "causal")) for run in runs.values()}
    if registered := sorted(objectives - BUILT_IN_OBJECTIVES):
        return f"nats; of training: {', '.join(registered)}"
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


def smoothed(curves: Sequence[Curve]) -> list[Curve]:
    """The curves with the noisy ones smoothed: all of them if the longest has many points, and otherwise none, so that
    curves of one figure compare. Curves that need no smoothing come back as they are."""
    longest = max((len(curve.y) for curve in curves if curve.is_smoothable), default=0)
    if longest < FEW_POINTS:
        return list(curves)
    return [replace(c, y=_smooth(c.y), is_smoothable=False) if c.is_smoothable else c for c in curves]


def _smooth(values: Sequence[float]) -> list[float]:
    """A moving average with triangular weights: that of a moving average."""
    half_width = max(1, round(SMOOTHING_FRACTION * len(values) / 2))
    return _moving_average(_moving_average(values, half_width), half_width)


def _moving_average(values: Sequence[float], half_width: int) -> list[float]:
    """The mean of up to `half_width` values on either side of each.

    A loss falls steeply at first, and a mean over a steep part lies above it. So the window starts with the first value
    alone and grows with the distance from it.
    """
    sums = [0.0, *accumulate(values)]
    averages = []
    for i in range(len(values)):
        reach = min(half_width, i // 8)
        first, end = i - reach, min(i + reach + 1, len(values))
        averages.append((sums[end] - sums[first]) / (end - first) if reach else values[i])
    return averages


def check_log_scale(curves: Sequence[Curve]) -> None:
    """Raise if a curve has values that a logarithmic axis cannot show."""
    for curve in curves:
        if min(curve.y) <= 0:
            raise InputError(
                f"{curve.name} has the value {min(curve.y):g}, and a logarithmic axis shows only values above 0: "
                f"leave out --log"
            )


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
        colours = _rank_colours(ranked) if is_crowded else {n: theme().colour(i) for i, n in enumerate(names)}
        for curve, line in zip(curves, smoothed(curves), strict=True):
            if line is not curve and not is_crowded:
                axes.plot(*_thinned(curve), color=colours[curve.name], linewidth=0.6, alpha=0.3)
            _draw(axes, line, colours[curve.name], is_crowded=is_crowded)
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
    style = _line_style(curve, is_crowded=is_crowded)
    axes.plot(*_thinned(curve), color=colour, linewidth=0.9 if is_crowded else 1.6, **style)


def _line_style(curve: Curve, *, is_crowded: bool) -> dict[str, Any]:
    """Training: solid, with dots; validation: dashed, with diamonds. Curves of many points have no markers, and a
    single point has no line."""
    line = "--" if curve.is_validation else "-"
    if len(curve.x) > 1 and (is_crowded or len(curve.x) >= FEW_POINTS):
        return {"linestyle": line}
    diamond = {
        "marker": "D",
        "markersize": 6,
        "markeredgecolor": theme().background,
        "zorder": 3,
    }  # above the training curve
    marker = diamond if curve.is_validation else {"marker": ".", "markersize": 5}
    return {"linestyle": line if len(curve.x) > 1 else "", **marker}


def _add_legend(
    axes: Any, curves: Sequence[Curve], names: Sequence[str], colours: Mapping[str, Any], n_more: int
) -> None:
    """Beside the plot, where it hides nothing: what the line styles mean, and a colour per run."""
    from matplotlib.lines import Line2D

    is_crowded = n_more > 0
    handles: list[Any] = []
    if any(curve.is_validation or curve.is_level for curve in curves):
        for label, is_validation in (("training", False), ("validation", True)):
            group = [c for c in curves if c.is_validation == is_validation and not c.is_level]
            style: dict[str, Any] = {}
            for curve in sorted(group, key=lambda curve: len(curve.x)):  # a line and a marker, if any curve has them
                style |= _line_style(curve, is_crowded=is_crowded)
            handles += [Line2D([], [], color=theme().text, label=label, **style)] if group else []
    if any(curve.is_level for curve in curves):
        handles.append(Line2D([], [], color=theme().text, linestyle=":", label="validation, no steps"))
    handles += [Line2D([], [], color=colours[n], linewidth=3, label=figure_text(_short(n))) for n in names]
    if is_crowded:
        handles.append(Line2D([], [], linestyle="", label=f"and {n_more} more runs"))
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), handlelength=2.8)


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
    curves_of_run = [curve for curve in curves if curve.name == name]
    return next((curve.y[-1] for curve in curves_of_run if curve.is_validation), curves_of_run[-1].y[-1])


def _short(name: str) -> str:
    """A long name without its middle."""
    half = (MAX_NAME - 1) // 2
    return name if len(name) <= MAX_NAME else f"{name[:half]}…{name[-half:]}"


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def render_text(curves: Sequence[Curve], *, width: int = 72, height: int = 16, log: bool = False) -> str:
    """The curves plotted in characters, then the last and the lowest value of each. `log` makes the y axis logarithmic.

    Of many runs the chart has the validation curves alone, or the training curves if those have no more than a point,
    and of these the lowest.
    """
    lines = smoothed(curves)
    shown = _charted(lines)
    scale, unscale = (math.log, math.exp) if log else (float, float)
    xs = [x for curve in shown for x in curve.x] or [0.0]
    ys = [scale(y) for curve in shown for y in curve.y]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    grid = [[" "] * width for _ in range(height)]
    marked = list(zip(shown, cycle(MARKERS), strict=False))
    for curve, marker in sorted(marked, key=lambda pair: _drawing_order(pair[0])):
        points = zip(curve.x, curve.y, strict=True)
        if curve.is_level:
            points = zip([left + (right - left) * i / (width - 1) for i in range(width)], curve.y * width, strict=True)
        for x, y in points:
            column = round((x - left) / (right - left or 1) * (width - 1))
            row = round((high - scale(y)) / (high - low or 1) * (height - 1))
            grid[row][column] = marker
    text = []
    for i, cells in enumerate(grid):
        value = unscale(high - i * (high - low) / (height - 1))
        label = f"{value:10.4g}" if i % 5 == 0 or i == height - 1 else " " * 10
        text.append(f"{label} │{''.join(cells).rstrip()}")
    text.append(f"{'':10} └{'─' * width}")
    text.append(f"{'':11} {_tick(left):<{width // 2}}{_tick(right):>{width - width // 2}}")
    has_both = len({curve.is_validation for curve in lines}) > 1
    for curve, marker in marked:
        split = (", validation" if curve.is_validation else ", training") if has_both else ""
        text.append(f"  {marker} {curve.name}{split}: last {curve.y[-1]:.4f}, lowest {min(curve.y):.4f}")
    n_runs, n_shown = (len({curve.name for curve in group}) for group in (lines, shown))
    if n_shown < n_runs:
        text.append(f"  and {n_runs - n_shown} more; `headway runs` lists them")
    return "\n".join(text)


def _drawing_order(curve: Curve) -> int:
    """Levels first, which would hide the curves they cross; single points last, which a curve would hide."""
    return 0 if curve.is_level else 1 if len(curve.x) > 1 else 2


def _tick(value: float) -> str:
    """A number of the x axis: steps and tokens in full, seconds rounded."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _charted(curves: Sequence[Curve]) -> list[Curve]:
    if len(curves) <= MAX_TEXT_CURVES:
        return list(curves)
    validation = [curve for curve in curves if curve.is_validation]
    has_lines = any(len(curve.x) > 1 for curve in validation)
    chosen = validation if has_lines else [curve for curve in curves if not curve.is_validation] or validation
    return sorted(chosen, key=lambda curve: curve.y[-1])[:MAX_TEXT_CURVES]

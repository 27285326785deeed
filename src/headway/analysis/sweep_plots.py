"""Plots of a sweep: the validation score against the settings that vary.

one setting            a line, or a dot per name
two settings, a grid   a line per value of the second one; a heat map if that would be too many lines
else                   a panel per setting, with a dot per run
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.analysis.plotting import MARKERS, figure_text, fit_tick_labels, open_figure, set_title, theme

MAX_LINES = 7  # as many as the colours can tell apart
LOG_RATIO = 8  # positive numbers that span more than this factor get a logarithmic axis
PANEL = (2.8, 2.8)  # inches
MAX_PANELS_PER_ROW = 4


@dataclass(frozen=True)
class SweepDot:
    """One run."""

    settings: Mapping[str, Any]
    score: float | None  # None if it has none
    status: str

    @property
    def is_pruned(self) -> bool:
        return self.status == "pruned"


def plot_sweep(
    dots: Sequence[SweepDot],
    names: Mapping[str, str],
    file: str | Path,
    *,
    score_label: str,
    title: str,
    higher_is_better: bool = False,
    is_grid: bool = True,
) -> Path:
    """Write the plot. `names` are the settings and their labels; the best run is marked with a star."""
    picture = _Picture([dot for dot in dots if dot.score is not None], dots, names, score_label, higher_is_better)
    n_missing = len(dots) - len(picture.scored)
    notes = [f"{n_missing} of {len(dots)} runs have no score"] if n_missing else []
    notes += ["× stopped early"] if any(dot.is_pruned for dot in picture.scored) else []
    lines = _line_keys(dots, list(names)) if is_grid else None
    if lines is not None:
        size, draw = (7.0, 4.2), lambda figure: picture.draw_lines(figure, *lines)
    elif is_grid and len(names) == 2:
        size, draw = picture.heat_map_size, picture.draw_heat_map
    else:
        size, draw = picture.panels_size, picture.draw_panels
    with open_figure(file, width=size[0], height=size[1]) as figure:
        draw(figure)
        set_title(figure, title, "; ".join(notes))
    return Path(file)


def _line_keys(dots: Sequence[SweepDot], keys: Sequence[str]) -> tuple[str, str | None] | None:
    """The settings on the x axis and in the legend of a line plot; None if lines do not suit."""
    if len(keys) == 1:
        return keys[0], None
    if len(keys) != 2:
        return None
    n_values = {key: len(_values(dots, key)) for key in keys}
    orders = [(keys[0], keys[1]), (keys[1], keys[0])]
    fitting = [(x, hue) for x, hue in orders if _is_numeric(dots, x) and n_values[hue] <= MAX_LINES]
    return max(fitting, key=lambda pair: n_values[pair[0]], default=None)


@dataclass(frozen=True)
class _Picture:
    scored: Sequence[SweepDot]
    dots: Sequence[SweepDot]
    names: Mapping[str, str]
    label: str
    higher_is_better: bool

    @property
    def score_label(self) -> str:
        return f"{self.label} ({'higher' if self.higher_is_better else 'lower'} is better)"

    def draw_lines(self, figure: Any, x: str, hue: str | None) -> None:
        """A line per value of the setting `hue`."""
        axes, to_x = figure.subplots(), _Axis(self.scored, x)
        for i, group in enumerate(_values(self.dots, hue) if hue is not None else [None]):
            members = [dot for dot in self.scored if hue is None or dot.settings[hue] == group]
            members.sort(key=lambda dot: to_x(dot.settings[x]))
            trained = [dot for dot in members if not dot.is_pruned]
            stopped = [dot for dot in members if dot.is_pruned]
            colour, label = (
                theme().colour(i),
                f"{self.names[hue]} = {_text(group)}" if hue is not None else None,
            )
            axes.plot(
                [to_x(dot.settings[x]) for dot in trained],
                [dot.score for dot in trained],
                color=colour,
                marker=MARKERS[i % len(MARKERS)],
                linestyle="-" if to_x.is_numeric else "",
                label=label and figure_text(label),
            )
            xs, ys = [to_x(dot.settings[x]) for dot in stopped], [dot.score for dot in stopped]
            axes.plot(xs, ys, color=colour, marker="x", linestyle="")
        to_x.format(axes, self.names[x])
        axes.set_ylabel(self.score_label)
        self._mark_best(axes, x, to_x)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        axes.grid(True)
        fit_tick_labels([axes])

    # ── a panel per setting ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def panels_shape(self) -> tuple[int, int]:
        n_columns = min(len(self.names), MAX_PANELS_PER_ROW)
        return -(-len(self.names) // n_columns), n_columns

    @property
    def panels_size(self) -> tuple[float, float]:
        n_rows, n_columns = self.panels_shape
        return PANEL[0] * n_columns + 1.2, PANEL[1] * n_rows + 0.3

    def draw_panels(self, figure: Any) -> None:
        """A dot's colour is its rank, so that a good run can be followed through the panels."""
        grid = figure.subplots(*self.panels_shape, sharey=True, squeeze=False)
        ordered = sorted(self.scored, key=lambda dot: dot.score or 0.0, reverse=not self.higher_is_better)
        ranks = range(len(ordered), 0, -1)  # the best is 1, and is drawn last, on top
        scatter = None
        for axes, key in zip(grid.flat, self.names, strict=False):
            to_x = _Axis(self.scored, key)
            for is_pruned, marker in ((True, "x"), (False, "o")):
                ranked = [(dot, rank) for dot, rank in zip(ordered, ranks, strict=True) if dot.is_pruned == is_pruned]
                xs, ys = [to_x(dot.settings[key]) for dot, _ in ranked], [dot.score for dot, _ in ranked]
                shade = {"c": [rank for _, rank in ranked], "cmap": "viridis", "vmin": 1, "vmax": max(2, len(ordered))}
                scatter = axes.scatter(xs, ys, s=26, marker=marker, **shade)
            to_x.format(axes, self.names[key])
            self._mark_best(axes, key, to_x)
            axes.grid(True)
        for axes in grid.flat[len(self.names) :]:
            axes.set_visible(False)
        for row in grid:
            row[0].set_ylabel(self.score_label)
        if scatter is not None:
            bar = figure.colorbar(scatter, ax=grid, shrink=0.8, label="rank of the run; ☆ is the best")
            bar.ax.invert_yaxis()
            bar.ax.yaxis.get_major_locator().set_params(integer=True)
        fit_tick_labels(list(grid.flat[: len(self.names)]))

    # ── a heat map ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def heat_map_keys(self) -> tuple[str, str]:
        """The settings across and down: the one with more values across."""
        down, across = sorted(self.names, key=lambda key: len(_values(self.dots, key)))
        return across, down

    @property
    def heat_map_size(self) -> tuple[float, float]:
        across, down = (len(_values(self.dots, key)) for key in self.heat_map_keys)
        return min(2.5 + 0.75 * across, 14), min(1.6 + 0.45 * down, 10)

    def draw_heat_map(self, figure: Any) -> None:
        across, down = self.heat_map_keys
        xs, ys = _values(self.dots, across), _values(self.dots, down)
        cells = [[math.nan] * len(xs) for _ in ys]
        for dot in self.scored:
            cells[ys.index(dot.settings[down])][xs.index(dot.settings[across])] = float(dot.score or 0.0)
        axes = figure.subplots()
        axes.patch.set(hatch="////", edgecolor=theme().hatch)  # shows where a run has no score
        image = axes.imshow(cells, aspect="auto", cmap="viridis" if self.higher_is_better else "viridis_r")
        best = self._best()
        for row, values in enumerate(cells):
            for column, value in enumerate(values):
                if not math.isnan(value):
                    shade = image.norm(value) if self.higher_is_better else 1 - image.norm(value)
                    is_best = best.settings[across] == xs[column] and best.settings[down] == ys[row]
                    axes.text(column, row, f"{value:.3f}" + (" ☆" if is_best else ""), ha="center", va="center",
                              fontsize=8, color="black" if shade > 0.5 else "white")  # fmt: skip
        axes.set_xticks(range(len(xs)), [figure_text(_text(x)) for x in xs])
        axes.set_yticks(range(len(ys)), [figure_text(_text(y)) for y in ys])
        axes.set(xlabel=figure_text(self.names[across]), ylabel=figure_text(self.names[down]))
        figure.colorbar(image, ax=axes, label=self.score_label)
        fit_tick_labels([axes])

    def _best(self) -> SweepDot:
        return (max if self.higher_is_better else min)(self.scored, key=lambda dot: dot.score or 0.0)

    def _mark_best(self, axes: Any, key: str, to_x: "_Axis") -> None:
        best = self._best()
        axes.plot(to_x(best.settings[key]), best.score, marker="*", markersize=14, color="none", linestyle="",
                  markeredgecolor=theme().text, label=f"best: {best.score:.4f}", zorder=5)  # fmt: skip


class _Axis:
    """Where a setting's values lie on an x axis: numbers by their value, names side by side."""

    def __init__(self, dots: Sequence[SweepDot], key: str):
        self.values = _values(dots, key)
        self.is_numeric = _is_numeric(dots, key)
        numbers = self.values if self.is_numeric else []
        self.is_log = bool(numbers) and min(numbers) > 0 and max(numbers) / min(numbers) >= LOG_RATIO

    def __call__(self, value: Any) -> float:
        return float(value) if self.is_numeric else float(self.values.index(value))

    def format(self, axes: Any, name: str) -> None:
        axes.set_xlabel(figure_text(name) + (" (log scale)" if self.is_log else ""))
        if self.is_log:
            axes.set_xscale("log")
            _label_log_axis(axes.xaxis)
        if not self.is_numeric or len(self.values) <= 8:  # a tick at each value tried
            ticks = [self(value) for value in self.values]
            axes.set_xticks(ticks, [figure_text(_text(value)) for value in self.values])
            axes.xaxis.set_tick_params(which="minor", bottom=False)
        if not self.is_numeric:
            axes.margins(x=0.2)


def _label_log_axis(axis: Any) -> None:
    """Plain numbers at 1 and 3 of each power of ten: matplotlib's own labels of a short axis collide."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 3)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _values(dots: Sequence[SweepDot], key: str) -> list[Any]:
    """The different values of a setting: numbers in ascending order, names in alphabetical order."""
    values = []
    for dot in dots:
        if dot.settings[key] not in values:
            values.append(dot.settings[key])
    return sorted(values) if _is_numeric(dots, key) else sorted(values, key=str)


def _is_numeric(dots: Sequence[SweepDot], key: str) -> bool:
    return all(isinstance(d.settings[key], int | float) and not isinstance(d.settings[key], bool) for d in dots)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)

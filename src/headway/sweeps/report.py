"""A sweep as a table for the terminal and as a plot."""

from pathlib import Path

from headway.analysis.sweep_plots import SweepDot, plot_sweep
from headway.errors import count
from headway.run_reader import HIGHER_IS_BETTER, SCORE_TITLES, format_score
from headway.sweeps.points import format_value, short_keys
from headway.sweeps.results import SweepResult, first_sentence
from headway.tables import Column, render_table


def render_text(result: SweepResult, width: int | None = None) -> str:
    """A summary, a row per run with the best first, and why runs failed."""
    points, names = result.points, short_keys(result.keys)
    metric = _metric(result)
    n_finished = sum(point.status == "finished" for point in points)
    summary = f"{result.recipe}: {count(len(points), 'run')}, {n_finished} finished"
    columns = [Column("", ["best" if i == 0 and point.metric else "" for i, point in enumerate(points)], is_text=True)]
    columns += [Column(names[key], [format_value(point.settings[key]) for point in points]) for key in result.keys]
    columns += [
        Column(SCORE_TITLES.get(metric, "score"), [format_score(metric, p.scores.get(metric)) for p in points]),
        Column("steps", [f"{point.steps:,}" for point in points], rank=2),
        Column("tokens", [f"{point.n_tokens:,}" for point in points], rank=3),
        Column("parameters", [f"{point.n_params:,}" for point in points], rank=4),
        Column("seconds", [f"{point.seconds:.1f}" for point in points], rank=5),
        Column("status", [point.status for point in points], is_text=True, rank=1),
    ]
    failures = [f"failed: {point.name}: {first_sentence(point.failure)}" for point in points if point.failure]
    return "\n".join([summary, "", render_table(columns, width), *([""] if failures else []), *failures])


def plot(result: SweepResult, file: str | Path) -> Path:
    """The validation score against the settings that vary."""
    metric = _metric(result)
    dots = [SweepDot(p.settings, p.scores.get(metric), p.status) for p in result.points]
    return plot_sweep(
        dots,
        short_keys(result.keys),
        file,
        score_label=f"validation {SCORE_TITLES.get(metric, 'score')}",
        title=f"Sweep of {result.recipe}",
        higher_is_better=metric in HIGHER_IS_BETTER,
        is_grid=result.is_grid,
    )


def _metric(result: SweepResult) -> str:
    return result.points[0].metric if result.points else ""

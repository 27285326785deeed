"""Plots of sweeps: the kind of plot follows from the settings, and the best run is marked."""

import pytest

from headway.analysis import plotting
from headway.analysis.sweep_plots import SweepDot, plot_sweep


def drawn(dots, monkeypatch, **options):
    """The figure of the plot."""
    figures = []
    monkeypatch.setattr(plotting, "save_figure", lambda figure, file: figures.append(figure))
    names = {key: key.rpartition(".")[2] for key in dots[0].settings}
    plot_sweep(dots, names, "unused.png", **{"score_label": "bits per byte", "title": "Sweep of demo", **options})
    return figures[0]


def grid(*axes, status="finished"):
    """A dot per combination; the score is the sum of the positions of its values."""
    import itertools

    keys, values = [key for key, _ in axes], [list(enumerate(values)) for _, values in axes]
    return [
        SweepDot(
            {key: value for key, (_, value) in zip(keys, point, strict=True)}, float(sum(i for i, _ in point)), status
        )
        for point in itertools.product(*values)
    ]


LR, LAYERS, SCHEDULE = ("train.lr", [1e-3, 1e-2, 1e-1]), ("model.n_layers", [2, 4]), ("train.schedule", ["wsd", "step"])


def stars(axes):
    return [line.get_xydata().tolist() for line in axes.lines if line.get_marker() == "*"]


def test_learning_rates_are_a_line_on_a_logarithmic_axis_with_the_best_marked(monkeypatch):
    (axes,) = drawn(grid(LR), monkeypatch).axes
    assert axes.get_xscale() == "log"
    assert axes.get_xlabel() == "lr (log scale)"
    assert axes.get_ylabel() == "bits per byte (lower is better)"
    assert stars(axes) == [[[1e-3, 0.0]]]
    (axes,) = drawn(grid(LR), monkeypatch, higher_is_better=True).axes
    assert stars(axes) == [[[1e-1, 2.0]]]


def test_two_settings_of_a_grid_are_lines_and_names_alone_a_heat_map(monkeypatch):
    (axes,) = drawn(grid(LR, SCHEDULE), monkeypatch).axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels[:2] == ["schedule = step", "schedule = wsd"]
    axes, _ = drawn(grid(SCHEDULE, ("train.optimizer", ["adam", "sgd", "muon"])), monkeypatch).axes
    assert len(axes.images) == 1
    assert axes.get_xlabel() == "optimizer"
    assert sum("☆" in text.get_text() for text in axes.texts) == 1


@pytest.mark.parametrize("is_grid", [True, False])
def test_more_settings_are_a_panel_each(monkeypatch, is_grid):
    *panels, bar = drawn(grid(LR, LAYERS, SCHEDULE), monkeypatch, is_grid=is_grid).axes
    assert [axes.get_xlabel() for axes in panels] == ["lr (log scale)", "n_layers", "schedule"]
    assert all(len(stars(axes)) == 1 for axes in panels)
    assert bar.get_ylabel().startswith("rank")


def test_runs_without_a_score_are_counted_and_those_stopped_early_look_different(monkeypatch):
    dots = [*grid(LR), SweepDot({"train.lr": 1e10}, None, "failed"), SweepDot({"train.lr": 1.0}, 9.0, "pruned")]
    figure = drawn(dots, monkeypatch)
    assert figure.get_suptitle() == "Sweep of demo\n1 of 5 runs have no score; × stopped early"
    crosses = [line.get_xydata().tolist() for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert crosses == [[[1.0, 9.0]]]
    assert figure.axes[0].get_xlim()[1] < 100  # not stretched by a value that has no dot

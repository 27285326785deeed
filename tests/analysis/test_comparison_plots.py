"""Plots of comparisons: every line is named, nothing collides, and the axes say what they are."""

from itertools import combinations, pairwise

import pytest

from headway.analysis.comparison_plots import PlotLine, draw_compute, draw_lengths, draw_training
from headway.analysis.plotting import figure_style, new_figure


def drawn(draw, lines, **options):
    with figure_style():
        figure = new_figure(7.5, 4.5)
        draw(figure, lines, **options)
        figure.draw_without_rendering()
    return figure


@pytest.mark.parametrize("span", [2, 20, 5000])
def test_lines_are_named_at_their_ends_and_no_labels_collide(span):
    curves = [PlotLine(f"model-{i} (20{i:02})", [1e12, 1e12 * span], [3.0, 2 + i / 100]) for i in range(7)]
    figure = drawn(draw_compute, [PlotLine("ngram (1998)", [], [1.6]), *curves], ylabel="bits per byte", title="pydocs")
    (axes,) = figure.axes
    names = [text for text in axes.texts if text.get_text()]
    assert [name.get_text() for name in names] == ["ngram (1998), no FLOPs", *(line.name for line in curves)]
    boxes = [name.get_window_extent() for name in names]
    assert not any(first.overlaps(second) for first, second in combinations(boxes, 2))
    assert all(box.x0 > axes.get_window_extent().x1 and box.x1 < figure.bbox.x1 for box in boxes)
    ticks = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
    assert len(ticks) >= 2
    assert not any(first.overlaps(second) for first, second in pairwise(ticks))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("training compute (FLOPs)", "bits per byte")
    assert axes.get_xscale() == "log"
    assert figure.get_suptitle() == "pydocs"
    (legend,) = figure.legends
    assert "best checkpoint" in legend.get_texts()[0].get_text()


def test_the_large_marker_is_at_the_best_checkpoint():
    figure = drawn(draw_compute, [PlotLine("lstm", [1e12, 2e12, 4e12], [2.0, 1.7, 1.8])], ylabel="bits per byte")
    best = max(figure.axes[0].lines, key=lambda line: line.get_markersize())
    assert (best.get_xdata().tolist(), best.get_ydata().tolist()) == ([2e12], [1.7])


def test_scores_by_length_run_from_nothing_to_the_best_and_long_sources_are_shaded():
    lines = [PlotLine("seq2seq", [10, 30, 50], [0.0, 0.0, 0.0]), PlotLine("bahdanau", [10, 30, 50], [0.0, 0.0, 0.0])]
    options = {"ylabel": "exact match (%)", "xlabel": "source length (tokens)"}
    figure = drawn(draw_lengths, lines, **options, top=100, longest=40)
    (axes,) = figure.axes
    low, high = axes.get_ylim()
    assert low < 0 < 100 < high
    assert "longer than any in training" in {text.get_text() for text in axes.texts}
    (shade,) = axes.patches
    assert shade.get_x() == 40
    assert not drawn(draw_lengths, lines, **options, top=100, longest=60).axes[0].patches


def test_untrained_models_do_not_flatten_the_curves():
    """A first evaluation at 6 bits, before anything was learned, is left out; the scores around 2 fill the plot."""
    lines = [
        PlotLine("ngram", [], [2.2]),
        PlotLine("gpt", [1e10, 1e14, 1e15], [6.0, 2.3, 2.1]),
        PlotLine("lstm", [1e14, 1e15], [2.4, 2.2]),
    ]
    figure = drawn(draw_compute, lines, ylabel="bits per byte")
    low, high = figure.axes[0].get_ylim()
    left, right = figure.axes[0].get_xlim()
    assert 2.0 < low < 2.1
    assert 2.4 < high < 2.6
    assert 1e10 < left < 1e14 < 1e15 < right


TRAINING = {"xlabel": "examples trained on", "ylabel": "accuracy (%)", "suffix": "as trained"}


def test_scores_during_training_start_at_zero_and_the_highest_is_the_best():
    lines = [
        PlotLine("bow (2012)", [500, 1000, 1500], [70.0, 82.0, 81.0]),
        PlotLine("bilstm (2015)", [500, 1000, 1500], [50.0, 61.0, 71.0]),
        PlotLine("mine", [], [77.0]),
    ]
    figure = drawn(draw_training, lines, **TRAINING, title="reviews")
    (axes,) = figure.axes
    assert axes.get_xscale() == "linear"
    assert axes.get_xlim()[0] == 0 < 1500 < axes.get_xlim()[1]
    large = [line for line in axes.lines if line.get_markersize() > 6 and line.get_marker() != "None"]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in large] == [(1000, 82.0), (1500, 71.0)]
    names = [text for text in axes.texts if text.get_text()]
    assert [name.get_text() for name in names] == ["bow (2012)", "bilstm (2015)", "mine, as trained"]
    boxes = [name.get_window_extent() for name in names]
    assert not any(first.overlaps(second) for first, second in combinations(boxes, 2))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("examples trained on", "accuracy (%)")
    assert "1,000" in [label.get_text() for label in axes.get_xticklabels()]


def test_models_that_were_not_trained_here_are_level_lines_without_an_x_axis():
    lines = [PlotLine("mine", [], [77.0]), PlotLine("yours", [], [77.1])]
    figure = drawn(draw_training, lines, **{**TRAINING, "suffix": ""})
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts if text.get_text()] == ["mine", "yours"]
    assert (axes.get_xlabel(), axes.get_xticks().tolist(), figure.legends) == ("", [], [])

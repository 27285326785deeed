"""The picture of a learning-rate sweep marks the suggestion, the lowest loss and where the loss diverged."""

from headway.analysis.lr_sweep_plot import draw
from headway.analysis.plotting import figure_style, new_figure


def test_the_suggested_rate_and_the_lowest_loss_are_marked_and_an_explosion_does_not_hide_them():
    rates = [10.0**e for e in range(-6, 2)]
    smooth = [7.0, 7.0, 6.9, 6.5, 6.0, 6.2, 9.0, 400.0]
    with figure_style():
        figure = new_figure(7, 4)
        draw(figure, rates, smooth, smooth, suggestion=1e-3, diverged_at=100.0, title="Learning-rate sweep of demo")
        figure.draw_without_rendering()
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("learning rate", "training loss (nats per target)")
    assert [text.get_text() for text in axes.texts] == ["suggested: 0.001"]
    assert [1e-3, 1e-3] in [list(line.get_xdata()) for line in axes.lines]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "lowest: 6 at 0.01" in labels
    assert "diverged at 1e+02" in labels
    bottom, top = axes.get_ylim()
    assert bottom < 6.0 < 7.0 < top < 20
    assert figure.get_suptitle() == "Learning-rate sweep of demo"

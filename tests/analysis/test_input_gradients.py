"""Input gradients decay with distance as the theory says."""

import pytest
import torch

import headway
from headway.analysis.input_gradients import (
    MIN_PLOTTED,
    GradientReach,
    compare_reach,
    draw,
    gradient_reach,
    plot,
    render_text,
)
from headway.analysis.plotting import figure_style, new_figure
from headway.errors import ConfigError, InputError

IDS = torch.randint(11, (80,), generator=torch.Generator().manual_seed(0)).tolist()


def elman(factor: float):
    """An Elman RNN with W_hh = factor · I: an input d steps back counts factor^d."""
    model = headway.create("rnn", vocab_size=11, d_model=8)
    with torch.no_grad():
        (layer,) = model.layers
        model.embedding.mul_(0.1)  # small, so that tanh is nearly linear
        layer.weight_x.copy_(torch.eye(8))
        layer.weight_h.copy_(factor * torch.eye(8))
        layer.bias_x.zero_()
        layer.bias_h.zero_()
    return model


def test_the_reach_of_an_elman_rnn_decays_by_its_recurrent_weight():
    for factor in (0.5, 0.9):
        values = gradient_reach(elman(factor), IDS, distance=12, n_positions=5).values
        assert values == pytest.approx([factor**d for d in range(12)], rel=0.05)


def test_every_neural_language_model_has_a_reach(tmp_path):
    families = {
        "gpt": {"n_layers": 1, "n_heads": 2, "context": 32},
        "lstm": {"n_layers": 2},
        "nplm": {"order": 4, "d_hidden": 9},
    }
    reaches = [
        gradient_reach(
            headway.create(name, vocab_size=11, d_model=8, **config), IDS, distance=10, n_positions=3, name=name
        )
        for name, config in families.items()
    ]
    assert all(reach.values[0] == 1.0 and len(reach.values) == 10 for reach in reaches)
    nplm = reaches[2].values
    assert all(value > 0 for value in nplm[:3])
    assert nplm[3:] == [0.0] * 7  # order 4: it sees three tokens
    assert "lstm" in render_text(reaches)
    assert plot(reaches, tmp_path / "reach.png").stat().st_size > 5000


def test_curves_end_where_they_fall_below_the_axis_and_say_so():
    reaches = [
        GradientReach("runs/lstm", [1.0, 0.5, 0.2, 0.1]),
        GradientReach("runs/nplm", [1.0, 0.4, 0.0, 0.0]),
        GradientReach("runs/rnn", [1.0, 1e-6, 1e-11, 1e-14]),
    ]
    with figure_style():
        figure = new_figure(7, 4)
        draw(figure, reaches)
    (axes,) = figure.axes
    assert [len(line.get_xdata()) for line in axes.lines] == [4, 2, 3]
    assert axes.get_ylim()[0] >= MIN_PLOTTED
    texts = {text.get_text() for text in axes.texts if text.get_text()}
    assert texts == {"lstm", "nplm: 0 beyond 2", "rnn: below 1e-12 beyond 3"}
    assert "gradient norm" in axes.get_ylabel()
    assert "tokens back" in axes.get_xlabel()
    assert figure.get_suptitle()


def test_the_table_fits_the_width_and_keeps_the_first_and_the_last_distance():
    reach = GradientReach("runs/lstm", [1 / d for d in range(1, 301)])
    for width in (40, 60, 80, 120):
        header, row = render_text([reach], width=width).splitlines()
        assert len(header) == len(row) <= width
        assert header.split()[2:4] == ["1", "2"]
        assert header.split()[-1] == "300"
        assert row.split()[0] == "lstm"


def test_models_without_gradients_and_texts_that_are_too_short_are_refused(tmp_path):
    with pytest.raises(InputError, match="has no token embeddings"):
        gradient_reach(headway.create("ngram", vocab_size=11), IDS, distance=4)
    with pytest.raises(InputError, match="80 tokens are too few for distance=90"):
        gradient_reach(elman(0.5), IDS, distance=90)
    with pytest.raises(InputError, match="more than the context of 8"):
        gradient_reach(
            headway.create("gpt", vocab_size=11, d_model=8, n_heads=2, n_layers=1, context=8), IDS, distance=9
        )
    with pytest.raises(ConfigError, match="is not a run, so it has no validation split: name a text file with --text"):
        compare_reach([tmp_path])

"""Training curves are read from the logs of runs and folders of runs, plotted, and rendered as text."""

import json
import math
import random
import sys

import pytest

from headway.analysis import plotting
from headway.analysis.curves import (
    Curve,
    check_log_scale,
    loss_unit,
    named_runs,
    plot,
    read_curves,
    render_text,
    smoothed,
    tokenizers_differ,
)
from headway.errors import CheckpointError, InputError


def write_run(folder, *, n_steps=8, bytes_per_token=2.0):
    """A run that logs each step, evaluates at the end, and was killed while it wrote a line."""
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text('[model]\nfamily = "gpt"\n')
    lines = [{"event": "start", "objective": "causal", "bytes_per_token": bytes_per_token}]
    lines += [
        {"step": i, "loss": 4 / i, "lr": 0.1, "seconds": i * 2.0, "train_tokens": 100 * i, "mfu": None}
        for i in range(1, n_steps + 1)
    ]
    totals = {"seconds": 17.0, "train_tokens": 100 * n_steps}
    lines += [{"step": n_steps, "nats_per_token": 1.2, "bits_per_byte": 1.5, **totals}]
    text = "".join(json.dumps(line) + "\n" for line in lines) + f'{{"step": {n_steps + 1}, "lo'
    (folder / "log.jsonl").write_text(text)
    return folder


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run")


def curves_of(*paths, **options):
    return read_curves(named_runs(paths), **options)


def test_training_and_validation_loss_come_together_and_in_the_same_unit(run):
    training, validation = curves_of(run)
    assert training.x == list(range(1, 9))
    assert training.y == pytest.approx([4 / i for i in range(1, 9)])
    assert (validation.x, validation.y, validation.is_validation) == ([8], [1.2], True)
    training, validation = curves_of(run, metric="bits_per_byte")
    assert training.y == pytest.approx([4 / i / math.log(2) / 2 for i in range(1, 9)])
    assert validation.y == [1.5]


def test_the_x_axis_is_steps_seconds_or_tokens(run):
    assert curves_of(run, x="seconds")[0].x == [*(2.0 * i for i in range(1, 8)), 17.0]
    assert curves_of(run, x="tokens")[0].x == [100.0 * i for i in range(1, 9)]
    (rate,) = curves_of(run, metric="lr")
    assert rate.y == [0.1] * 8


def test_a_folder_stands_for_its_runs(tmp_path):
    write_run(tmp_path / "sweep" / "lr=0.01")
    write_run(tmp_path / "sweep" / "lr=0.003", bytes_per_token=3.0)
    runs = named_runs([tmp_path / "sweep"])
    assert list(runs) == ["lr=0.003", "lr=0.01"]
    assert len(read_curves(runs)) == 4
    assert loss_unit(runs) == "nats per token"
    assert tokenizers_differ(runs)
    assert list(named_runs([tmp_path / "sweep" / "lr=0.01"])) == [str(tmp_path / "sweep" / "lr=0.01")]


def test_an_ngram_is_a_level(tmp_path, run):
    (tmp_path / "ngram").mkdir()
    (tmp_path / "ngram" / "recipe.toml").write_text('[model]\nfamily = "ngram"\n')
    (tmp_path / "ngram" / "log.jsonl").write_text('{"event": "end", "step": 0, "seconds": 1, "nats_per_token": 2.0}\n')
    curves = curves_of(run, tmp_path / "ngram")
    assert curves[-1].is_level
    assert curves[-1].y == [2.0]
    assert "+" * 60 in render_text(curves)  # across the chart, but for the points that lie on it
    assert plot(curves, tmp_path / "curves.png", metric="loss").is_file()


def test_a_metric_that_was_not_logged_is_refused(run, tmp_path):
    with pytest.raises(InputError, match=r"has logged no 'los'\. Did you mean 'loss'"):
        curves_of(run, metric="los")
    with pytest.raises(InputError, match="Logged: bits_per_byte, loss, lr"):
        curves_of(run, metric="accuracy-of-x")
    with pytest.raises(CheckpointError, match="no run at"):
        curves_of(tmp_path / "nothing")


def test_smoothing_removes_noise_without_a_lag():
    xs = [float(i) for i in range(1, 1001)]
    falling = [5 - x / 250 for x in xs]
    noisy = Curve("a", xs, [y + (0.5 if i % 2 else -0.5) for i, y in enumerate(falling)], is_smoothable=True)
    (smooth,) = (curve.y for curve in smoothed([noisy]))
    assert max(abs(a - b) for a, b in zip(smooth[100:-100], falling[100:-100], strict=True)) < 0.03
    validation = Curve("a", xs, noisy.y, is_validation=True)
    assert smoothed([validation]) == [validation]


@pytest.mark.parametrize("seed", range(20))
def test_a_smoothed_curve_starts_at_its_first_value_and_stays_between_its_neighbours(seed):
    rng = random.Random(seed)
    n, steepness = rng.randint(40, 2000), rng.uniform(0.3, 3)
    values = [0.5 + 5 * (i + 1) ** -steepness * rng.uniform(0.8, 1.2) for i in range(n)]
    (smooth,) = smoothed([Curve("a", [10.0 * i for i in range(n)], values, is_smoothable=True)])
    assert smooth.y[0] == values[0]
    for i, y in enumerate(smooth.y):
        reach = min(max(2, math.ceil(0.03 * n) + 1), (i + i // 8) // 8 + i // 8)
        neighbours = values[max(0, i - reach) : i + reach + 1]
        assert min(neighbours) - 1e-9 <= y <= max(neighbours) + 1e-9


def test_a_steep_start_is_not_smoothed_away():
    values = [0.5 + 5 * math.exp(-i / 12) for i in range(400)]
    (smooth,) = smoothed([Curve("a", [10.0 * i for i in range(400)], values, is_smoothable=True)])
    assert all(abs(a / b - 1) < 0.02 for a, b in zip(smooth.y, values, strict=True))


def test_the_curves_of_a_figure_are_all_smoothed_or_none_is():
    values = [5.0 + (-1) ** i for i in range(60)]
    long, short = (Curve(str(n), [float(i) for i in range(n)], values[:n], is_smoothable=True) for n in (60, 30))
    assert smoothed([short]) == [short]
    assert all(curve.y != values[: len(curve.y)] for curve in smoothed([long, short]))


def drawn(curves, monkeypatch, **options):
    """The axes of the plot."""
    figures = []
    monkeypatch.setattr(plotting, "save_figure", lambda figure, file: figures.append(figure))
    plot(curves, "unused.png", **{"metric": "loss", **options})
    return figures[0].axes[0]


def test_a_run_has_one_colour_and_the_axes_have_units(tmp_path, monkeypatch):
    runs = [write_run(tmp_path / name, n_steps=60) for name in ("one", "two")]
    axes = drawn(curves_of(*runs, x="tokens"), monkeypatch, x="tokens", unit="nats per token")
    styles = [(line.get_color(), line.get_linestyle()) for line in axes.lines]
    assert len({colour for colour, _ in styles}) == 2
    assert [style for _, style in styles] == ["-", "-", "None"] * 2  # as logged, smoothed, a single validation
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("training tokens", "loss in nats per token")
    legend = axes.get_legend().get_window_extent()
    assert legend.x0 >= axes.get_window_extent().x1  # beside the curves, not over them


def test_a_single_validation_is_a_diamond_and_the_legend_shows_what_is_drawn(run, monkeypatch):
    def styles(axes):
        return {
            handle.get_label(): (handle.get_linestyle(), handle.get_marker())
            for handle in axes.get_legend().legend_handles[:2]
        }

    training, validation = curves_of(run)
    axes = drawn([training, validation], monkeypatch)
    assert [(line.get_linestyle(), line.get_marker()) for line in axes.lines] == [("-", "."), ("None", "D")]
    assert styles(axes) == {"training": ("-", "."), "validation": ("None", "D")}
    often = Curve("often", [1.0, 2.0], [3.0, 2.0], is_validation=True)
    assert styles(drawn([training, validation, often], monkeypatch))["validation"] == ("--", "D")


def test_of_many_runs_the_best_are_named(tmp_path, monkeypatch):
    curves = [Curve(f"run-{i}", [1.0, 2.0], [9.0, float(30 - i)]) for i in range(30)]
    texts = [text.get_text() for text in drawn(curves, monkeypatch).get_legend().get_texts()]
    assert texts == [*(f"run-{i}" for i in range(29, 17, -1)), "and 18 more runs"]
    text = render_text(curves)
    assert "run-29: last 1.0000" in text
    assert "and 22 more" in text


def test_plot_writes_a_png(run, tmp_path):
    file = plot(curves_of(run), tmp_path / "curves.png", metric="loss")
    assert file.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_error_says_how_to_install_it(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"plots need matplotlib: pip install .*\[plots\]"):
        plot(curves_of(run), tmp_path / "curves.png", metric="loss")


def test_text_has_a_marker_at_every_value():
    text = render_text([Curve("falling", [0.0, 1.0, 2.0], [3.0, 2.0, 1.0])], width=21, height=5)
    rows = [line.partition("│")[2] for line in text.splitlines()[:5]]
    assert [row.find("•") for row in rows] == [0, -1, 10, -1, 20]
    assert "falling: last 1.0000, lowest 1.0000" in text
    assert render_text([Curve("flat", [1.0], [2.0])])  # a single point


def test_levels_lie_below_curves():
    curves = [Curve("a", [0.0, 1.0], [3.0, 1.0]), Curve("level", [], [1.0])]
    rows = [line.partition("│")[2] for line in render_text(curves, width=8, height=3).splitlines()[:3]]
    assert rows == ["•", "", "×××××××•"]


def test_text_has_a_logarithmic_axis_too():
    text = render_text([Curve("a", [0.26422, 1.0, 2.0], [100.0, 10.0, 1.0])], width=21, height=3, log=True)
    rows = [line.partition("│") for line in text.splitlines()[:3]]
    assert [row.find("•") for _, _, row in rows] == [0, 8, 20]
    assert [float(label) for label, _, _ in rows[::2]] == [100, 1]
    assert text.splitlines()[4].split() == ["0.264", "2"]
    with pytest.raises(InputError, match="a has the value 0, and a logarithmic axis shows only values above 0"):
        check_log_scale([Curve("a", [1.0], [0.0])])

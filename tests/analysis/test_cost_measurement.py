"""Measured times beside lower bounds. Times depend on the machine: rows, sizes and the number of calls do not."""

import pytest
import torch

import headway
from headway.analysis import cost_measurement, plotting
from headway.analysis.cost_measurement import (
    GENERATED_TOKENS,
    GenerationPoint,
    MeasuredRow,
    RateMeter,
    check_measurable,
    median_seconds,
    time_generation,
)
from headway.analysis.cost_plots import plot_generation
from headway.config import model_config
from headway.costs import cost_report
from headway.errors import InputError

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def bandwidths(monkeypatch):
    """What the measurements of the bandwidth give, one after the other; the last one again and again."""
    values = [1e11]
    monkeypatch.setattr(
        cost_measurement, "measure_bandwidth", lambda *_: values.pop(0) if len(values) > 1 else values[0]
    )
    return values


def meter(report):
    return RateMeter(report, CPU, flops_per_second=1e12)


def test_one_model_serves_many_lengths_and_batch_sizes():
    config = model_config("gpt-tiny", {"context": 64 + GENERATED_TOKENS})
    model = headway.create(config).eval()
    for batch_size, seq_len in ((1, 8), (3, 8), (2, 64)):
        report = cost_report(config, batch_size=batch_size, seq_len=seq_len)
        prefill, decode = time_generation(report, model, meter(report))
        assert (prefill.name, decode.name) == ("prefill", "decode step")
        flops = (prefill.counted.total_flops, decode.counted.total_flops)
        assert flops == (report.prefill.total_flops, report.decode.total_flops)
        assert min(prefill.seconds, decode.seconds) > 0


def test_a_prompt_that_fills_the_context_is_shortened_and_so_are_its_bounds():
    report = cost_report(model_config("gpt-tiny"), seq_len=128)
    prefill, _ = time_generation(report, headway.create(report.config).eval(), meter(report))
    assert prefill.counted.total_flops == report.count("prefill", 128 - GENERATED_TOKENS).total_flops


def test_without_space_for_steps_nothing_is_measured():
    for name, settings in (("gpt-tiny", {"context": 6}), ("bert-mini", {})):
        report = cost_report(model_config(name, settings))
        assert time_generation(report, headway.create(report.config).eval(), meter(report)) == []


def test_the_logits_of_a_prefill_are_those_of_the_last_token(monkeypatch):
    report = cost_report(model_config("gpt-tiny"), seq_len=40)
    model = headway.create(report.config).eval()
    rows, unembed = set(), type(model).unembed
    monkeypatch.setattr(type(model), "unembed", lambda self, hidden: rows.add(hidden.shape[1]) or unembed(self, hidden))
    time_generation(report, model, meter(report))
    assert rows == {1}


def test_bounds_use_the_highest_bandwidth_measured_around_the_passes(bandwidths):
    bandwidths[:] = [1e9, 3e9, 2e9]  # at first, before the decode steps, after them
    report = cost_report(model_config("gpt-tiny"), seq_len=16)
    measured = meter(report)
    _, decode = time_generation(report, headway.create(report.config).eval(), measured)
    assert (measured.rates.bandwidth, bandwidths) == (3e9, [2e9])
    n_bytes = 4 * (report.decode.weight_elements + report.decode.cache_elements)
    assert decode.row(report, measured.rates).predicted == pytest.approx(n_bytes / 3e9, rel=0.01)


@pytest.mark.parametrize("name", ["gpt-tiny", "bert-mini", "transformer"])
def test_a_text_beyond_the_table_of_positions_is_refused_before_anything_runs(name):
    settings = {"positions": "learned", "context": 64}
    check_measurable(cost_report(model_config(name, settings), name, seq_len=64), CPU)
    with pytest.raises(InputError, match=rf"{name}: 65 tokens exceed the context of 64.* --set context=65"):
        check_measurable(cost_report(model_config(name, settings), name, seq_len=65), CPU)
    rotary = model_config("gpt-tiny", {"positions": "rotary", "context": 64})
    check_measurable(cost_report(rotary, seq_len=65), CPU)


@pytest.mark.parametrize(
    ("seconds", "n_calls"),
    [(0.01, 1 + cost_measurement.MAX_ROUNDS), (0.3, 1 + 4), (0.9, 1 + 3), (1.5, 3), (2.5, 2), (9.0, 1)],
)
def test_slow_passes_are_timed_less_often(seconds, n_calls, monkeypatch):
    """1 warm-up and at least 3 rounds; fewer where all of them take longer than `SLOW_SECONDS`."""
    clock, calls = [0.0], []
    monkeypatch.setattr(cost_measurement.time, "perf_counter", lambda: clock[0])

    def run():
        calls.append(None)
        clock[0] += seconds

    assert median_seconds(run, CPU) == pytest.approx(seconds)
    assert len(calls) == n_calls


def test_setting_up_a_pass_is_not_timed(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(cost_measurement.time, "perf_counter", lambda: clock[0])

    def take(seconds):
        clock[0] += seconds

    assert median_seconds(lambda: take(0.5), CPU, before=lambda: take(7.0)) == pytest.approx(0.5)


# ── the picture ───────────────────────────────────────────────────────────────────────────────────────────────────


def point(name, batch_size, seq_len, error=""):
    seconds = 1e-4 * batch_size * seq_len
    rows = [MeasuredRow("prefill", seconds, 2 * seconds, 1), MeasuredRow("decode step", 1e-3, 3e-3, 1)]
    return GenerationPoint(name, batch_size, seq_len, 10**9, [] if error else rows, error=error)


def test_generation_is_drawn_in_a_panel_per_model_with_a_colour_per_batch_size(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    figures = []
    monkeypatch.setattr(plotting, "save_figure", lambda figure, file: figures.append(figure))
    points = [point(name, size, n) for name in ("a", "b") for size in (1, 8) for n in (64, 256, 1024)]
    points.append(point("b", 64, 1024, error="needs 9 GB"))
    plot_generation(points, tmp_path / "costs.png", title="Costs")
    left, right = figures[0].axes
    assert (left.get_title(), right.get_title()) == ("a", "b")
    assert {axes.get_xscale() + axes.get_yscale() for axes in (left, right)} == {"loglog"}
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == [
        "batch 1", "batch 8", "prefill", "decode step", "lower bound"
    ]  # fmt: skip
    lines = [line for line in right.lines if len(line.get_xdata())]
    assert len(lines) == 2 * 2 * 2  # batch sizes, kinds, measured and bound
    assert len({line.get_color() for line in lines}) == 2
    measured = [line for line in lines if line.get_linestyle() == "-"]
    assert measured[0].get_xydata().tolist() == [[64, pytest.approx(0.0128)], [256, pytest.approx(0.0512)],
                                                [1024, pytest.approx(0.2048)]]  # fmt: skip


def test_nothing_measured_is_not_drawn(tmp_path):
    with pytest.raises(InputError, match="nothing to plot"):
        plot_generation([point("a", 64, 8192, error="needs 9 GB")], tmp_path / "costs.png", title="Costs")

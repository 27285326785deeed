"""The roofline: which operations share a marker, and where their names stand."""

from string import ascii_uppercase as LETTERS

import pytest

from headway.analysis.cost_plots import _clusters, plot_costs
from headway.config import model_config
from headway.costs import cost_report
from headway.costs.devices import find_device
from headway.costs.roofline import Rates, intensity


def clusters(name, **sizes):
    report = cost_report(model_config(name), device=find_device("h100"), **sizes)
    return report, _clusters(report.forward, report.bytes_per_element, report.rates.ridge, iter(LETTERS))


@pytest.mark.parametrize("name", ["gpt2", "transformer", "bahdanau", "lstm", "bert", "seq2seq", "nplm"])
def test_every_operation_is_on_the_roofline_once(name):
    report, groups = clusters(name, seq_len=16, source_len=4000)
    names = [name for group in groups for name in group.names]
    assert len(names) == len(set(names))
    for operation in report.forward.operations:
        if operation.flops:
            x = intensity(operation, report.forward, report.bytes_per_element)
            near = [group for group in groups if group.intensity / 2 <= x <= 2 * group.intensity]
            assert any(label.endswith(operation.name) for group in near for label in group.names), operation.name


def test_encoder_and_decoder_are_told_apart_where_they_differ():
    _, groups = clusters("transformer", seq_len=16, source_len=4000)
    names = [name for group in groups for name in group.names]
    assert {"encoder scores", "decoder scores", "cross scores"} <= set(names)
    _, groups = clusters("transformer", seq_len=512)
    assert "scores" in [name for group in groups for name in group.names]


@pytest.mark.parametrize("ridge", [1.0, 30.0, 285.0, 1e4])
def test_no_marker_stands_for_operations_on_both_sides_of_the_ridge(ridge):
    report = cost_report(model_config("gpt2"), seq_len=1024)
    for group in _clusters(report.forward, 2, ridge, iter(LETTERS)):
        members = [o for o in report.forward.operations if o.name in group.names]
        assert len({intensity(o, report.forward, 2) < ridge for o in members}) == 1


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("gpt2", {}), ("transformer", {"source_len": 3000}), ("gpt-tiny", {"seq_len": 2**31 - 1}), ("lstm", {})],
)
def test_it_can_be_drawn_at_any_size(name, sizes, tmp_path):
    pytest.importorskip("matplotlib")
    report = cost_report(model_config(name), device=find_device("m1"), **sizes)
    assert plot_costs(report, Rates(1e12, 1e11, "a device"), tmp_path / "costs.png").stat().st_size > 10_000

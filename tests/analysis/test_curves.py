"""Training curves are read from logs, plotted, and rendered as text."""

import json
import sys

import pytest

from headway.analysis import plotting
from headway.analysis.curves import Curve, plot, read_curves, render_text
from headway.errors import CheckpointError, InputError


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    lines = [{"event": "start", "seed": 1}]
    lines += [{"step": i, "loss": 4 / i, "lr": 0.1, "seconds": i * 2.0, "mfu": None} for i in range(1, 9)]
    lines += [{"step": 8, "bits_per_byte": 1.5, "seconds": 17.0}]
    text = (
        "".join(json.dumps(line) + "\n" for line in lines) + '{"step": 9, "lo'
    )  # the process was killed while writing
    (folder / "log.jsonl").write_text(text)
    return folder


def test_curves_hold_the_logged_values(run):
    (curve,) = read_curves([run])
    assert curve.x == list(range(1, 9))
    assert curve.y == pytest.approx([4 / i for i in range(1, 9)])
    assert read_curves([run], "loss", "seconds")[0].x == [2.0 * i for i in range(1, 9)]
    assert read_curves([run], "bits_per_byte")[0].y == [1.5]


def test_a_metric_that_was_not_logged_is_refused(run, tmp_path):
    with pytest.raises(InputError, match=r"has logged no 'los'\. Did you mean 'loss'"):
        read_curves([run], "los")
    with pytest.raises(InputError, match="It has: bits_per_byte, loss, lr"):
        read_curves([run], "accuracy-of-x")
    with pytest.raises(CheckpointError, match=r"is not a run: it has no log\.jsonl"):
        read_curves([tmp_path / "nothing"])


def test_plot_writes_a_png(run, tmp_path):
    file = plot(read_curves([run, run]), tmp_path / "curves.png", metric="loss")
    assert file.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"plots need matplotlib: pip install 'headway\[plots\]'"):
        plotting.pyplot()


def test_text_has_a_marker_at_every_value():
    text = render_text([Curve("falling", [0.0, 1.0, 2.0], [3.0, 2.0, 1.0])], width=21, height=5)
    rows = [line.partition("│")[2] for line in text.splitlines()[:5]]
    assert [row.find("•") for row in rows] == [0, -1, 10, -1, 20]
    assert "falling: last 1.0000, lowest 1.0000" in text
    assert render_text([Curve("flat", [1.0], [2.0])])  # a single point

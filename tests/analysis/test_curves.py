"""Curves of runs: read from logs as they are, drawn, and written in characters."""

import json

import pytest

from headway.analysis.curves import Curve, as_text, curves, draw
from headway.errors import CheckpointError, InputError


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    lines = [{"event": "start", "seed": 1}]
    lines += [{"step": i, "loss": 4 / i, "lr": 0.1, "seconds": i * 2.0, "mfu": None} for i in range(1, 9)]
    lines += [{"step": 8, "bits_per_byte": 1.5, "seconds": 17.0}]
    text = "".join(json.dumps(line) + "\n" for line in lines) + '{"step": 9, "lo'  # killed while writing
    (folder / "log.jsonl").write_text(text)
    return folder


def test_a_curve_is_what_was_logged(run):
    (curve,) = curves([run])
    assert curve.x == list(range(1, 9))
    assert curve.y == pytest.approx([4 / i for i in range(1, 9)])
    assert curves([run], "loss", "seconds")[0].x == [2.0 * i for i in range(1, 9)]
    assert curves([run], "bits_per_byte")[0].y == [1.5]


def test_what_was_not_logged_is_refused_with_what_was(run, tmp_path):
    with pytest.raises(InputError, match=r"has logged no 'los'\. Did you mean 'loss'"):
        curves([run], "los")
    with pytest.raises(InputError, match="It has: bits_per_byte, loss, lr"):
        curves([run], "accuracy-of-x")
    with pytest.raises(CheckpointError, match=r"is no run: it has no log\.jsonl"):
        curves([tmp_path / "nothing"])


def test_a_picture_is_drawn(run, tmp_path):
    file = draw(curves([run, run]), tmp_path / "curves.png", quantity="loss")
    assert file.read_bytes().startswith(b"\x89PNG")


def test_characters_stand_where_the_values_are():
    text = as_text([Curve("falling", [0.0, 1.0, 2.0], [3.0, 2.0, 1.0])], width=21, height=5)
    rows = [line.partition("│")[2] for line in text.splitlines()[:5]]
    assert [row.find("•") for row in rows] == [0, -1, 10, -1, 20]
    assert "falling: last 1.0000, least 1.0000" in text
    assert as_text([Curve("flat", [1.0], [2.0])])  # one point is a curve too

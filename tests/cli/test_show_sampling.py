"""headway show tradeoff, and show sampling at several temperatures."""

import json

import pytest

from tests.cli.running import run


@pytest.fixture(autouse=True)
def _in_workspace(workspace, monkeypatch):
    monkeypatch.chdir(workspace)


def test_a_tradeoff_is_a_table_a_picture_and_json(capsys, tmp_path):
    command = "show tradeoff runs/words 'The cat' --temperature 0.5,1 --top-p 0.9 -n 3 --max-new-tokens 6 --seed 1"
    code, out, _ = run(f"{command} --out {tmp_path}/t.svg --theme dark", capsys)
    assert code == 0
    assert out.startswith("3 texts per setting after 'The cat'; nats per token under the model itself")
    assert (tmp_path / "t.svg").stat().st_size > 0
    first, second = (json.loads(run(f"{command} --json", capsys)[1]) for _ in range(2))
    assert first == second
    assert [(p["parameter"], p["value"]) for p in first["points"]] == [
        ("temperature", 0.5), ("temperature", 1.0), ("top_p", 0.9)
    ]  # fmt: skip
    assert all(len(point["texts"]) == 3 for point in first["points"])


def test_a_judge_with_another_tokenizer_gives_bits_per_byte(capsys):
    command = "show tradeoff runs/mine The --top-k 5 -n 2 --max-new-tokens 4 --judge runs/words"
    assert "bits per byte under runs/words" in run(command, capsys)[1]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("show tradeoff runs/demo The --temperature hot", "'hot' is not a list of numbers such as 0.5,1"),
        ("show tradeoff runs/demo The -n 1", "1 is not at least 2"),
        ("show tradeoff runs/demo The --top-p 1.5 -n 2", "top_p"),
        ("show tradeoff runs/demo The --top-k 2.5 -n 2", "top_k"),
        ("show tradeoff runs/reverse abc -n 2", "headway translate"),
        ("show sampling --temperatures 1,x", "'1,x' is not a list of numbers"),
        ("show sampling --temperatures -1", "must be at least 0; 0 is greedy"),
    ],
)
def test_what_cannot_be_compared_is_told(command, message, capsys):
    code, out, err = run(command, capsys)
    assert code in (1, 2)
    assert out == ""
    assert message in " ".join(err.split())


def test_several_temperatures_of_given_logits(capsys):
    code, out, _ = run("show sampling --logits 3,1,-1 --temperatures 0.2,0.5,1,2", capsys)
    assert code == 0
    assert out.splitlines()[1].split() == ["3", "0.86681", "0.99995", "0.98169", "0.86681", "0.66524"]
    shown = json.loads(run("show sampling runs/demo The --temperatures 0.5,2 --top 3 --json", capsys)[1])
    assert shown["stages"] == ["model", "T=0.5", "T=2"]
    assert len(shown["tokens"]) == 3

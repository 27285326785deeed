"""headway show attention --steps, --token and --scores; headway show masks and scaling."""

import json
import re

import pytest

from tests.cli.running import run


@pytest.fixture(autouse=True)
def _in_workspace(workspace, monkeypatch):
    monkeypatch.chdir(workspace)
    monkeypatch.setenv("COLUMNS", "100")


def test_scores_without_a_model_give_the_lectures_weights(capsys):
    code, out, _ = run("show attention --scores 112,96 --d-head 64", capsys)
    assert code == 0
    assert [line.split()[-2:] for line in out.splitlines()] == [["112", "96"], ["14", "12"], ["0.88", "0.12"]]
    values = json.loads(run("show attention --scores 112,96 --d-head 64 --json", capsys)[1])
    assert values["scaled"] == [14, 12]
    assert values["weights"] == pytest.approx([0.880797, 0.119203], abs=1e-6)
    assert run("show attention --scores -2,0.5,-inf --d-head 4", capsys)[1].splitlines()[2].split()[1:] == [
        "0.22", "0.78", "0.00",
    ]  # fmt: skip


WRONG = [
    ("--scores a,b --d-head 4", 2, "'a,b' is not a list of numbers such as 112,96"),
    ("--scores '' --d-head 4", 2, "'' is not a list of numbers"),
    ("--scores 1,nan --d-head 4", 2, "'1,nan' is not a list of numbers"),
    ("--scores 1,inf --d-head 4", 2, "'1,inf' is not a list of numbers"),
    ("--scores 1,2", 2, "scores are divided by √d: give the width of q and k"),
    ("--scores 1,2 --d-head 0", 1, "d_head=0: the width of queries and keys is at least 1"),
    ("runs/demo The --scores 1,2 --d-head 4", 2, "a model computes its own scores: leave MODEL or --scores out"),
    ("", 2, "give a model and a text, or --scores 112,96 --d-head 64"),
    ("runs/demo", 2, "give the text, too"),
    ("runs/demo ' '", 2, "an empty text has no tokens to attend to"),
    ("runs/demo The --steps --layer 7", 1, "layer 7 does not exist: the only one is layer 0"),
    ("runs/demo The --steps --head 2", 1, "head 2 does not exist: choose 0 to 1"),
    ("runs/demo The --steps --side cross", 1, "has no cross attention; it has: decoder"),
    ("runs/words The --steps", 1, "has no attention layers"),
    ("runs/bert 'The cat sat.' --token dog", 1, "'dog' is not a word of the text. Its words: The, cat, sat, ."),
]


@pytest.mark.parametrize(("words", "exit_code", "message"), WRONG, ids=[words for words, *_ in WRONG])
def test_wrong_input_is_answered_with_the_way_out(words, exit_code, message, capsys):
    code, out, err = run(f"show attention {words}", capsys)
    assert (code, out) == (exit_code, "")
    assert message in " ".join(err.split())


@pytest.mark.parametrize("options", ["runs/demo 'The cat'", "runs/bert 'The cat.'", "runs/reverse abc --side encoder"])
def test_steps_are_tables_of_which_every_row_of_weights_sums_to_1(options, capsys):
    code, out, _ = run(f"show attention {options} --steps --head 1", capsys)
    assert code == 0
    titles = re.findall(r"^(\S.*?)  \(\d+ × \d+\)", out, re.MULTILINE)
    assert [title for title in titles if "Kᵀ /" not in title] == [
        "X", "Q", "K", "V", "Q Kᵀ", "A = softmax", "A V", "concat", "concat · W_O",
    ]  # fmt: skip
    assert ("−∞" in out) == ("demo" in options)
    weights = out[out.index("A = softmax") : out.index("A V")].strip().splitlines()[2:]
    assert {line.split()[-1] for line in weights} == {"1.00"}
    everything = json.loads(run(f"show attention {options} --steps --head 1 --json", capsys)[1])
    assert len(everything["X"][0]) == 32  # nothing is cut
    assert everything["rows"] == everything["columns"]
    assert all(sum(row) == pytest.approx(1) for row in everything["weights"])


def test_steps_and_words_are_drawn_in_both_themes(tmp_path, capsys):
    for options in ("--steps", "--token cat"):
        for theme in ("light", "dark"):
            file = tmp_path / f"{options.split()[0]}-{theme}.png"
            code, out, _ = run(f"show attention runs/demo 'The cat' {options} --theme {theme} --out {file}", capsys)
            assert code == 0
            assert out.endswith(f"plot: {file}\n")
            assert file.read_bytes().startswith(b"\x89PNG")


def test_a_word_is_ranked_with_all_its_tokens(capsys):
    code, out, _ = run("show attention runs/demo 'The cat sat' --token sat", capsys)
    assert code == 0
    assert out.startswith("“sat”, tokens ")
    ranked = json.loads(run("show attention runs/demo 'The cat sat' --token sat --json", capsys)[1])["ranked"]
    assert {entry["word"] for entry in ranked} == {"The", "cat", "sat"}
    assert sum(entry["weight"] for entry in ranked) == pytest.approx(1, abs=1e-6)


def test_masks_are_printed_as_squares_and_as_numbers(capsys):
    code, out, _ = run("show masks --kind causal --size 3", capsys)
    assert code == 0
    assert out.splitlines()[-3:] == ["  x1  ■  ·  ·", "  x2  ■  ■  ·", "  x3  ■  ■  ■"]
    assert run("show masks --kind causal --size 2 --numbers", capsys)[1].splitlines()[-2:] == [
        "  x1  0 −∞",
        "  x2  0  0",
    ]
    every = json.loads(run("show masks --json", capsys)[1])["masks"]
    assert [mask["kind"] for mask in every] == ["causal", "padding", "cross", "document", "sliding"]
    code, out, err = run("show masks --kind casual", capsys)
    assert (code, out) == (1, "")
    assert "Did you mean 'causal'?" in err


def test_scaling_prints_the_root_of_the_width(capsys):
    code, out, _ = run("show scaling --d-head 4,64", capsys)
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[-2:]] == [["4", "2"], ["64", "8"]]
    assert run("show scaling --d-head 4.5", capsys)[0] == 2
    assert run("show scaling --d-head x", capsys)[0] == 2
    assert run("show scaling --sigma 0", capsys)[0] == 1

"""`headway show` positions, lens, neighbors, vectors and gates: JSON for scripts, and answers to wrong input."""

import json

import pytest

from headway.analysis.token_labels import visible
from tests.cli.running import run


@pytest.fixture(autouse=True)
def _in_workspace(workspace, monkeypatch):
    monkeypatch.chdir(workspace)


def shown(command, capsys):
    code, out, err = run(f"show {command} --json", capsys)
    assert code == 0, err
    return json.loads(out)


def test_positions_have_the_numbers_of_the_lecture(capsys):
    code = shown("positions", capsys)
    assert (len(code["table"]), len(code["table"][0])) == (51, 130)
    assert round(code["least_distance"]["distance"], 3) == 1.966
    assert code["frequencies"] == sorted(code["frequencies"], reverse=True)
    assert code["similarity_by_distance"][0]["mean"] == pytest.approx(65)
    assert shown("positions runs/demo", capsys)["kind"] == "rotary"
    code, _, err = run("show positions --kind learned", capsys)
    assert code == 0
    assert "note: these are the random initial values of learned positions" in err


def test_the_lens_ends_in_what_the_model_generates(capsys):
    lens = shown("lens runs/demo 'The statement is' --top 2", capsys)
    assert [layer["layer"] for layer in lens["layers"]] == ["embedding", "layer 0"]
    assert len(lens["tokens"]) == len(lens["layers"][-1]["top"])
    (token,) = lens["layers"][-1]["top"][-1][:1]
    written = run("generate runs/demo 'The statement is' --greedy --max-new-tokens 1 --json", capsys)[1]
    assert token["token"] == visible(json.loads(written)["texts"][0]["text"])


def test_a_text_past_the_training_context_is_shown_with_a_note(capsys):
    code, _, err = run(f"show lens runs/demo '{'The statement is used. ' * 20}' --json", capsys)
    assert code == 0
    assert "past the training context of 64" in err


def test_neighbours_are_in_two_lists_or_one(capsys):
    (both,) = shown("neighbors runs/demo the --top 3", capsys)["tokens"]
    assert (len(both["by_cosine"]), len(both["by_dot"])) == (3, 3)
    (one,) = shown("neighbors runs/demo the --top 3 --by dot", capsys)["tokens"]
    assert one["by_dot"] == both["by_dot"]
    assert "by_cosine" not in one


def test_vectors_and_gates_have_a_row_per_word_and_token(capsys):
    vectors = shown("vectors runs/reverse a b c", capsys)
    assert [len(view["coordinates"]) for view in vectors["views"]] == [3, 3, 3]
    gates = shown("gates runs/lstm 'The cat'", capsys)
    assert gates["tokens"] == list("The·cat")
    assert {name: len(values) for name, values in gates["gates"].items()} == {"input": 7, "forget": 7, "output": 7}
    assert len(gates["state_norm"]) == 7


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("positions --kind sinusodal --width 8", 2, "no positions named 'sinusodal'; choose from sinusoidal, learned"),
        ("positions --length 1", 2, "length=1 must be between 2 and 2,048"),
        ("positions runs/words", 1, "a 2-gram has no position encoding: use a gpt, bert or transformer"),
        ("lens runs/words 'The cat'", 1, "no logit lens for a 2-gram"),
        ("lens runs/demo 'The cat' --position 99", 1, "position 99 does not exist: choose 0 to "),
        ("neighbors runs/words the", 1, "a 2-gram has no embedding: use a model that has one"),
        ("neighbors runs/words-only catt", 1, "Did you mean 'cat'?"),
        ("vectors runs/demo the", 1, "1 word: pass at least two different words"),
        ("vectors runs/demo the a --head 7", 1, "head 7 does not exist: choose 0 to 1"),
        ("gates runs/demo 'The cat'", 1, "a GPT has no gates: use an lstm"),
        ("gates runs/lstm 'The cat' --unit 99", 1, "unit 99 does not exist: choose 0 to 15"),
    ],
)
def test_wrong_input_is_answered(command, code, message, capsys):
    exit_code, out, err = run(f"show {command}", capsys)
    assert (exit_code, out) == (code, "")
    assert message in " ".join(err.split())

"""headway fill, and headway eval of a masked language model."""

import json
import shutil

import pytest

from tests.cli.running import run


@pytest.fixture(autouse=True)
def _in_a_copy_of_the_workspace(workspace, tmp_path, monkeypatch):
    shutil.copytree(workspace / "runs" / "bert", tmp_path / "runs" / "bert")
    shutil.copy(workspace / "masked.txt", tmp_path)
    shutil.copytree(workspace / "runs" / "demo", tmp_path / "runs" / "demo")
    monkeypatch.chdir(tmp_path)


def test_candidates_have_bars_and_masks_have_numbers(capsys):
    code, out, _ = run("fill runs/bert 'The [MASK] sat.' 'On [MASK] [MASK].' --top 3", capsys)
    assert code == 0
    first, second = out.split("\n\n")
    assert first.splitlines()[0] == "The [MASK] sat."
    assert len(first.splitlines()) == 4
    assert all("%" in line for line in first.splitlines()[1:])
    assert [line for line in second.splitlines() if line.startswith("mask")] == ["mask 1", "mask 2"]
    assert len(second.strip().splitlines()) == 1 + 2 * (1 + 3)


def test_json_and_files_hold_the_same_results_in_the_order_of_the_texts(capsys):
    code, out, _ = run("fill runs/bert --in masked.txt --top 2 --json", capsys)
    assert code == 0
    printed = json.loads(out)
    texts = printed["texts"]
    assert [text["text"] for text in texts] == ["The [MASK] sat.", "On the [MASK] [MASK]."]
    assert [[mask["start"] for mask in text["masks"]] for text in texts] == [[4], [7, 14]]
    for text in texts:
        for mask in text["masks"]:
            assert len(mask["candidates"]) == 2
            assert set(mask["candidates"][0]) == {"token", "probability", "text"}
            assert mask["candidates"][0]["probability"] >= mask["candidates"][1]["probability"]
    code, out, err = run("fill runs/bert --in masked.txt --top 2 --out filled.jsonl", capsys)
    assert (code, out) == (0, "")
    assert "2 texts in " in err
    with open("filled.jsonl") as file:
        assert [json.loads(line) for line in file] == texts


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("fill runs/bert 'The cat'", 1, "has no [MASK]: write [MASK] where a token is to be filled in"),
        ("fill runs/demo 'The [MASK]'", 1, "fill needs an encoder with a masked-LM head, and this is a GPT"),
        ("fill runs/bert '[MASK]' --top 0", 2, "0 is not at least 1"),
        ("fill runs/bert '[MASK]' --in masked.txt", 2, "cannot be combined with texts on the command line"),
        ("fill runs/bert --in masked.txt --out masked.txt", 2, "masked.txt is the input file"),
        ("generate runs/bert 'The'", 1, "predicts masked tokens (`headway fill` uses it)"),
    ],
)
def test_mistakes_get_an_exit_code_and_a_way_out(command, code, message, capsys):
    result, _, err = run(command, capsys)
    assert (result, message in " ".join(err.split())) == (code, True), err


def test_a_masked_lm_is_scored_on_masked_tokens_with_its_run_and_without(capsys):
    code, out, err = run("eval runs/bert --json", capsys)
    assert code == 0, err
    assert {"accuracy", "nats_per_target"} <= json.loads(out).keys()
    assert run("convert runs/bert model", capsys)[0] == 0
    code, out, err = run("eval model --text 'The cat sat on the mat. The cat sat on the mat.' --json", capsys)
    assert code == 0, err
    scores = json.loads(out)
    assert 0 <= scores["accuracy"] <= 1
    assert scores["n_targets"] >= 1

"""headway embed: vectors in a terminal, in .npy and JSON lines, and texts ranked by similarity."""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import headway
from headway.prediction.embed import most_similar
from tests.cli.running import run
from tests.cli.test_generate import set_stdin

LINES = ["The cat sat.", "", "The dog sat on the roof.", "  ", "mat mat mat", "The cat sat."]


@pytest.fixture(autouse=True)
def _in_a_copy_of_the_workspace(workspace, tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    for name in ("labels", "demo"):
        (tmp_path / "runs" / name).symlink_to(workspace / "runs" / name)
    (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in LINES))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def model(workspace):
    return headway.load(workspace / "runs" / "labels", device="cpu")


def test_row_i_of_the_array_is_line_i_of_the_file_blank_lines_too(model, capsys):
    code, out, err = run("embed runs/labels --in lines.txt --out vectors.npy", capsys)
    assert (code, out) == (0, "")
    assert re.search(r"6 × 32 numbers in \d+\.\d s: vectors\.npy", err)
    vectors = np.load("vectors.npy", allow_pickle=False)
    assert (vectors.shape, vectors.dtype, vectors.flags.c_contiguous) == ((6, 32), np.float32, True)
    for line, row in zip(LINES, vectors, strict=True):
        np.testing.assert_allclose(row, headway.embed(model, [line])[0], atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls", "pooler"])
@pytest.mark.parametrize("flag", ["--normalize", "--no-normalize"])
def test_json_and_json_lines_and_arrays_hold_the_same_embeddings(model, capsys, pooling, flag):
    options = f"--in lines.txt --pooling {pooling} {flag} --batch-size 2"
    printed = json.loads(run(f"embed runs/labels {options} --json", capsys)[1])
    normalize = flag == "--normalize"
    assert (printed["pooling"], printed["normalize"], printed["dimension"]) == (pooling, normalize, 32)
    assert [text["text"] for text in printed["texts"]] == LINES
    expected = headway.embed(model, LINES, pooling=pooling, normalize=normalize, batch_size=2)
    np.testing.assert_allclose([text["embedding"] for text in printed["texts"]], expected, atol=1e-6)
    assert run(f"embed runs/labels {options} --out v.jsonl", capsys)[0] == 0
    assert [json.loads(line) for line in Path("v.jsonl").read_text().splitlines()] == printed["texts"]
    assert run(f"embed runs/labels {options} --out v.npy", capsys)[0] == 0
    assert np.load("v.npy").tolist() == [text["embedding"] for text in printed["texts"]]


def test_a_terminal_shows_the_first_numbers_of_each_text(model, capsys, monkeypatch):
    code, out, err = run(f"embed runs/labels 'The  cat' '{'mat ' * 30}'", capsys)
    assert code == 0
    assert "and 26 more numbers per text: --out FILE.npy writes all, --json prints all" in err
    first, second = out.splitlines()
    assert first.startswith("The cat ")
    assert second[:40] == ("mat " * 30)[:39] + "…"
    numbers = [float(number) for number in first.split()[2:-1]]
    assert numbers == pytest.approx(headway.embed(model, ["The  cat"])[0, :6].tolist(), abs=1e-4)
    set_stdin(b"cat\n\nmat\n", monkeypatch)
    assert len(run("embed runs/labels", capsys)[1].splitlines()) == 3  # the blank line has a vector too


def test_similar_texts_are_ranked_by_their_cosine_without_blank_ones(model, capsys):
    code, out, _ = run("embed runs/labels --similar 'The cat' --in lines.txt --top 3 --json", capsys)
    assert code == 0
    result = json.loads(out)
    kept = [number for number, line in enumerate(LINES) if line.strip()]
    vectors = headway.embed(model, [LINES[number] for number in kept])
    expected = most_similar(headway.embed(model, ["The cat"])[0], vectors, 3)
    assert result["query"] == "The cat"
    assert [text["number"] for text in result["texts"]] == [kept[neighbour.number] + 1 for neighbour in expected]
    assert [text["text"] for text in result["texts"]] == [LINES[text["number"] - 1] for text in result["texts"]]
    similarities = [text["similarity"] for text in result["texts"]]
    assert similarities == pytest.approx([neighbour.similarity for neighbour in expected], abs=1e-5)
    assert similarities == sorted(similarities, reverse=True)
    lines = run("embed runs/labels --similar 'The cat' --in lines.txt", capsys)[1].splitlines()
    assert len(lines) == len(kept)
    assert re.fullmatch(r" *-?\d\.\d{3}  █* +The cat sat\.", lines[0])


def test_the_text_itself_is_the_most_similar_one(capsys):
    out = run("embed runs/labels --similar 'mat mat mat' --in lines.txt --top 1 --json", capsys)[1]
    [best] = json.loads(out)["texts"]
    assert (best["number"], best["similarity"]) == (5, pytest.approx(1, abs=1e-5))


def test_long_texts_are_shortened_to_the_terminal_but_not_in_a_pipe(capsys, monkeypatch):
    command = f"embed runs/labels --similar cat '{'The cat sat. ' * 20}'"
    assert len(run(command, capsys)[1]) > 250
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True, raising=False)
    [line] = run(command, capsys)[1].splitlines()
    assert len(line) == 80
    assert line.endswith("…")


def test_fields_of_json_lines_are_kept(capsys):
    Path("in.jsonl").write_text('{"text": "cat", "number": 9, "id": "x"}\n\n{"text": "", "similarity": "high"}\n')
    [text] = json.loads(run("embed runs/labels --similar cat --in in.jsonl --json", capsys)[1])["texts"]
    assert (text["number"], text["input_number"], text["id"]) == (1, 9, "x")
    assert run("embed runs/labels --in in.jsonl --out out.jsonl", capsys)[0] == 0
    first, second = map(json.loads, Path("out.jsonl").read_text().splitlines())
    assert (first["id"], second["similarity"], len(second["embedding"])) == ("x", "high", 32)


def test_texts_longer_than_the_context_are_cut_off_with_a_note(capsys):
    Path("long.txt").write_text("cat " * 600 + "\nmat\n")
    code, _, err = run("embed runs/labels --in long.txt --out v.npy", capsys)
    assert code == 0
    assert "note: 1 of 2 texts exceeds 512 tokens, which is as much as this model reads: the rest is cut off" in err
    assert np.isfinite(np.load("v.npy")).all()


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("embed runs/demo cat", 1, "embed needs an encoder (a bert or bilstm, with or without a head), and"),
        ("embed nothing cat", 1, "no model at nothing"),
        ("embed runs/labels cat --pooling max", 1, "no pooling named 'max'; choose from mean, cls, pooler"),
        ("embed runs/labels cat --out v.txt", 2, "v.txt ends neither in .npy nor in .jsonl"),
        ("embed runs/labels cat --out v.npy.gz", 2, "leave out .gz"),
        ("embed runs/labels cat --out x/v.npy", 2, "the folder x of v.npy does not exist"),
        ("embed runs/labels cat --similar ' '", 2, "is blank: give a text to compare with"),
        ("embed runs/labels cat --similar mat --top 0", 2, "0 is not at least 1"),
        ("embed runs/labels cat --batch-size 0", 2, "0 is not at least 1"),
        ("embed runs/labels cat --in lines.txt", 2, "cannot be combined with texts on the command line"),
        ("embed runs/labels --in missing.txt", 1, "missing.txt cannot be read: No such file"),
        ("embed runs/labels --in blank.txt", 1, "blank.txt holds only blank lines"),
        ("embed runs/labels --in lines.txt --out lines.txt", 2, "lines.txt is the input file"),
    ],
)
def test_mistakes_get_an_exit_code_and_a_way_out(command, code, message, capsys):
    Path("blank.txt").write_text(" \n\n")
    result, out, err = run(command, capsys)
    assert (result, out, message in " ".join(err.split())) == (code, "", True), err


def test_the_pooling_and_normalisation_of_the_directory_are_the_defaults(workspace, capsys):
    """The files of sentence-transformers beside a model."""
    model = headway.load(workspace / "runs" / "bert", device="cpu").encoder
    model.tokenizer = headway.load(workspace / "runs" / "bert", device="cpu").tokenizer
    model.save("model")
    modules = [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
               {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"}]  # fmt: skip
    Path("model/modules.json").write_text(json.dumps(modules))
    Path("model/1_Pooling").mkdir()
    Path("model/1_Pooling/config.json").write_text('{"pooling_mode_cls_token": true}')
    printed = json.loads(run("embed model cat --json", capsys)[1])
    assert (printed["pooling"], printed["normalize"]) == ("cls", True)
    assert np.linalg.norm(printed["texts"][0]["embedding"]) == pytest.approx(1, abs=1e-5)
    printed = json.loads(run("embed model cat --json --pooling mean --no-normalize", capsys)[1])
    assert (printed["pooling"], printed["normalize"]) == ("mean", False)
    shutil.rmtree("model")

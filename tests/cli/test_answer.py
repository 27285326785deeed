"""headway answer: questions about a passage, from arguments, stdin and files."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

import headway
from headway import tokenizers
from headway.evaluation.question_answering import score_predictions
from headway.models import SpanReader
from tests.cli.running import run
from tests.cli.test_generate import set_stdin

PASSAGE = "The cat sat on the mat. The dog sat on the roof."


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """A model directory whose model answers "cat sat" to every question, wherever the passage has it."""
    words = "The cat sat on the mat . The dog roof Who Where ?"
    tokenizer = tokenizers.train("wordpiece", [words] * 20, 200)
    n = tokenizer.vocab_size
    config = {"vocab_size": n, "d_model": n + n % 2, "n_heads": 2, "n_layers": 1, "context": 24, "d_ff": 4}
    encoder = headway.create("bert", device="cpu", **config)
    encoder.tokenizer = tokenizer
    model = SpanReader(encoder)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if "norm" not in name:
                parameter.zero_()  # blocks that change nothing: a hidden state tells its token, and no more
        encoder.embedding.weight.copy_(torch.eye(n, config["d_model"]))
        model.output.weight.zero_()
        cls, [cat], [sat] = tokenizer.special_ids["[CLS]"], tokenizer.encode("cat"), tokenizer.encode("sat")
        model.output.weight[0, cat], model.output.weight[1, sat] = 1.0, 1.0
        model.output.weight[:, cls] = 0.7
    return model.save(tmp_path_factory.mktemp("models") / "reader")


@pytest.fixture(autouse=True)
def _in_a_folder_with_the_reader(reader, workspace, tmp_path, monkeypatch):
    shutil.copytree(reader, tmp_path / "reader")
    for name in ("passage.txt", "squad.json"):
        shutil.copy(workspace / name, tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True, raising=False)


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_answer_has_its_probability_and_is_marked_in_the_passage(capsys):
    code, out, err = run(f"answer reader 'Who ?' --context '{PASSAGE}'", capsys)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert re.fullmatch(r"cat sat +\d+\.\d%  █+", lines[0])
    assert lines[1:] == ["", "The >>cat sat<< on the mat. The dog sat on the roof."]


def test_in_a_terminal_the_answer_is_highlighted(capsys, terminal, monkeypatch):
    out = run(f"answer reader 'Who ?' -c '{PASSAGE}'", capsys)[1]
    assert "The \x1b[30;46mcat sat\x1b[0m on the mat." in out
    assert ">>" not in out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in run(f"answer reader 'Who ?' -c '{PASSAGE}'", capsys)[1]


def test_a_passage_without_an_answer_is_said_to_have_none(capsys):
    code, out, _ = run("answer reader 'Who ?' -c 'The dog on the roof.'", capsys)
    assert code == 0
    assert re.fullmatch(r"no answer +\d+\.\d%  █+\n", out)
    out = run("answer reader 'Who ?' -c 'The dog on the roof.' --threshold inf", capsys)[1]
    assert ">>" in out
    assert run(f"answer reader 'Who ?' -c '{PASSAGE}' --threshold=-inf", capsys)[1].startswith("no answer")


def test_a_long_passage_is_read_whole_and_an_excerpt_is_shown(capsys):
    Path("long.txt").write_text("The dog. " * 300 + PASSAGE + " The dog." * 300)
    code, out, _ = run("answer reader 'Who ?' --context-file long.txt --overlap 4", capsys)
    assert code == 0
    excerpt = out.split("\n\n")[1]
    assert ">>cat sat<<" in excerpt
    assert excerpt.startswith("…")
    assert excerpt.endswith("…\n")
    assert len(excerpt) < 900


def test_several_questions_are_a_table_and_with_top_a_block_each(capsys):
    code, out, _ = run("answer reader 'Who ?' 'Where ?' --context-file passage.txt", capsys)
    assert code == 0
    assert [line.split()[:-1] for line in out.splitlines()] == [
        ["question", "answer"], ["Who", "?", "cat", "sat"], ["Where", "?", "cat", "sat"]
    ]  # fmt: skip
    blocks = run("answer reader 'Who ?' 'Where ?' --context-file passage.txt --top 3", capsys)[1].split("\n\n")
    assert [block.splitlines()[0] for block in blocks] == ["Who ?", "Where ?"]
    assert [len(block.splitlines()) for block in blocks] == [4, 4]


def test_questions_and_passages_come_from_stdin(capsys, monkeypatch):
    set_stdin(b"Who ?\n\nWhere ?\n", monkeypatch)
    code, out, _ = run(f"answer reader -c '{PASSAGE}' --json", capsys)
    assert code == 0
    assert [answer["question"] for answer in json.loads(out)["answers"]] == ["Who ?", "Where ?"]
    set_stdin(b"\xef\xbb\xbfThe dog.\n\nThe cat sat.\n", monkeypatch)
    [answer] = json.loads(run("answer reader 'Who ?' --context-file - --json", capsys)[1])["answers"]
    assert answer["text"] == "cat sat"


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_json_has_the_span_in_the_passage_and_the_alternatives(capsys):
    [answer] = json.loads(run(f"answer reader 'Who ?' -c '{PASSAGE}' --top 3 --json", capsys)[1])["answers"]
    assert (answer["id"], answer["question"]) == ("1", "Who ?")
    assert PASSAGE[answer["start"] : answer["end"]] == answer["text"] == "cat sat"
    assert len(answer["alternatives"]) == 2
    for other in answer["alternatives"]:
        assert PASSAGE[other["start"] : other["end"]] == other["text"]
        assert other["probability"] <= answer["probability"]
        assert set(other) == {"text", "start", "end", "score", "probability"}
    assert "context" not in answer


def test_squad_files_become_the_predictions_that_the_official_script_reads(capsys):
    code, out, err = run("answer reader --in squad.json --out predictions.json", capsys)
    assert (code, out) == (0, "")
    assert "18 questions in " in err
    predictions = json.loads(Path("predictions.json").read_text())
    questions = list(headway.data.open_source("squad.json").records())
    assert list(predictions) == [question.id for question in questions]
    assert predictions["cat-mat"] == "cat sat"
    assert predictions["cow-mat"] == ""
    assert 0 < score_predictions(predictions, questions).metrics["f1"] < 1


def test_json_lines_keep_the_fields_of_their_questions(capsys):
    lines = [{"question": "Who ?", "context": PASSAGE, "id": 7, "text": "a"}, {"question": "Who ?", "context": "dog"}]
    Path("in.jsonl").write_text("\n\n".join(map(json.dumps, lines)))
    assert run("answer reader --in in.jsonl --out out.jsonl", capsys)[0] == 0
    first, second = map(json.loads, Path("out.jsonl").read_text().splitlines())
    assert (first["id"], first["text"], first["input_text"], second["id"]) == (7, "cat sat", "a", "2")
    assert run("answer reader --in in.jsonl --out out.json", capsys)[0] == 0
    assert json.loads(Path("out.json").read_text()) == {"7": "cat sat", "2": ""}


# ── mistakes ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("answer runs/demo Who -c cat", 1, "answer needs an encoder with a head for answer spans, and this is a GPT"),
        ("answer runs/labels Who -c cat", 1, "this is an encoder with a classification head: use `headway classify`"),
        ("answer reader Who", 2, "give the passage: --context TEXT, --context-file FILE, or --in FILE"),
        ("answer reader Who -c ''", 1, "the passage is empty: give some text"),
        ("answer reader ' ' -c cat", 1, "the question is empty: give some text"),
        ("answer reader Who --context-file missing.txt", 1, "missing.txt cannot be read: No such file"),
        ("answer reader Who --context-file .", 1, ". is a folder, not a file: name a file"),
        ("answer reader Who --context-file latin.txt", 1, "latin.txt is not UTF-8: byte 0xe9 at offset 3"),
        ("answer reader --context-file -", 2, "stdin cannot hold the questions too: give one as an argument"),
        ("answer reader Who -c cat --in squad.json", 2, "--context: has no effect with --in"),
        ("answer reader Who --in squad.json", 2, "cannot be combined with questions on the command line"),
        ("answer reader --in passage.txt", 2, "passage.txt ends neither in .json nor in .jsonl"),
        ("answer reader --in bad.json", 1, "bad.json is not JSON"),
        ("answer reader --in other.json", 1, "other.json is not in SQuAD format"),
        ("answer reader --in no-passage.jsonl", 1, 'the question \'Who\' has no passage: {"context": "…"}'),
        ("answer reader --in twice.jsonl --out x.json", 1, "two questions have the id '1', so x.json cannot hold both"),
        ("answer reader --in squad.json --out squad.json", 2, "squad.json is the input file"),
        ("answer reader Who -c cat --out x.txt", 2, "x.txt ends neither in .json nor in .jsonl"),
        ("answer reader Who -c cat --out x.json.gz", 2, "x.json.gz would not be compressed: leave out .gz"),
        ("answer reader Who -c cat --out x.json --top 2", 2, "x.json holds one answer per question"),
        ("answer reader Who -c cat --top 0", 2, "0 is not at least 1"),
        ("answer reader Who -c cat --overlap=-1", 2, "-1 is not at least 0"),
        ("answer reader Who -c cat --threshold nan", 2, "nan is not a number"),
        ("answer reader Who -c cat --window 4", 1, "window=4 has no space for a question and a passage"),
        ("answer reader Who -c cat --window 25", 1, "window=25 exceeds the context of this model: use at most 24"),
    ],
)
def test_mistakes_get_an_exit_code_and_a_way_out(command, code, message, capsys, workspace):
    Path("runs").mkdir()
    for name in ("demo", "labels"):
        Path("runs", name).symlink_to(workspace / "runs" / name)
    for name, data in {
        "latin.txt": b"caf\xe9", "bad.json": b'{"data": [', "other.json": b'{"questions": []}',
        "no-passage.jsonl": b'{"question": "Who"}',
        "twice.jsonl": b'{"question": "Who", "context": "cat", "id": 1}\n' * 2,
    }.items():  # fmt: skip
        Path(name).write_bytes(data)
    result, out, err = run(command, capsys)
    assert (result, out, message in " ".join(err.split())) == (code, "", True), err


def test_a_passage_without_tokens_has_no_answer(capsys):
    code, out, err = run("answer reader 'Who ?' -c '\u200b' --top 2", capsys)
    assert (code, out.split()[:2]) == (0, ["no", "answer"]), err


def test_a_terminal_without_questions_is_asked_for_some(capsys, monkeypatch):
    set_stdin(b"", monkeypatch)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    code, _, err = run("answer reader -c cat", capsys)
    assert (code, "QUESTIONS: give a question, --in FILE, or lines on stdin" in " ".join(err.split())) == (2, True)

"""`headway tokenizer` and `headway data`, as someone meets them who has files of their own."""

import io
import json
import os

import pytest

import headway
from tests.cli.running import run


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """One small file of every kind, and a tokenizer."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "my.txt").write_text("The cat sat on the mat. " * 50)
    (folder / "t.en").write_text("one\ntwo\nthree\n" * 10)
    (folder / "t.de").write_text("eins\nzwei\ndrei\n" * 10)
    (folder / "short.de").write_text("eins\n")
    (folder / "a.jsonl").write_text(
        "".join(json.dumps({"text": f"text {i}", "stars": i % 3}) + "\n" for i in range(40))
    )
    (folder / "a.csv").write_text("review,stars\n" + "".join(f'"good, {i}",1\n' for i in range(30)))
    (folder / "a.tsv").write_text("".join(f"hello {i}\t{i % 2}\n" for i in range(30)))
    (folder / "a.conll").write_text("EU B-ORG\nrejects O\n\n" * 25)
    (folder / "bad.conll").write_text("EU I-ORG\n")
    qas = [{"id": "1", "question": "Who?", "answers": [{"text": "cat", "answer_start": 4}]}]
    (folder / "squad.json").write_text(json.dumps({"data": [{"paragraphs": [{"context": "The cat.", "qas": qas}]}]}))
    (folder / "latin.txt").write_bytes(b"caf\xe9 au lait " * 30)
    (folder / "empty.txt").write_text("")
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    parquet.write_table(pyarrow.table({"text": [f"row {i}" for i in range(40)]}), folder / "a.parquet")
    (folder / "docs").mkdir()
    for i in range(25):
        (folder / "docs" / f"{i}.txt").write_text(f"document {i}")
    headway.tokenizers.train("bpe", ["The cat sat on the mat."] * 9, 280).save(folder / "bpe")
    return folder


@pytest.fixture(autouse=True)
def _at_home(home, monkeypatch):
    monkeypatch.chdir(home)


@pytest.mark.parametrize(
    ("command", "kind", "records"),
    [
        ("my.txt", "text", 1),
        ("docs", "text", 25),
        ("'docs/*.txt'", "text", 25),
        ("t.en t.de", "pairs", 30),
        ("'t.{en,de}'", "pairs", 30),
        ("a.jsonl", "text", 40),
        ("a.jsonl --label stars", "labelled", 40),
        ("a.csv --text review --label stars", "labelled", 30),
        ("a.csv --pairs review,stars", "pairs", 30),
        ("a.tsv --text 1 --label 2", "labelled", 30),
        ("a.parquet", "text", 40),
        ("a.conll", "tagged", 25),
        ("bad.conll --tag-scheme iob1", "tagged", 1),
        ("squad.json", "questions", 1),
        ("latin.txt --errors replace", "text", 1),
        (r"my.txt --separator '. '", "text", 50),
        ("dates --limit 100", "pairs", 100),
        ("pydocs --tokenizer bpe --split tail", "text", 79),
    ],
)
def test_every_kind_of_source_is_looked_at(command, kind, records, capsys):
    code, out, err = run(f"data {command}", capsys)
    assert code == 0, err
    for wanted in ("bytes", "tokens", "longest", "duplicates", "split", "most frequent tokens", "── 1 ──"):
        assert wanted in out
    found = json.loads(run(f"data {command} --json", capsys)[1])
    assert found["kind"] == kind
    assert abs(found["records"] - records) <= (10 if "pydocs" in command else 0)
    assert found["tokens"] > 0
    assert sum(found["lengths"].values()) == found["records"]
    held = sum(part["bytes"] for part in found["split"].values())
    assert held == (found["bytes"] if found["split_by"] != "none" else 0)  # one sentence cannot be split


def test_duplicates_and_splits_are_counted(capsys):
    found = json.loads(run("data a.conll --json --test-fraction 0.2", capsys)[1])
    assert found["duplicates"] == 24
    assert found["labels"] == {"B-ORG": 25, "O": 25}
    found = json.loads(run("data docs --json --valid-fraction 0.3 --test-fraction 0.2", capsys)[1])
    assert found["split_by"] == "hash"
    assert sum(part["records"] for part in found["split"].values()) == 25
    assert all(part["records"] for part in found["split"].values())


def test_tokens_are_prepared_once(capsys, tmp_path):
    first = json.loads(run(f"data my.txt --tokenizer bpe --prepare --cache {tmp_path} --json", capsys)[1])
    again = json.loads(run(f"data my.txt --tokenizer bpe --prepare --cache {tmp_path} --json", capsys)[1])
    assert first["path"] == again["path"]
    assert os.path.isfile(os.path.join(first["path"], "train-00000.safetensors"))
    code, out, _ = run(f"data my.txt --tokenizer bpe --prepare --cache {tmp_path}", capsys)
    assert code == 0
    assert "prepared: " in out


@pytest.mark.parametrize("kind", ["char", "word", "bpe", "wordpiece", "unigram"])
def test_a_tokenizer_of_every_kind_is_trained_and_used(kind, capsys, tmp_path):
    size = "" if kind in ("char", "word") else "--vocab-size 300"
    code, out, err = run(f"tokenizer train pydocs --kind {kind} {size} --out {tmp_path}/t", capsys)
    assert code == 0, err
    assert f"saved: {tmp_path}/t ({kind}, " in out
    ids = run(f"tokenizer encode {tmp_path}/t 'the statement'", capsys)[1].strip()
    text = run(f"tokenizer decode {tmp_path}/t {ids}", capsys)[1]
    assert text == "the statement\n"
    code, out, _ = run(f"tokenizer show {tmp_path}/t 'the statement is a value'", capsys)
    assert code == 0
    assert "chars/token" in out
    measured = json.loads(run(f"tokenizer show {tmp_path}/t 'the statement is a value' --json", capsys)[1])[0]
    assert measured["fertility"] == measured["tokens"] / 5
    assert measured["characters_per_token"] == 24 / measured["tokens"]


def test_one_vocabulary_for_both_sides(capsys, tmp_path):
    code, _, err = run(f"tokenizer train t.en t.de --kind word --out {tmp_path}/t", capsys)
    assert code == 0, err
    counts = headway.load_tokenizer(tmp_path / "t").counts
    assert {"one", "eins"} <= counts.keys()
    code, out, _ = run(f"tokenizer show {tmp_path}/t", capsys)
    assert "'drei'" in out


def test_lines_of_stdin_are_encoded_and_decoded(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"The cat\nsat\n")))
    out = run("tokenizer encode bpe", capsys)[1]
    assert len(out.splitlines()) == 2
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(out.encode())))
    assert run("tokenizer decode bpe", capsys)[1] == "The cat\nsat\n"


def test_bytes_of_stdin_that_are_not_utf8_are_named_by_their_place(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a b\n\nc\xff\n")))
    code, _, err = run("tokenizer encode bpe", capsys)
    assert code == 1
    assert "stdin is not UTF-8: byte 0xff at offset 6" in err


def test_json_goes_in_as_it_came_out(capsys, monkeypatch):
    out = run("tokenizer encode bpe 'The cat' --json", capsys)[1]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(out.encode())))
    assert run("tokenizer decode bpe", capsys)[1] == "The cat\n"
    ids = json.loads(out)["ids"]
    assert run(f"tokenizer decode bpe '{ids}'", capsys)[1] == "The cat\n"


def test_texts_are_measured_one_by_one(capsys):
    """The same counts as `headway data` gives."""
    shown = json.loads(run("tokenizer show bpe docs --json", capsys)[1])[0]
    looked = json.loads(run("data docs --tokenizer bpe --json", capsys)[1])
    assert shown["tokens"] == looked["tokens"]
    assert "".join(shown["pieces"]) == "\n".join(f"document {i}" for i in (0, 1, 10, 11, 12, 13, 14, 15))
    assert len(json.loads(run("tokenizer show bpe bpe --json", capsys)[1])) == 1  # two tokenizers, no text


def test_pieces_are_coloured_in_a_terminal(capsys, monkeypatch):
    from rich.console import Console

    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, out, _ = run("tokenizer show bpe 'The cat sat'", capsys)
    assert code == 0
    assert "\x1b[" in out


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("data latin.txt", 1, "byte 0xe9 at offset 3"),
        ("data latin.txt", 1, "--errors replace"),
        ("data empty.txt", 1, "empty.txt is empty"),
        ("data t.en short.de", 1, "short.de ends after line 1"),
        ("data a.csv a.tsv", 2, "a.csv is a csv file, not lines of text"),
        ("data a.csv --text revue", 1, "no column 'revue'. Did you mean 'review'?"),
        ("data a.tsv", 1, "which column is the text?"),
        ("data bad.conll", 1, "line 1: tag 'I-ORG' follows 'O'"),
        ("data nowhere", 1, "neither a file, a folder, nor a built-in corpus"),
        ("data my.txt --valid-fraction 2", 2, "shares of text held out"),
        ("data my.txt --split tails", 2, "split='tails' is not one of"),
        ("data my.txt --prepare", 2, "'word' is made anew for each text; make one first"),
        ("data my.txt --tokenizer bpe --prepare --limit 5", 2, "leave it out with --prepare"),
        ("data my.txt --cache x", 2, "nothing is written without --prepare"),
        ("data ''", 1, "names no data"),
        ("data my.txt --limit 99999999999999999999999", 2, "at least 1"),
        ("tokenizer show bpe nowhere.txt", 1, "neither a file"),
        ("tokenizer show bpe docs/nowhere", 1, "neither a file"),
        ("tokenizer train my.txt --min-frequency -3", 2, "min_frequency=-3 must be"),
        ("tokenizer train docs --kind word --special-token document", 2, "is an ordinary token of this text too"),
        ("data my.txt --samples -1", 2, "at least 0"),
        ("data my.txt --tokenizer nowhere", 1, "no tokenizer at nowhere"),
        ("data hub:nonsense", 1, "not of the form hub:owner/name"),
        ("tokenizer train my.txt --kind bpe --vocab-size 100", 2, "is below 257"),
        ("tokenizer train my.txt --special-token '<a>' --special-token '<a>'", 2, "given twice"),
        ("tokenizer train my.txt --kind bpee", 2, "Did you mean 'bpe'?"),
        ("tokenizer train my.txt --kind char --vocab-size 9", 2, "characters are as many"),
        ("tokenizer train my.txt --kind char --min-frequency 9", 2, "has no setting 'min_frequency'"),
        ("tokenizer train my.txt --out bpe", 1, "bpe is there already"),
        ("tokenizer train empty.txt --out x", 1, "empty.txt is empty"),
        ("tokenizer encode nowhere x", 1, "no tokenizer at nowhere"),
        ("tokenizer decode bpe 5 999999", 1, "'999999' is no token id: ids are whole numbers from 0 to"),
        ("tokenizer decode bpe x", 1, "'x' is no token id"),
        ("tokenizer show bpe x --lines -1", 2, "at least 0"),
    ],
)
def test_mistakes_get_an_exit_code_and_a_way_out(command, code, message, capsys):
    before = sorted(os.listdir())
    got, out, err = run(command, capsys)
    assert got == code, err
    assert message in err
    assert "Traceback" not in err
    assert not out
    assert sorted(os.listdir()) == before

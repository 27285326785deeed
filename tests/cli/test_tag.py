"""headway tag: entities in texts, from arguments, stdin and files of every kind."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

import headway
from headway import tokenizers
from headway.data.tag_schemes import is_valid
from headway.models import Tagger
from tests.cli.running import run
from tests.cli.test_generate import set_stdin

LABELS = ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]
TAG_OF = {"peter": "B-PER", "blackburn": "I-PER", "anna": "B-PER", "rome": "B-LOC", "new": "B-LOC", "york": "I-LOC"}


@pytest.fixture(scope="module")
def tagger(tmp_path_factory):
    """A model directory whose model knows the tags of six words; every other word is outside."""
    words = [*TAG_OF, "visits", "and", "."]
    tokenizer = tokenizers.train("wordpiece", [" ".join(words)] * 20, 200, lowercase=True)
    config = {"vocab_size": tokenizer.vocab_size, "d_model": len(LABELS), "n_buckets": 1, "context": 16}
    encoder = headway.create("bow", device="cpu", labels=LABELS, **config)
    encoder.tokenizer = tokenizer
    model = Tagger(encoder)
    with torch.no_grad():
        encoder.bigrams.zero_()
        encoder.embedding.zero_()
        encoder.embedding[:, LABELS.index("O")] = 1
        for word, tag in TAG_OF.items():
            [id] = tokenizer.encode(word)
            encoder.embedding[id] = torch.eye(len(LABELS))[LABELS.index(tag)]
        model.output.weight.copy_(9 * torch.eye(len(LABELS)))
    return model.save(tmp_path_factory.mktemp("models") / "tagger")


@pytest.fixture(autouse=True)
def _in_a_folder_with_the_tagger(tagger, workspace, tmp_path, monkeypatch):
    shutil.copytree(tagger, tmp_path / "tagger")
    for name in ("news.txt", "news.conll"):
        shutil.copy(workspace / name, tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def terminal(monkeypatch):
    """Text is printed as to a terminal that shows colours."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True, raising=False)


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_entities_are_marked_in_brackets(capsys):
    code, out, err = run("tag tagger 'Peter Blackburn visits Rome, and  New York.' 'Visits.'", capsys)
    assert (code, err) == (0, "note: the vocabulary lacks , (in text 1); it becomes <unk>\n")
    assert out == "[Peter Blackburn PER] visits [Rome LOC], and  [New York LOC].\nVisits.\n"


def test_in_a_terminal_entities_are_coloured_by_their_type_with_a_legend(capsys, terminal, monkeypatch):
    code, out, _ = run("tag tagger 'Peter visits Rome and New York.'", capsys)
    assert code == 0
    text, _, legend = out.splitlines()
    colours = dict(re.findall(r"\x1b\[30;(\d+)m (\w+) \x1b\[0m", legend))
    assert list(colours.values()) == ["LOC", "PER"]
    assert len(colours) == 2  # one colour each
    marked = [(colours[code], words) for code, words in re.findall(r"\x1b\[30;(\d+)m (.+?) \x1b\[0m", text)]
    assert marked == [("PER", "Peter"), ("LOC", "Rome"), ("LOC", "New York")]
    assert re.sub(r"\x1b\[[0-9;]*m", "", legend).split() == ["LOC", "2", "PER", "1"]
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert "\x1b" not in run("tag tagger Rome", capsys)[1]


def test_json_and_files_have_no_colours(capsys, terminal):
    assert "\\u001b" not in run("tag tagger Rome --json", capsys)[1]
    run("tag tagger Rome --out rome.jsonl", capsys)
    assert "\\u001b" not in Path("rome.jsonl").read_text()


def test_texts_come_from_stdin_without_its_blank_lines(capsys, monkeypatch):
    for command in ("tag tagger", "tag tagger -"):
        set_stdin("Anna\n\n  \nnaïve Rome".encode(), monkeypatch)
        code, out, _ = run(command, capsys)
        assert (code, out) == (0, "[Anna PER]\nnaïve [Rome LOC]\n")


def test_tags_that_mark_no_entities_are_written_behind_the_words(capsys, tagger):
    config = json.loads(Path("tagger/config.json").read_text())
    config["labels"] = ["NOUN", "VERB", "ADJ", "ADP", "PUNCT"]
    Path("tagger/config.json").write_text(json.dumps(config))
    assert run("tag tagger 'Rome visits.'", capsys)[1] == "Rome/NOUN visits/PUNCT ./PUNCT\n"
    code, _, err = run("tag tagger 'Rome visits.' --unconstrained", capsys)
    assert (code, "--unconstrained: does not apply to tagger, whose tags are neither BIO nor BIOES" in err) == (2, True)


def test_a_text_without_words_is_printed_as_it_is(capsys):
    assert run("tag tagger '' Rome", capsys)[:2] == (0, "\n[Rome LOC]\n")


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_json_and_json_lines_hold_the_same_results(capsys):
    code, out, _ = run("tag tagger --in news.txt --json", capsys)
    assert code == 0
    texts = json.loads(out)["texts"]
    assert [text["text"] for text in texts] == ["Peter Blackburn visits Rome.", "Anna visits New York."]
    assert texts[0]["tags"] == ["B-PER", "I-PER", "O", "B-LOC", "O"]
    entity = texts[1]["entities"][1]
    assert (entity["type"], entity["text"], entity["start"], entity["end"]) == ("LOC", "New York", 12, 20)
    assert 0.9 < entity["score"] <= 1
    code, out, err = run("tag tagger --in news.txt --out news.jsonl", capsys)
    assert (code, out) == (0, "")
    assert re.fullmatch(r"note: skipped 1 blank line of news\.txt\n2 texts in \d+\.\d s: news\.jsonl\n", err)
    assert [json.loads(line) for line in Path("news.jsonl").read_text().splitlines()] == texts
    assert run("tag tagger --in news.txt --out news.jsonl", capsys)[0] == 1  # it exists
    code, out, _ = run("tag tagger --in news.txt --out news.jsonl --overwrite --json", capsys)
    summary = json.loads(out)
    assert (code, summary["out"], summary["n_texts"]) == (0, "news.jsonl", 2)


def test_fields_of_json_lines_are_kept(capsys):
    Path("in.jsonl").write_text('{"text": "Anna", "id": 7, "tags": ["O"]}\n\n{"text": " "}\n{"text": "Rome"}\n')
    texts = json.loads(run("tag tagger --in in.jsonl --json", capsys)[1])["texts"]
    assert [text["text"] for text in texts] == ["Anna", "Rome"]
    assert (texts[0]["id"], texts[0]["input_tags"], texts[0]["tags"]) == (7, ["O"], ["B-PER"])


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("in.csv", '\ufefftext,id\n"Anna, Peter",1\n\nRome,2\n,3\n'),
        ("in.csv", ' id ; text\r\n1;Anna, Peter\r\n2;"Rome"\r\n'),  # as spreadsheets write in half of Europe
        ("in.tsv", "id\ttext\n1\tAnna, Peter\n2\tRome\n"),
    ],
)
def test_tables_are_read_as_in_training(name, data, capsys):
    Path(name).write_bytes(data.encode())
    texts = json.loads(run(f"tag tagger --in {name} --json", capsys)[1])["texts"]
    assert [(text["id"], text["text"], text["tags"][0]) for text in texts] == [
        ("1", "Anna, Peter", "B-PER"), ("2", "Rome", "B-LOC")
    ]  # fmt: skip


def test_quotes_in_a_tsv_are_text(capsys):
    Path("in.tsv").write_text('text\tid\n"Anna" visits\t1\n')
    [result] = json.loads(run("tag tagger --in in.tsv --json", capsys)[1])["texts"]
    assert result["text"] == '"Anna" visits'


def test_token_tag_files_keep_their_words_and_get_new_tags(capsys):
    """The first cell of a line is the word, as in training; documents and old tags are left out."""
    Path("in.conll").write_text(
        "-DOCSTART- -X- O\n\nNew NNP B-ORG\nYork NNP I-ORG\n\n\nAnna\n10\u00a0000 O\n\n new\tO\nRome.\tB-X\n"
    )
    code, _, err = run("tag tagger --in in.conll --out out.conll", capsys)
    assert code == 0, err
    assert Path("out.conll").read_text() == (
        "New\tB-LOC\nYork\tI-LOC\n\nAnna\tB-PER\n10\u00a0000\tO\n\n new\tB-LOC\nRome.\tB-LOC\n\n"
    )
    code, _, _ = run("tag tagger --in out.conll --out again.conll", capsys)
    assert Path("again.conll").read_text() == Path("out.conll").read_text()
    [first, *_] = json.loads(run("tag tagger --in in.conll --json", capsys)[1])["texts"]
    assert (first["words"], first["text"]) == (["New", "York"], "New York")


def test_texts_become_token_tag_files_that_training_reads(capsys):
    assert run("tag tagger --in news.txt --out news.bio.tsv", capsys)[0] == 0
    sentences = list(headway.data.open_source("news.bio.tsv").records())
    assert [sentence.tags for sentence in sentences] == [
        ("B-PER", "I-PER", "O", "B-LOC", "O"), ("B-PER", "O", "B-LOC", "I-LOC", "O")
    ]  # fmt: skip


def test_other_tables_are_refused(capsys):
    for name in ("tags.tsv", "tags.csv"):
        code, _, err = run(f"tag tagger --in news.txt --out {name}", capsys)
        assert (code, f"{name} is not a format for results: use .jsonl" in err) == (2, True)


def test_a_text_longer_than_the_context_has_a_tag_for_every_word(capsys):
    Path("long.txt").write_text("Anna visits Rome and " * 40)
    [result] = json.loads(run("tag tagger --in long.txt --json", capsys)[1])["texts"]
    assert result["tags"] == ["B-PER", "O", "B-LOC", "O"] * 40


def test_invalid_sequences_appear_only_if_asked_for(capsys):
    words = "'Blackburn York Anna York visits'"
    [result] = json.loads(run(f"tag tagger {words} --json", capsys)[1])["texts"]
    assert is_valid(result["tags"], "bio")
    [result] = json.loads(run(f"tag tagger {words} --unconstrained --json", capsys)[1])["texts"]
    assert result["tags"] == ["I-PER", "I-LOC", "B-PER", "I-LOC", "O"]


# ── mistakes ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("tag runs/demo Anna", 1, "tag needs an encoder with a tagging head, and this is a GPT: train an encoder"),
        ("tag runs/labels Anna", 1, "this is an encoder with a classification head: use `headway classify`"),
        ("tag runs/bert Anna", 1, "this is an encoder with a masked-LM head: use `headway fill`"),
        ("tag nothing Anna", 1, "no model at nothing"),
        ("tag tagger Anna --in news.txt", 2, "cannot be combined with texts on the command line"),
        ("tag tagger Anna --in news.conll", 2, "cannot be combined with texts on the command line"),
        ("tag tagger Anna --batch-size 0", 2, "0 is not at least 1"),
        ("tag tagger --in missing.txt", 1, "missing.txt cannot be read: No such file"),
        ("tag tagger --in missing.conll", 1, "missing.conll cannot be read: No such file"),
        ("tag tagger --in .", 1, ". is a folder, not a file: name a file"),
        ("tag tagger --in empty.txt", 1, "empty.txt is empty"),
        ("tag tagger --in empty.conll", 1, "empty.conll holds no words: write one word per line"),
        ("tag tagger --in blank.txt", 1, "blank.txt holds only blank lines"),
        ("tag tagger --in latin.txt", 1, "latin.txt is not UTF-8: byte 0xe9 at offset 3"),
        ("tag tagger --in latin.conll", 1, "not UTF-8: byte 0xe9 at offset 3"),
        ("tag tagger --in bad.jsonl", 1, 'bad.jsonl, line 2 is not an object with a text: {"text": "…"}'),
        (
            "tag tagger --in names.csv",
            1,
            "names.csv has no column 'text' in its first line, 'Text, id': name the column with --column",
        ),
        ("tag tagger --in twice.tsv", 1, "twice.tsv has 2 columns 'text' in its first line, 'text, text'"),
        ("tag tagger --in empty.csv", 1, "empty.csv has no column 'text' in its first line, ''"),
        ("tag tagger --in header.csv", 1, "header.csv holds no text: give one text per row"),
        ("tag tagger --in short.csv", 1, "short.csv, line 2 has 1 column, but the first line has 2: repair the row"),
        ("tag tagger --in news.txt --out news.txt", 2, "news.txt is the input file: name another file"),
        ("tag tagger Anna --out news.txt", 1, "news.txt already exists: name another file, or add --overwrite"),
        ("tag tagger Anna --out .", 2, "is a folder: name a file"),
        ("tag tagger Anna --out x/y.jsonl", 2, "the folder x of y.jsonl does not exist"),
        ("tag tagger Anna --out x.conll.gz", 2, "x.conll.gz would not be compressed: leave out .gz"),
    ],
)
def test_mistakes_get_an_exit_code_and_a_way_out(command, code, message, capsys, workspace):
    for name in ("demo", "labels", "bert"):
        Path("runs").mkdir(exist_ok=True)
        Path("runs", name).symlink_to(workspace / "runs" / name)
    for name, data in {
        "empty.txt": b"", "empty.conll": b"\n-DOCSTART- O\n", "blank.txt": b" \n\n", "latin.txt": b"caf\xe9",
        "latin.conll": b"caf\xe9\tO\n", "bad.jsonl": b'{"text": "a"}\n{"text": 3}\n', "names.csv": b"Text,id\na,1\n",
        "twice.tsv": b"text\ttext\na\tb\n", "empty.csv": b"", "header.csv": b"text,id\n", "short.csv": b"text,id\na\n",
    }.items():  # fmt: skip
        Path(name).write_bytes(data)
    result, out, err = run(command, capsys)
    assert (result, out, message in " ".join(err.split())) == (code, "", True), err


def test_a_terminal_without_texts_is_asked_for_some(capsys, monkeypatch):
    set_stdin(b"", monkeypatch)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    code, _, err = run("tag tagger", capsys)
    assert (code, "give a text, --in FILE, or lines on stdin" in err) == (2, True)

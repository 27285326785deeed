"""headway tokenizer and headway data, on files of every format."""

import io
import json
import os

import pytest

import headway
from tests.cli.running import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One small file of every format, and a tokenizer."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "my.txt").write_text("The cat sat on the mat. " * 50)
    (folder / "prose.txt").write_text("\n".join(headway.data.load_documents("pydocs"))[:60_000])
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
def _in_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)


def set_stdin(data, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


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
        ("a.tsv", "pairs", 30),
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
def test_data_summarises_every_kind_of_source(command, kind, records, capsys):
    code, out, err = run(f"data {command}", capsys)
    assert code == 0, err
    for label in ("bytes", "tokens", "longest", "duplicates", "split", "most frequent tokens", "── 1 ──"):
        assert label in out
    summary = json.loads(run(f"data {command} --json", capsys)[1])
    assert summary["kind"] == kind
    assert abs(summary["records"] - records) <= (10 if "pydocs" in command else 0)  # pydocs differs between Pythons
    assert summary["tokens"] > 0
    assert sum(summary["lengths"].values()) == summary["records"]
    split_bytes = sum(split["bytes"] for split in summary["split"].values())
    assert split_bytes == (summary["bytes"] if summary["split_by"] != "none" else 0)  # one sentence cannot be split


def test_two_columns_without_a_header_are_pairs_as_in_training(capsys):
    code, out, err = run("data a.tsv --samples 1", capsys)
    assert code == 0
    assert "note: two columns without a header, read as pairs: --pairs 1,2" in err
    assert "hello 0" in out  # the first row is a pair too


def test_text_that_the_vocabulary_lacks_is_named(capsys, tmp_path):
    headway.tokenizers.train("char", ["abc"]).save(tmp_path / "letters")
    code, out, err = run(f"tokenizer encode {tmp_path}/letters ab a☃b", capsys)
    assert (code, len(out.splitlines())) == (0, 2)
    assert "note: the vocabulary lacks ☃ (in text 2); it becomes <unk>" in err
    assert run(f"tokenizer encode {tmp_path}/letters abc", capsys)[2] == ""


def test_duplicates_labels_and_splits_are_counted(capsys):
    summary = json.loads(run("data a.conll --json --test-fraction 0.2", capsys)[1])
    assert summary["duplicates"] == 24
    assert summary["labels"] == {"B-ORG": 25, "O": 25}
    summary = json.loads(run("data docs --json --valid-fraction 0.3 --test-fraction 0.2", capsys)[1])
    assert summary["split_by"] == "hash"
    assert sum(split["records"] for split in summary["split"].values()) == 25
    assert all(split["records"] for split in summary["split"].values())


def test_a_limit_beyond_the_data_reads_all_of_it(capsys):
    assert json.loads(run(f"data docs --limit {10**23} --json", capsys)[1])["records"] == 25


def test_tokens_are_prepared_once(capsys, tmp_path):
    command = f"data my.txt --tokenizer bpe --prepare --cache {tmp_path}"
    first = json.loads(run(f"{command} --json", capsys)[1])
    second = json.loads(run(f"{command} --json", capsys)[1])
    assert first["path"] == second["path"]
    assert os.path.isfile(os.path.join(first["path"], "train-00000.safetensors"))
    code, out, _ = run(command, capsys)
    assert code == 0
    assert "prepared: " in out


def test_damaged_tokens_are_prepared_again_with_a_note(capsys, tmp_path):
    command = f"data my.txt --tokenizer bpe --prepare --cache {tmp_path} --json"
    first = json.loads(run(command, capsys)[1])
    with open(os.path.join(first["path"], "train-00000.safetensors"), "ab") as shard:
        shard.write(b"\0")
    code, out, err = run(command, capsys)
    assert code == 0
    assert json.loads(out)["shards"] == first["shards"]
    assert f"note: cached tokens of my.txt are encoded again: {first['path']}/train-00000.safetensors is damaged" in err


@pytest.mark.parametrize("kind", ["char", "word", "bpe", "wordpiece", "unigram"])
def test_a_tokenizer_of_every_kind_is_trained_and_used(kind, capsys, tmp_path):
    size = "" if kind in ("char", "word") else "--vocab-size 300"
    code, out, err = run(f"tokenizer train prose.txt --kind {kind} {size} --out {tmp_path}/t", capsys)
    assert code == 0, err
    assert f"saved: {tmp_path}/t ({kind}, " in out
    ids = run(f"tokenizer encode {tmp_path}/t 'the statement'", capsys)[1].strip()
    assert run(f"tokenizer decode {tmp_path}/t {ids}", capsys)[1] == "the statement\n"
    code, out, _ = run(f"tokenizer show {tmp_path}/t 'the statement is a value'", capsys)
    assert code == 0
    assert "chars/token" in out
    stats = json.loads(run(f"tokenizer show {tmp_path}/t 'the statement is a value' --json", capsys)[1])[0]
    assert stats["fertility"] == stats["tokens"] / 5
    assert stats["characters_per_token"] == 24 / stats["tokens"]


def test_parallel_files_give_one_joint_vocabulary(capsys, tmp_path):
    code, _, err = run(f"tokenizer train t.en t.de --kind word --out {tmp_path}/t", capsys)
    assert code == 0, err
    assert {"one", "eins"} <= headway.load_tokenizer(tmp_path / "t").counts.keys()
    assert "'drei'" in run(f"tokenizer show {tmp_path}/t", capsys)[1]


def test_lines_of_stdin_are_encoded_and_decoded(capsys, monkeypatch):
    set_stdin(b"The cat\nsat\n", monkeypatch)
    out = run("tokenizer encode bpe", capsys)[1]
    assert len(out.splitlines()) == 2
    set_stdin(out.encode(), monkeypatch)
    assert run("tokenizer decode bpe", capsys)[1] == "The cat\nsat\n"


def test_stdin_that_is_not_utf8_is_reported_with_its_offset(capsys, monkeypatch):
    set_stdin(b"a b\n\nc\xff\n", monkeypatch)
    code, _, err = run("tokenizer encode bpe", capsys)
    assert code == 1
    assert "stdin is not UTF-8: byte 0xff at offset 6" in err


def test_decode_reads_the_json_that_encode_prints(capsys, monkeypatch):
    out = run("tokenizer encode bpe 'The cat' --json", capsys)[1]
    set_stdin(out.encode(), monkeypatch)
    assert run("tokenizer decode bpe", capsys)[1] == "The cat\n"
    ids = json.loads(out)["ids"]
    assert run(f"tokenizer decode bpe '{ids}'", capsys)[1] == "The cat\n"


def test_tokenizer_show_counts_tokens_as_data_does(capsys):
    stats = json.loads(run("tokenizer show bpe docs --json", capsys)[1])[0]
    summary = json.loads(run("data docs --tokenizer bpe --json", capsys)[1])
    assert stats["tokens"] == summary["tokens"]
    assert "".join(stats["pieces"]) == "\n".join(f"document {i}" for i in (0, 1, 10, 11, 12, 13, 14, 15))
    assert len(json.loads(run("tokenizer show bpe bpe --json", capsys)[1])) == 1  # a tokenizer twice, and no text


def test_tokens_are_coloured_in_a_terminal(capsys, monkeypatch):
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
        ("data a.csv", 1, "which column is the text? The first row is: 'review', 'stars'."),
        ("data bad.conll", 1, "line 1: tag 'I-ORG' follows 'O'"),
        ("data nowhere", 1, "neither a file, a folder, nor a built-in corpus"),
        ("data my.txt --valid-fraction 2", 2, "fractions of text held out"),
        ("data my.txt --valid-fraction nan", 2, "fractions of text held out"),
        ("data my.txt --test-fraction inf", 2, "fractions of text held out"),
        ("data ~nouser/x", 1, "there is no home folder of '~nouser'"),
        ("data my.txt --split tails", 2, "split='tails' is not one of"),
        ("data my.txt --prepare", 2, "'word' would be a new tokenizer for each text: train one"),
        ("data my.txt --tokenizer bpe --prepare --limit 5", 2, "--prepare tokenizes the whole text: leave --limit out"),
        ("data my.txt --cache x", 2, "nothing is written without --prepare: add it"),
        ("data ''", 1, "the data path is empty"),
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
        ("tokenizer train my.txt --kind char --vocab-size 9", 2, "a char tokenizer has every character of the text"),
        ("tokenizer train my.txt --kind char --min-frequency 9", 2, "has no setting 'min_frequency'"),
        ("tokenizer train my.txt --out bpe", 1, "bpe already exists"),
        ("tokenizer train empty.txt --out x", 1, "empty.txt is empty"),
        ("tokenizer encode nowhere x", 1, "no tokenizer at nowhere"),
        ("tokenizer decode bpe 5 999999", 1, "'999999' is not a token id: ids are integers from 0 to"),
        ("tokenizer decode bpe x", 1, "'x' is not a token id"),
        ("tokenizer show bpe x --lines -1", 2, "at least 0"),
    ],
)
def test_mistakes_get_an_exit_code_and_a_way_out(command, code, message, capsys):
    before = sorted(os.listdir())
    exit_code, out, err = run(command, capsys)
    assert (exit_code, out) == (code, ""), err
    assert message in " ".join(err.split())
    assert "Traceback" not in err
    assert sorted(os.listdir()) == before  # nothing was written


# ── merges ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_merges_are_shown_with_their_ranks(capsys):
    code, out, _ = run('tokenizer show bpe "The cat" --merges', capsys)
    assert code == 0
    lines = out.split("'The'\n", 1)[1].split("\n\n", 1)[0].splitlines()
    assert lines[0].split() == ["rank", "merge", "pieces"]
    assert lines[1].split() == ["start", "T", "h", "e"]
    assert lines[-1].split()[-1] == "The"
    ranks = [int(line.split()[0]) for line in lines[2:]]
    shown = json.loads(run('tokenizer show bpe "The cat" --merges --json', capsys)[1])[0]["words"]
    assert [step["rank"] for step in shown[0]["steps"]] == ranks
    assert [word["text"] for word in shown] == ["The", " cat"]


@pytest.mark.parametrize(("kind", "title"), [("wordpiece", "longest match"), ("unigram", "ln p")])
def test_other_subwords_show_their_own_steps(kind, title, capsys, tmp_path):
    headway.tokenizers.train(kind, ["The cat sat on the mat."] * 9, 40).save(tmp_path)
    code, out, _ = run(f'tokenizer show {tmp_path} "The cat" --merges', capsys)
    assert code == 0
    assert title in out


def test_a_long_text_has_only_its_first_words_explained(capsys):
    words = " ".join(f"w{i}" for i in range(60))  # letters and digits are words of their own
    out = run(f'tokenizer show bpe "{words}" --merges', capsys)[1]
    assert "… and 22 more words; --json has all of them" in out


def test_training_explains_its_first_merges(capsys, tmp_path):
    (tmp_path / "words.txt").write_text("lower newest newest newest")
    code, out, _ = run(f"tokenizer train {tmp_path}/words.txt --vocab-size 300 --explain 2 --out {tmp_path}/a", capsys)
    assert code == 0
    assert [line.split() for line in out.splitlines()[3:6]] == [
        ["rank", "merge", "piece", "count"], ["0", "w", "+", "e", "we", "4"], ["1", "e", "+", "we", "ewe", "3"]
    ]  # fmt: skip
    command = f"tokenizer train {tmp_path}/words.txt --vocab-size 300 --explain 2 --out {tmp_path}/b --json"
    assert json.loads(run(command, capsys)[1])["merges"][0] == {"left": "w", "right": "e", "count": 4}
    code, _, err = run(f"tokenizer train {tmp_path}/words.txt --kind word --explain 2 --out {tmp_path}/c", capsys)
    assert code == 2
    assert "--explain: does not apply to --kind word, which learns no merges" in " ".join(err.split())

"""Data sources: every format and kind of path, and an error message for every way they can be wrong."""

import csv
import glob
import gzip
import io
import json
import os
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data import CORPORA, TASKS, load_documents, locate, open_source
from headway.data.csv_rows import csv_rows
from headway.data.file_search import glob_files
from headway.data.records import Answer, LabelledText, Pair, Question, TaggedSentence
from headway.data.tag_schemes import check_tags
from headway.data.text_files import DOCUMENT_BYTES, SPLIT_ABOVE_BYTES
from headway.errors import ConfigError, DataError


def test_pydocs_is_half_a_megabyte_of_english():
    documents = load_documents("pydocs")
    assert len(documents) > 50
    assert 300_000 < sum(map(len, documents)) < 1_000_000
    assert "statement" in "".join(documents)


def test_letters_are_8_kinds_and_equally_likely():
    documents = load_documents("letters")
    text = "".join(documents)
    assert documents == load_documents("letters")
    assert len(text) == 200_000
    assert sorted(set(text)) == list("abcdefgh")
    assert all(abs(text.count(letter) / len(text) - 1 / 8) < 0.003 for letter in "abcdefgh")  # 4 standard deviations


def test_stdlib_is_about_ten_megabytes_of_python():
    documents = load_documents("stdlib")
    assert 5e6 < sum(map(len, documents)) < 30e6
    assert any("class OrderedDict" in d for d in documents)


def test_tasks_are_sources_of_pairs():
    for name in TASKS:
        assert name in CORPORA
        source = open_source(name)
        assert source.kind == "pairs"
        first = next(source.records())
        assert f"{first.source}\t{first.target}\n" in load_documents(name)[0]


def test_paths_are_files_folders_or_globs(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_bytes("one\r\ntwo é".encode())
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.txt").write_text("three")
    (tmp_path / "c.md").write_text("four")
    assert load_documents(str(tmp_path / "a.txt")) == ["one\r\ntwo é"]  # line endings unchanged
    assert load_documents(str(tmp_path)) == ["one\r\ntwo é", "three"]
    assert load_documents(str(tmp_path / "*.md")) == ["four"]
    assert load_documents("c.md", root=str(tmp_path)) == ["four"]
    monkeypatch.setenv("HEADWAY_DATA", str(tmp_path))
    assert load_documents("c.md") == ["four"]


def test_gzip_files_are_decompressed(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("café".encode()))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "x"}\n'))
    assert load_documents(str(tmp_path / "a.txt.gz")) == ["café"]
    assert load_documents(str(tmp_path / "b.jsonl.gz")) == ["x"]
    (tmp_path / "truncated.txt.gz").write_bytes(gzip.compress(b"text" * 100)[:-9])
    with pytest.raises(DataError, match=r"truncated\.txt\.gz is damaged"):
        load_documents(str(tmp_path / "truncated.txt.gz"))


def test_a_large_file_becomes_several_documents(tmp_path):
    text = "".join(f"line {i} é\n" for i in range(SPLIT_ABOVE_BYTES // 8))
    (tmp_path / "large.txt").write_text(text, encoding="utf-8")
    documents = list(open_source(str(tmp_path / "large.txt")).documents())
    assert "".join(documents) == text
    assert len(documents) > 5
    assert all(d.endswith("\n") and len(d.encode()) <= DOCUMENT_BYTES for d in documents)
    (tmp_path / "one_line.txt").write_text("é" * SPLIT_ABOVE_BYTES, encoding="utf-8")  # cut between characters
    assert "".join(open_source(str(tmp_path / "one_line.txt")).documents()) == "é" * SPLIT_ABOVE_BYTES


def test_a_separator_splits_a_file_into_documents(tmp_path):
    (tmp_path / "s.txt").write_text("one<|endoftext|>\ntwo\n<|endoftext|>three<|endoftext|>\n")
    documents = list(open_source(str(tmp_path / "s.txt"), separator="<|endoftext|>").documents())
    assert documents == ["one", "\ntwo\n", "three"]
    text = "\n\n".join(f"paragraph {i} " * 50 for i in range(3000))  # more than one read of the file
    (tmp_path / "p.txt").write_text(text)
    assert list(open_source(str(tmp_path / "p.txt"), separator="\n\n").documents()) == text.split("\n\n")


def test_all_table_formats_give_the_same_records(tmp_path):
    rows = [("Good, very.", "1"), ('He said "no"', "0"), ("ünï", "1")]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": t, "label": int(n)}) for t, n in rows))
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "\n".join(f"{t}\t{n}" for t, n in rows) + "\n")
    quoted = ['"Good, very.",1', '"He said ""no""",0', "ünï,1"]
    (tmp_path / "a.csv").write_text("text,label\n" + "\n".join(quoted) + "\n")
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    table = pyarrow.table({"text": [t for t, _ in rows], "label": [int(n) for _, n in rows]})
    parquet.write_table(table, tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.tsv", "a.csv", "a.parquet"):
        source = open_source(str(tmp_path / name), label="label")
        assert source.kind == "labelled"
        assert list(source.records()) == [LabelledText(t, n) for t, n in rows], name
        assert list(open_source(str(tmp_path / name)).documents()) == [t for t, _ in rows]


def test_column_numbers_mean_a_table_without_header(tmp_path):
    (tmp_path / "p.tsv").write_text("Hi.\tHallo!\nRun!\tLauf!\n")
    source = open_source(str(tmp_path / "p.tsv"), pairs="2,1")
    assert list(source.records()) == [Pair("Hallo!", "Hi."), Pair("Lauf!", "Run!")]
    assert list(source.texts()) == ["Hallo!", "Hi.", "Lauf!", "Run!"]
    assert list(source.documents()) == ["Hallo!\tHi.\nLauf!\tRun!\n"]


def test_a_csv_cell_may_contain_a_newline(tmp_path):
    (tmp_path / "a.csv").write_text('text\n"one\ntwo"\nthree\n')
    assert load_documents(str(tmp_path / "a.csv")) == ["one\ntwo", "three"]


def test_spreadsheet_csv_with_a_byte_order_mark_and_semicolons(tmp_path):
    (tmp_path / "a.csv").write_bytes("\ufefftext;stars\r\nsehr gut, wirklich;5\r\n".encode())
    assert list(open_source(str(tmp_path / "a.csv"), label="stars").records()) == [
        LabelledText("sehr gut, wirklich", "5")
    ]
    (tmp_path / "a.txt").write_bytes("\ufeffone".encode())
    assert load_documents(str(tmp_path / "a.txt")) == ["one"]
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfcaf\xe9")
    with pytest.raises(DataError, match="0xe9 at offset 6"):
        load_documents(str(tmp_path / "b.txt"))


def test_semicolons_in_text_do_not_separate_columns(tmp_path):
    (tmp_path / "a.csv").write_text("I came; I saw\nHe left; she stayed\nplain\n")
    assert list(open_source(str(tmp_path / "a.csv"), text="1").records()) == [
        "I came; I saw",
        "He left; she stayed",
        "plain",
    ]
    (tmp_path / "b.csv").write_text('\n"text, long";label\nx;1\n')
    assert list(open_source(str(tmp_path / "b.csv"), text="text, long", label="label").records()) == [
        LabelledText("x", "1")
    ]


def test_tagged_words_may_contain_a_no_break_space(tmp_path):
    (tmp_path / "a.conll").write_text("10\u00a0000 O\n")
    assert next(open_source(str(tmp_path / "a.conll")).records()).words == ("10\u00a0000",)


def test_gzip_in_upper_case_and_in_parallel_files(tmp_path):
    (tmp_path / "A.TXT.GZ").write_bytes(gzip.compress(b"text"))
    assert load_documents(str(tmp_path / "A.TXT.GZ")) == ["text"]
    (tmp_path / "a.en.gz").write_bytes(gzip.compress(b"one\ntwo\n" * 99)[:-12])
    (tmp_path / "a.de.gz").write_bytes(gzip.compress(b"eins\nzwei\n" * 99))
    with pytest.raises(DataError, match="is damaged"):
        list(open_source(str(tmp_path / "a.{en,de}.gz")).records())


def test_hidden_files_are_skipped(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.txt").write_text("hidden")
    (tmp_path / "a.txt").write_text("visible")
    assert load_documents(str(tmp_path)) == ["visible"]


def test_parallel_files_by_braces_or_target_path(tmp_path):
    (tmp_path / "t.en").write_text("one\ntwo\n\n")
    (tmp_path / "t.de").write_text("eins\nzwei\n\n")
    pairs = [Pair("one", "eins"), Pair("two", "zwei")]
    source = open_source(str(tmp_path / "t.{en,de}"))
    assert list(source.records()) == pairs
    assert source.skipped == 1  # the empty line
    assert list(open_source(str(tmp_path / "t.en"), target_path=str(tmp_path / "t.de")).records()) == pairs


def test_parallel_files_of_different_length_name_the_line(tmp_path):
    (tmp_path / "t.en").write_text("one\ntwo\nthree\nfour\n")
    (tmp_path / "t.de").write_text("eins\nzwei\n")
    with pytest.raises(DataError, match=r"t\.de ends after line 2, .*t\.en has 2 more from line 3 on"):
        list(open_source(str(tmp_path / "t.{en,de}")).records())


CONLL = (
    "-DOCSTART- -X- O O\n\nEU NNP I-NP B-ORG\nrejects VBZ I-VP O\n\nPeter NNP I-NP B-PER\nBlackburn NNP I-NP I-PER\n"
)


def test_conll_files_give_tagged_sentences(tmp_path):
    (tmp_path / "a.conll").write_text(CONLL)
    source = open_source(str(tmp_path / "a.conll"))
    assert source.kind == "tagged"
    assert list(source.records()) == [
        TaggedSentence(("EU", "rejects"), ("B-ORG", "O")),
        TaggedSentence(("Peter", "Blackburn"), ("B-PER", "I-PER")),
    ]
    (tmp_path / "a.bio.tsv").write_text("EU\tB-ORG\n\nPeter\tB-PER\n")
    assert [r.words for r in open_source(str(tmp_path / "a.bio.tsv")).records()] == [("EU",), ("Peter",)]


def test_tags_that_are_not_bio_name_the_line_and_the_other_schemes(tmp_path):
    (tmp_path / "a.conll").write_text("EU I-ORG\nrejects O\n\nGerman I-MISC\n")
    with pytest.raises(DataError, match=r"a\.conll, line 1: tag 'I-ORG' follows 'O'.*--tag-scheme iob1"):
        list(open_source(str(tmp_path / "a.conll")).records())
    records = list(open_source(str(tmp_path / "a.conll"), tag_scheme="iob1").records())
    assert [r.tags for r in records] == [("B-ORG", "O"), ("B-MISC",)]
    (tmp_path / "b.conll").write_text("EU B-ORG\n\nruns VBZ\n")
    with pytest.raises(DataError, match=r"line 3: tag 'VBZ' is not BIO"):
        list(open_source(str(tmp_path / "b.conll")).records())
    assert len(list(open_source(str(tmp_path / "b.conll"), tag_scheme="any").records())) == 2
    (tmp_path / "c.conll").write_text("EU\n")
    with pytest.raises(DataError, match="line 1: 'EU' is a word without a tag"):
        list(open_source(str(tmp_path / "c.conll")).records())


def test_iob1_is_converted_to_bio():
    """Ramshaw & Marcus 1995: B- only where an entity directly follows another of its type."""
    assert check_tags(["I-A", "I-A", "B-A", "O", "I-B", "I-A"], "iob1") == ["B-A", "I-A", "B-A", "O", "B-B", "B-A"]


def squad_json(start: int) -> str:
    question = {"id": "q1", "question": "What?", "answers": [{"text": "cat", "answer_start": start}]}
    unanswerable = {"id": "q2", "question": "Who?", "answers": [], "is_impossible": True}
    return json.dumps({"data": [{"paragraphs": [{"context": "A cat sat.", "qas": [question, unanswerable]}]}]})


def test_squad_files_give_questions(tmp_path):
    (tmp_path / "a.json").write_text(squad_json(2))
    source = open_source(str(tmp_path / "a.json"))
    assert list(source.records()) == [
        Question("q1", "What?", "A cat sat.", (Answer("cat", 2),)),
        Question("q2", "Who?", "A cat sat.", ()),
    ]
    assert list(source.documents()) == ["A cat sat."]
    (tmp_path / "b.json").write_text(squad_json(3))
    with pytest.raises(DataError, match=r"question q1: the answer 'cat' is not in the context at character 3"):
        list(open_source(str(tmp_path / "b.json")).records())
    (tmp_path / "c.json").write_text('[{"text": "x"}]')
    with pytest.raises(DataError, match="is not in SQuAD format"):
        list(open_source(str(tmp_path / "c.json")).records())


def test_invalid_utf8_is_named_or_replaced(tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 au lait")
    with pytest.raises(DataError, match=r"latin\.txt is not UTF-8: byte 0xe9 at offset 3; .*--errors replace"):
        load_documents(str(tmp_path / "latin.txt"))
    assert list(open_source(str(tmp_path / "latin.txt"), errors="replace").documents()) == ["caf� au lait"]
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "ok"}\n{"text": "caf\xe9"}\n')
    with pytest.raises(DataError, match="byte 0xe9 at offset 28"):
        load_documents(str(tmp_path / "a.jsonl"))
    late_error = b"ok\n" * (SPLIT_ABOVE_BYTES // 3) + b"\xff\n"
    (tmp_path / "late.txt").write_bytes(late_error)
    with pytest.raises(DataError, match=f"byte 0xff at offset {len(late_error) - 2:,}"):
        load_documents(str(tmp_path / "late.txt"))


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("e.txt", " \n", {}, "is empty"),
        ("e.jsonl", "", {}, "is empty"),
        ("e.csv", "", {}, "is empty"),
        ("a.jsonl", '{"text": "x"}\n{"text"\n', {}, "line 2 is not JSON"),
        ("a.jsonl", '{"text": "x"}\n[1]\n', {}, "line 2 is not a JSON object"),
        ("a.jsonl", '{"text": "x"}\n{"txt": "y"}\n', {}, "line 2: there is no column 'text'; this row has txt"),
        ("a.jsonl", '{"text": 5}\n', {}, "line 1: column 'text' holds 5, which is not text"),
        ("a.jsonl", '{"a": "x", "b": "y"}\n', {}, "which column is the text.*'a', 'b'"),
        ("a.csv", "review,stars\nx,1\n", {"text": "reviews"}, "no column 'reviews'. Did you mean 'review'"),
        ("a.tsv", "a\tb\nc\n", {"pairs": "1,2"}, "line 2 has 1 columns, but the first row has 2"),
        ("a.csv", 'text\n"unclosed\n', {}, "is not CSV"),
        (
            "a.csv",
            "text,label\nHello, world,pos\n",
            {"label": "label"},
            "line 2 has 3 columns, but the first row has 2",
        ),
        ("a.tsv", "text\tlabel\nx\t\n", {"label": "label"}, "line 2: the label is empty"),
        ("a.csv", "plain words\nmore words\n", {}, "which column is the text.*'plain words'"),
        ("a.jsonl", '{"text": null}\n', {}, "line 1: column 'text' is null"),
        ("a.jsonl", '{"text": "x", "l": "y"}\n', {"text": "l", "label": "l"}, "the same column is named twice"),
        ("u16.txt", "\ufeffx".encode("utf-16-le").decode("latin1"), {}, "iconv -f utf-16"),
        ("bin.txt", "\x00\x01\xff", {}, "looks like a binary file"),
        ("list.json", '[{"text": "x"}]', {}, "is not in SQuAD format"),
        ("a.parquet", "nonsense", {}, "damaged or not a Parquet file"),
        ("a.json", "nonsense", {}, r"is not JSON.*--format jsonl"),
    ],
)
def test_malformed_files_name_the_location(tmp_path, name, content, options, message):
    (tmp_path / name).write_text(content, encoding="latin1" if name in ("u16.txt", "bin.txt") else "utf-8")
    with pytest.raises((DataError, ConfigError), match=message):
        list(open_source(str(tmp_path / name), **options).records())


def test_invalid_options_are_named(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "a.csv").write_text("x")
    file = str(tmp_path / "a.txt")
    for options, message in (
        ({"format": "jsonll"}, "format='jsonll' is not one of .*Did you mean 'jsonl'"),
        ({"errors": "ignore"}, "errors='ignore' is not one of"),
        ({"pairs": "a"}, "pairs='a' is not two columns"),
        ({"pairs": "a,b", "label": "c"}, "pairs names both columns"),
        ({"text": "a"}, "text='a' names a column, but a text file has no columns"),
        ({"separator": ""}, "separator='' is empty"),
    ):
        with pytest.raises(ConfigError, match=message):
            open_source(file, **options)
    with pytest.raises(DataError, match="Did you mean 'pydocs'"):
        open_source("pydoc")
    with pytest.raises(ConfigError, match="built in"):
        open_source("pydocs", text="a")
    with pytest.raises(DataError, match="several formats"):
        open_source(str(tmp_path))
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="holds no data file"):
        open_source(str(tmp_path / "none"))
    with pytest.raises(DataError, match="nowhere does not exist"):
        open_source(file, target_path="nowhere")
    with pytest.raises(DataError, match="the data path is empty"):
        open_source("")
    with pytest.raises(DataError, match="no file matches the glob"):
        open_source(str(tmp_path / "*.md"))
    for options in ({"separator": "x"}, {"tag_scheme": "any"}, {"text": ""}):
        with pytest.raises(ConfigError):
            open_source(str(tmp_path / "a.csv"), **options)


def test_relative_paths_resolve_in_the_data_folder_then_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "cwd").mkdir()
    (tmp_path / "data" / "both.txt").write_text("data")
    (tmp_path / "cwd" / "both.txt").write_text("cwd")
    (tmp_path / "cwd" / "mine.txt").write_text("cwd")
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("HEADWAY_DATA", str(tmp_path / "data"))
    assert locate("both.txt") == str(tmp_path / "data" / "both.txt")
    assert locate("mine.txt") == str(tmp_path / "cwd" / "mine.txt")
    assert locate("none.txt") == str(tmp_path / "data" / "none.txt")
    assert locate("mine.txt", str(tmp_path / "data")) == str(tmp_path / "data" / "mine.txt")


def test_parallel_files_and_globs_resolve_in_the_working_directory_too(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "cwd").mkdir()
    monkeypatch.setenv("HEADWAY_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path / "cwd")
    for side in ("en", "de"):
        (tmp_path / "cwd" / f"a.{side}").write_text("x\n")
    for path in ("a.{en,de}", "a.*", "a.en"):
        assert locate(path) == str(tmp_path / "cwd" / path)
    (tmp_path / "data" / "a.en").write_text("x\n")
    assert locate("a.{en,de}") == str(tmp_path / "data" / "a.{en,de}")


def test_format_lines_makes_every_line_a_document_even_empty_ones(tmp_path):
    (tmp_path / "a.txt").write_bytes("one\n\n two é \r\n\nlast".encode())
    source = open_source(str(tmp_path / "a.txt"), format="lines")
    assert list(source.documents()) == ["one", "", " two é \r", "", "last"]
    (tmp_path / "a.txt").write_text("\n\n")
    with pytest.raises(DataError, match="is empty"):
        list(open_source(str(tmp_path / "a.txt"), format="lines").documents())


# ── odd paths ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_glob_over_links_reads_each_file_once(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.txt").write_text("one")
    (tmp_path / "a" / "two.txt").symlink_to("one.txt")
    for name in ("loop", "again"):  # two loops: 2^40 paths for a glob that follows links blindly
        (tmp_path / "a" / name).symlink_to(tmp_path)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert load_documents(str(tmp_path / "**" / "*.txt")) == ["one"]
    assert load_documents(str(tmp_path / "**" / "b" / "*.txt")) == ["one"]  # by the link's own name
    assert load_documents(str(tmp_path / "a" / "*.txt")) == ["one"]
    assert load_documents(str(tmp_path)) == ["one"]


def test_a_glob_over_folders_that_link_to_each_other_ends(tmp_path):
    """Following every path without a circle would visit n! of them."""
    names = "abcdefghijkl"
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").write_text(name)
    for name in names:
        for target in names:
            (tmp_path / name / f"to-{target}").symlink_to(tmp_path / target)
    assert sorted(load_documents(str(tmp_path / "**" / "*.txt"))) == list(names)


def test_double_stars_match_as_the_glob_module_matches(tmp_path):
    for name in ("a.txt", "x/b.txt", "x/y/c.txt", "x/.hidden/d.txt", "x/.e.txt", "x/y/f.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    for pattern in ("**/*.txt", "x/**/*.txt", "**/y/*", "**", "*/**/c.txt", "x/**/.hidden/*"):
        expected = {f for f in glob.glob(str(tmp_path / pattern), recursive=True) if not os.path.isdir(f)}
        assert {str(f) for f in glob_files(str(tmp_path / pattern))} == expected, pattern


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("~nouser/x", "there is no home folder of '~nouser'"),
        ("a\0b", "holds a NUL character"),
        ("x" * 300, "cannot be read: File name too long"),
        ("caf\udce9.txt", "is not UTF-8, so a recipe cannot hold it; rename it"),
        ("nowhere.txt", "is a broken link to gone"),
        ("pipe.txt", "is not a regular file"),
        ("/dev/zero", "is not a regular file"),
    ],
)
def test_paths_that_are_no_files_are_refused(tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nowhere.txt").symlink_to("gone")
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(DataError, match=message):
        list(open_source(path).records())


def test_a_name_that_is_not_utf8_is_read_in_its_folder(tmp_path):
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("text")
    source = open_source(str(tmp_path))
    assert list(source.records()) == ["text"]
    json.dumps(source.identity).encode()


# ── odd content ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_quoted_csv_field_is_kept_exactly(tmp_path):
    texts = ["a\r\nb", "a\nb", "a\rb", "\r\n", 'say ""hi""', ' "x" ', "a,b;c\t"]
    with open(tmp_path / "a.csv", "w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([["text", "n"], *([text, "1"] for text in texts)])
    assert list(open_source(str(tmp_path / "a.csv"), pairs="text,n").read()) == [Pair(text, "1") for text in texts]


@given(st.lists(st.lists(st.text('a,;"\r\n\té '), min_size=2, max_size=2), min_size=1), st.sampled_from([0, 1]))
def test_csv_rows_are_those_of_the_csv_module(rows, quoting):
    output = io.StringIO(newline="")
    csv.writer(output, quoting=quoting).writerows(rows)
    ours = [row for _, row in csv_rows(iter(output.getvalue().split("\n")), ",", "a.csv")]
    assert ours == list(csv.reader(io.StringIO(output.getvalue(), newline=""), strict=True)) == rows


def test_a_column_name_that_occurs_twice_cannot_be_used(tmp_path):
    (tmp_path / "a.csv").write_text("text,n,n\nx,1,2\n")
    assert load_documents(str(tmp_path / "a.csv")) == ["x"]
    with pytest.raises(DataError, match="2 columns are called 'n'; rename all but one"):
        list(open_source(str(tmp_path / "a.csv"), label="n").records())


SQUAD = {"context": "abc", "qas": [{"id": "1", "question": "q", "answers": [{"text": "b", "answer_start": 1}]}]}


@pytest.mark.parametrize("wrong", [None, 1, "x", [None], {"a": 1}, True])
@pytest.mark.parametrize("key", ["context", "qas", "id", "question", "answers", "text", "answer_start"])
def test_squad_with_a_wrong_value_anywhere_is_refused_or_right(tmp_path, key, wrong):
    paragraph = json.loads(json.dumps(SQUAD))
    question = paragraph["qas"][0]
    holder = next(d for d in (paragraph, question, question["answers"][0]) if key in d)
    holder[key] = wrong
    (tmp_path / "a.json").write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    if (key, type(wrong)) in (("id", int), ("id", str), ("question", str), ("answer_start", int)):
        assert len(list(open_source(str(tmp_path / "a.json")).records())) == 1
    else:
        with pytest.raises(DataError, match=r"a\.json"):
            list(open_source(str(tmp_path / "a.json")).records())


def test_lines_that_span_several_blocks_are_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("headway.data.text_files.BATCH_BYTES", 7)
    lines = ["x" * n + "é" for n in (0, 1, 5, 6, 7, 8, 20, 3, 50)] + ["", "\r", "end"]
    for end in ("", "\n"):
        (tmp_path / "a.txt").write_bytes(("\n".join(lines) + end).encode())
        assert list(open_source(str(tmp_path / "a.txt"), format="lines").records()) == lines
    (tmp_path / "a.txt").write_bytes(b"good\nalso\nx" + b"y" * 30 + b"\xff\n")
    records = open_source(str(tmp_path / "a.txt"), format="lines").records()
    assert [next(records), next(records)] == ["good", "also"]
    with pytest.raises(DataError, match="byte 0xff at offset 41"):
        next(records)


def test_a_record_above_the_limit_is_refused_with_its_line(tmp_path, monkeypatch):
    monkeypatch.setattr("headway.data.text_files.BATCH_BYTES", 7)
    for module in ("text_files", "csv_rows", "readers"):
        monkeypatch.setattr(f"headway.data.{module}.MAX_RECORD_BYTES", 100)
    (tmp_path / "a.txt").write_text("short\n" + "x" * 200)
    with pytest.raises(DataError, match="line 2 is longer than 100 bytes"):
        list(open_source(str(tmp_path / "a.txt"), format="lines").records())
    (tmp_path / "a.csv").write_text('text\n"open\n' + "line\n" * 50)
    with pytest.raises(DataError, match=r"line 2 is not CSV: the quote .* never closed within 100 characters"):
        list(open_source(str(tmp_path / "a.csv")).records())


def test_a_fault_after_the_records_asked_for_does_not_matter(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": "b"}\nnonsense\n')
    assert list(islice(open_source(str(tmp_path / "a.jsonl")).records(), 2)) == ["a", "b"]

"""Corpora: what is built in, what is the user's, and what is held out."""

import datetime
import re
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data import CORPORA, TASKS, load_documents, pairs, split
from headway.data.tasks import in_words
from headway.errors import DataError


def test_pydocs_is_half_a_megabyte_of_english():
    documents = load_documents("pydocs")
    assert len(documents) > 50
    assert 300_000 < sum(map(len, documents)) < 1_000_000
    assert "statement" in "".join(documents)


def test_stdlib_is_some_ten_megabytes_of_python():
    documents = load_documents("stdlib")
    assert 5e6 < sum(map(len, documents)) < 30e6
    assert any("class OrderedDict" in d for d in documents)


@pytest.mark.parametrize("name", TASKS)
def test_tasks_are_seeded_and_built_in(name):
    first, again, other = (list(islice(pairs(name, seed=s), 50)) for s in (1, 1, 2))
    assert first == again != other
    question, answer = next(pairs(name, seed=0))
    assert f"{question}\t{answer}\n" in load_documents(name)[0]
    assert name in CORPORA


def test_tasks_have_the_right_answers():
    for question, answer in islice(pairs("reverse"), 100):
        assert answer == question[::-1]
    for question, answer in islice(pairs("sort"), 100):
        assert list(answer) == sorted(question)
    for question, answer in islice(pairs("arithmetic"), 100):
        assert int(answer) == eval(question.replace("+0", "+0"))  # our own digits and signs
    for question, answer in islice(pairs("dates"), 300):
        day = datetime.date.fromisoformat(answer)
        assert str(day.year) in question
        assert day.strftime("%b") in question
        assert re.search(rf"\b{day.day}(st|nd|rd|th)?\b", question)
    assert in_words(13) == "thirteen"
    assert in_words(999_999) == "nine hundred ninety-nine thousand nine hundred ninety-nine"


def test_dates_end_in_the_right_letters():
    found = {m.group() for q, _ in islice(pairs("dates"), 3000) for m in re.finditer(r"\b\d+(st|nd|rd|th)", q)}
    assert {"1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "23rd", "31st"} <= found
    assert not {"11st", "12nd", "13rd", "21th"} & found


@given(st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=40, unique=True), st.floats(0.05, 0.5))
def test_split_loses_and_repeats_nothing(documents, valid):
    try:
        train, held = split(documents, valid)
    except DataError:
        assert sum(map(len, documents)) < 20
        return
    assert train
    assert held
    assert sorted("".join(train) + "".join(held)) == sorted("".join(documents))


def test_adding_a_document_moves_no_other():
    documents = [f"document {i} " * 9 for i in range(200)]
    train, held = split(documents, 0.1)
    more_train, more_held = split(["a new one", *documents], 0.1)
    assert set(train) <= set(more_train)
    assert set(held) <= set(more_held)
    assert 8 <= len(held) <= 35


def test_one_text_holds_out_its_end():
    train, held = split(["abcdefghij"], 0.2)
    assert (train, held) == (["abcdefgh"], ["ij"])


def test_files_folders_and_globs(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_bytes("one\r\ntwo é".encode())
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.txt").write_text("three")
    (tmp_path / "c.md").write_text("four")
    assert load_documents(str(tmp_path / "a.txt")) == ["one\r\ntwo é"]  # line ends as they are
    assert load_documents(str(tmp_path)) == ["one\r\ntwo é", "three"]
    assert load_documents(str(tmp_path / "*.md")) == ["four"]
    assert load_documents("c.md", root=str(tmp_path)) == ["four"]
    monkeypatch.setenv("HEADWAY_DATA", str(tmp_path))
    assert load_documents("c.md") == ["four"]


def test_bad_text_is_named(tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 au lait")
    with pytest.raises(DataError, match=r"latin\.txt is not UTF-8: byte 0xe9 at offset 3"):
        load_documents(str(tmp_path / "latin.txt"))
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(DataError, match="is empty"):
        load_documents(str(tmp_path / "empty.txt"))
    with pytest.raises(DataError, match="Did you mean 'pydocs'"):
        load_documents("pydoc")
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"holds no \.txt file"):
        load_documents(str(tmp_path / "none"))
    with pytest.raises(DataError, match="give more text"):
        split(["a"], 0.1)

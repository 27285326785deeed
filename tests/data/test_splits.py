"""Splits: nothing lost, nothing duplicated, and no document ever moves."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.config import DataConfig
from headway.data import DataSource, Pair, SplitFractions, open_source, read_split, split, split_records
from headway.data.records import LabelledText, texts_of
from headway.data.splits import SPLIT_NAMES, CorpusScan, digest_of, record_digest, utf8_size
from headway.errors import ConfigError, DataError

DOCUMENTS = [f"document {i} " * 9 for i in range(400)]


@given(
    st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=40, unique=True),
    st.floats(0.05, 0.45),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from(["auto", "tail"]),
)
def test_split_loses_and_duplicates_nothing(documents, valid, test, mode):
    try:
        splits = split(documents, valid, test, mode)
    except DataError:
        assert sum(map(len, documents)) < 20
        return
    assert splits.train
    assert splits.valid
    assert bool(splits.test) == bool(test)
    assert sorted("".join(map("".join, splits))) == sorted("".join(documents))


def test_adding_a_document_or_a_test_split_moves_no_other_document():
    train, valid, _ = split(DOCUMENTS, 0.1)
    larger_train, larger_valid, _ = split(["a new one", *DOCUMENTS], 0.1)
    assert set(train) <= set(larger_train)
    assert set(valid) <= set(larger_valid)
    assert 20 <= len(valid) <= 70
    _, same_valid, test = split(DOCUMENTS, 0.1, 0.2)
    assert same_valid == valid
    assert 50 <= len(test) <= 110


def test_few_documents_hold_out_their_end():
    assert split(["abcdefghij"], 0.2) == (["abcdefgh"], ["ij"], [])
    assert split(["abcde", "fghij"], 0.2, 0.4) == (["abcd"], ["ij"], ["e", "fgh"])


def test_too_few_documents_and_bad_fractions_are_refused():
    with pytest.raises(DataError, match="too short to be split"):
        split(["a"], 0.1)
    with pytest.raises(DataError, match="too few to split by hash"):
        split(["a", "b"], 0.1, 0.0, "hash")
    with pytest.raises(ConfigError, match=r"valid_fraction=0\.5, test_fraction=0\.5: .* sum to less than 1"):
        SplitFractions(0.5, 0.5)
    with pytest.raises(ConfigError, match=r"test_fraction=0\.5"):
        DataConfig().replace(valid_fraction=0.5, test_fraction=0.5)
    with pytest.raises(ConfigError, match=r"split='tale' is not one of .*Did you mean 'tail'"):
        SplitFractions(split="tale")


def test_pairs_with_the_same_source_share_a_split():
    records = [Pair(f"s{i % 50}", f"t{i}") for i in range(500)]
    source = DataSource("pairs", "pairs", lambda: iter(records))
    fractions = SplitFractions(0.2, 0.1)
    splits = [list(split_records(source, fractions, name)) for name in ("train", "valid", "test")]
    assert sum(map(len, splits)) == 500
    train, valid, test = ({pair.source for pair in pairs} for pairs in splits)
    assert train
    assert valid
    assert test
    assert not train & valid
    assert not train & test


def test_pairs_read_as_text_are_split_like_the_pairs():
    """The training and validation text of a language model share no pair."""
    data = DataConfig(path="dates")
    train, valid = ({line for d in read_split(data, name) for line in d.splitlines()} for name in ("train", "valid"))
    assert not {line.split("\t")[0] for line in train} & {line.split("\t")[0] for line in valid}
    assert len(train) > 5 * len(valid) > 1000


def test_few_records_hold_out_the_last_ones():
    records = [Pair(f"s{i}", f"t{i}") for i in range(10)]
    source = DataSource("pairs", "pairs", lambda: iter(records))
    assert list(split_records(source, SplitFractions(0.2), "valid")) == records[8:]
    assert list(split_records(source, SplitFractions(0.2), "train")) == records[:8]


def test_a_separate_validation_path_is_used(tmp_path):
    (tmp_path / "a.txt").write_text("learn from this " * 20)
    (tmp_path / "b.txt").write_text("hold this out")
    data = DataConfig(path="a.txt", valid_path="b.txt", root=str(tmp_path))
    assert list(read_split(data, "train")) == ["learn from this " * 20]
    assert list(read_split(data, "valid")) == ["hold this out"]


def test_each_source_of_a_mixture_is_split_by_itself(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name * 100)
    data = DataConfig(mix={"a.txt": 1.0, "b.txt": 3.0}, root=str(tmp_path))
    assert list(read_split(data, "train")) == ["a" * 90, "b" * 90]
    assert list(read_split(data, "valid")) == ["a" * 10, "b" * 10]
    with pytest.raises(ConfigError, match=r"weight of 'a\.txt' is -1"):
        DataConfig(mix={"a.txt": -1.0})


def test_the_split_of_the_built_in_corpus_does_not_change():
    """A change would alter every published number: Python 3.11 has 79 topics, 7 of them held out."""
    data = DataConfig()
    valid = list(read_split(data, "valid"))
    assert 4 <= len(valid) <= 12
    assert not set(valid) & set(read_split(data, "train"))
    assert len(valid) + len(list(read_split(data, "train"))) == len(list(open_source("pydocs").documents()))


@pytest.mark.parametrize("fraction", [float("nan"), float("inf"), -float("inf"), -0.1, 1.0])
def test_fractions_that_are_no_fractions_are_refused(fraction):
    with pytest.raises(ConfigError, match="valid_fraction"):
        SplitFractions(fraction)
    with pytest.raises(ConfigError, match="test_fraction"):
        SplitFractions(0.1, fraction)


RECORDS = [*DOCUMENTS, "", *DOCUMENTS[:9], Pair("a", "é"), LabelledText("a", "b"), Pair("a", "é"), "x" * 3000]


@pytest.mark.parametrize("piece_chars", [10, 1 << 20])
def test_batches_of_any_size_give_the_same_scan(piece_chars, monkeypatch):
    monkeypatch.setattr("headway.data.splits.PIECE_CHARS", piece_chars)
    fractions = SplitFractions(0.3, 0.2)
    one_by_one, in_batches = CorpusScan(fractions), CorpusScan(fractions)
    splits = [SPLIT_NAMES[one_by_one.add_batch([record]).splits[0]] for record in RECORDS]
    for start in range(0, len(RECORDS), 50):
        stats = in_batches.add_batch(RECORDS[start : start + 50])
        expected = dict(zip(RECORDS[start : start + 50], splits[start : start + 50], strict=True))
        assert [SPLIT_NAMES[i] for i in stats.splits] == [expected[record] for record in stats.distinct]
    assert one_by_one.result() == in_batches.result()
    assert one_by_one.n_bytes == sum(len(text.encode()) for record in RECORDS for text in texts_of(record))


def test_digests_do_not_depend_on_how_a_text_is_cut(monkeypatch):
    text = "é😀x" * 999
    whole = hashlib.sha256(text.encode()).digest()
    monkeypatch.setattr("headway.data.splits.PIECE_CHARS", 10)
    assert digest_of(text) == whole
    assert utf8_size(text) == len(text.encode())
    large = [Pair(text, "a"), Pair("a", text), Pair(text, "b"), LabelledText(text, "a"), LabelledText(text, "b")]
    assert len({record_digest(record) for record in large}) == len(large)

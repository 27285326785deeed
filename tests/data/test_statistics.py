"""Statistics: counted in batches and pieces, equal to counting record by record."""

import random
from collections import Counter

import pytest

from headway.data import DataSource, LabelledText, SplitFractions, open_source
from headway.data.statistics import summarize
from headway.tokenizers import train
from headway.tokenizers.pre_tokenizers import WORD_PATTERNS, split_words, text_pieces


@pytest.mark.parametrize("kind", ["char", "word"])
@pytest.mark.parametrize("encode_chars", [30, 1 << 20])
def test_a_summary_equals_a_naive_count(tmp_path, monkeypatch, kind, encode_chars):
    monkeypatch.setattr("headway.data.statistics.ENCODE_BATCH_CHARS", encode_chars)
    rng = random.Random(0)
    lines = [" ".join(rng.choices(["a", "bc", "é", "d,"], k=rng.randrange(0, 30))) for _ in range(300)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    source, tokenizer = open_source(str(tmp_path / "a.txt"), format="lines"), train(kind, lines[:200])
    summary = summarize(source, tokenizer, SplitFractions(0.2, 0.1), samples=2)
    lengths = [len(tokenizer.encode(line)) for line in lines]
    assert (summary.records, summary.tokens) == (300, sum(lengths))
    assert summary.bytes == sum(len(line.encode()) for line in lines)
    assert summary.characters == sum(map(len, lines))
    assert summary.duplicates == 300 - len(set(lines))
    assert summary.longest["number"] == lengths.index(max(lengths)) + 1
    assert sum(summary.lengths.values()) == 300
    assert summary.lengths["5-8"] == sum(5 <= length <= 8 for length in lengths)
    counts = Counter(id for line in lines for id in tokenizer.encode(line))
    assert [n for _, n in summary.top_tokens] == [n for _, n in counts.most_common(10)]
    assert sum(sizes["bytes"] for sizes in summary.split.values()) == summary.bytes
    assert summary.samples == lines[:2]
    assert summarize(source, tokenizer, limit=7).records == 7


def test_equal_records_count_as_often_as_they_occur():
    records = [LabelledText("x", "yes"), LabelledText("x", "no"), LabelledText("x", "yes")]
    source = DataSource("labels", "labelled", lambda: iter(records))
    summary = summarize(source, train("char", ["x"]), SplitFractions(0, 0))
    assert summary.labels == {"yes": 2, "no": 1}
    assert (summary.records, summary.tokens, summary.duplicates) == (3, 3, 1)


@pytest.mark.parametrize("pattern", ["punctuation", "spaces", "whitespace"])
def test_pieces_of_a_text_have_the_words_of_the_text(pattern):
    """Wherever a piece ends in a word and the next begins with a space, which is nearly everywhere."""
    rng = random.Random(0)
    text = "".join(rng.choices(["word", " ", "  ", "\n", " \n", "it's", "...", "é", "\t"], k=3000))
    pieces = list(text_pieces(text, 200))
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 200
    words = [word for piece in pieces for word in split_words(piece, WORD_PATTERNS[pattern])]
    assert words == split_words(text, WORD_PATTERNS[pattern])


def test_a_vocabulary_of_words_is_not_filled_by_long_ones(monkeypatch):
    monkeypatch.setattr("headway.tokenizers.word.MAX_LONG_WORDS_CHARS", 3000)
    words = [letter * 1200 for letter in "abcdef"]
    tokenizer = train("word", [f"short {' '.join(words)} short {words[0]}"] * 2)
    assert [tokenizer.unk_id in tokenizer.encode(f" {word}") for word in words] == [
        False,
        False,
        True,
        True,
        True,
        True,
    ]
    assert tokenizer.unk_id not in tokenizer.encode("short")

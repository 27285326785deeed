"""Texts are split into words without losing a character, and every word is tagged at its first token."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headway import tokenizers
from headway.data import IGNORE_INDEX, TaggedSentence, TaggingDataset
from headway.data.words import NO_TOKEN, encode_words, split_words
from headway.errors import DataError

TEXT = ["The cat sat on the mat in Paris, and Jean-Luc looked at it. über naïve 1987 日本語 don't AT&T (U.S.)"] * 5
KINDS = {kind: tokenizers.train(kind, TEXT, None if kind == "char" else 300) for kind in tokenizers.KINDS}
KINDS["word in spaces"] = tokenizers.train("word", TEXT, pre_tokenizer="spaces")
KINDS["lower-case wordpiece"] = tokenizers.train("wordpiece", TEXT, 300, lowercase=True)

# Letters, marks inside words, accents of their own, an emoji of several characters, characters without width.
CHARS = "aZé日9 .,'’-/&@_:()$\n\t\u00a0\u0301\u200b\u200d👩💻"


@given(st.text(st.one_of(st.sampled_from(CHARS), st.characters(exclude_categories=["Cs"])), max_size=30))
def test_words_are_spans_of_the_text_that_cover_every_character_but_spaces(text):
    words = split_words(text)
    covered = set()
    end = 0
    for word in words:
        assert word.text == text[word.start : word.end] != ""
        assert not any(char.isspace() for char in word.text)
        assert word.start >= end
        end = word.end
        covered.update(range(word.start, word.end))
    assert {i for i, char in enumerate(text) if not char.isspace()} == covered


@given(st.lists(st.text("abc", min_size=2, max_size=4), min_size=1), st.sampled_from([" ", "  ", "\n", "\t"]))
def test_words_of_letters_are_split_at_whitespace_only(words, space):
    assert [word.text for word in split_words(space.join(words))] == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Peter Blackburn visits Rome.", "Peter Blackburn visits Rome ."),
        ("Germany's U.S. envoy (Jean-Luc) left.", "Germany 's U.S. envoy ( Jean-Luc ) left ."),
        ("Rome’s 1,000 seats, 3.5 km at 10:30", "Rome ’s 1,000 seats , 3.5 km at 10:30"),
        ("O'Brien of AT&T: a_b@c.org/x", "O'Brien of AT&T : a_b@c.org/x"),
        ("W. H. Auden e.g. here", "W. H. Auden e.g. here"),
        ("cats' -- yes...", "cats ' - - yes . . ."),
        ('"Quoted" $5 100%', '" Quoted " $ 5 100 %'),
        ("naïve é日本", "naïve é日本"),
        ("word,", "word ,"),
        ("a,b", "a , b"),
        ("", ""),
        (" \n\t ", ""),
    ],
)
def test_punctuation_is_split_off_as_in_the_conll_corpora(text, words):
    assert [word.text for word in split_words(text)] == words.split()


# ── tokens ────────────────────────────────────────────────────────────────────────────────────────────────────────

WORDS = ["The", "cat", "Paris", ",", "Jean-Luc", "naïve", "über", "1987", "日本", "don't", "AT&T", "U.S.", "zz", "🎉"]


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(st.sampled_from(WORDS), max_size=12))
@example([])
def test_the_first_token_of_a_word_is_the_first_that_covers_one_of_its_characters(kind, words):
    tokenizer = KINDS[kind]
    [encoded] = encode_words([words], tokenizer)
    text = " ".join(words)
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert encoded.ids == ids
    assert len(encoded.first_tokens) == len(words)
    start = 0
    for word, token in zip(words, encoded.first_tokens, strict=True):
        chars = range(start, start + len(word))
        covering = [i for i, (a, b) in enumerate(offsets) if set(range(a, b)) & set(chars)]
        assert token == (covering[0] if covering else NO_TOKEN)
        start += len(word) + 1


def test_a_word_that_the_tokenizer_drops_has_no_token_and_its_neighbours_keep_theirs():
    [encoded] = encode_words([["The", "\u200b", "", "cat", "\u200b"]], KINDS["wordpiece"])
    assert encoded.first_tokens[1:3] == [NO_TOKEN, NO_TOKEN]
    assert encoded.first_tokens[4] == NO_TOKEN
    assert encoded.first_tokens[0] == 0
    assert encoded.ids[encoded.first_tokens[3] :] == KINDS["wordpiece"].encode("cat")


@pytest.mark.parametrize("kind", KINDS)
def test_sentences_are_encoded_alike_alone_and_together(kind):
    sentences = [WORDS[i:j] for i in range(4) for j in range(i, 14, 3)]
    together = encode_words(sentences, KINDS[kind])
    assert together == [encode_words([sentence], KINDS[kind])[0] for sentence in sentences]


def test_a_word_with_spaces_inside_is_one_word():
    [encoded] = encode_words([["the cat", "sat"]], KINDS["wordpiece"])
    assert encoded.first_tokens == [0, len(KINDS["wordpiece"].encode("the cat"))]


# ── training ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=9), min_size=1, max_size=4), st.integers(4, 40))
def test_a_tag_is_learned_at_the_first_token_of_its_word_and_nowhere_else(kind, sentences, context):
    """Every word has a tag of its own, so that a target tells its word. What the context cuts off has none."""
    tokenizer = KINDS[kind]
    tags = [str(i) for i in range(9)]
    records = [TaggedSentence(tuple(words), tuple(tags[: len(words)])) for words in sentences]
    if not any(first >= 0 for words in encode_words(sentences, tokenizer) for first in words.first_tokens):
        return
    dataset = TaggingDataset(records, tokenizer, context, tags)
    batch = dataset.collate(np.arange(len(dataset)))
    n_leading = tokenizer.build_inputs([-1])[0].index(-1)
    capacity = context - len(tokenizer.build_inputs([])[0])
    n_truncated = 0
    for row, encoded in enumerate(encode_words(sentences, tokenizer)):
        firsts = {n_leading + first: tag for tag, first in enumerate(encoded.first_tokens) if 0 <= first < capacity}
        targets = dict(enumerate(batch.tags[row].tolist()))
        assert {column: tag for column, tag in targets.items() if tag != IGNORE_INDEX} == firsts
        assert batch.ids[row][batch.mask[row]].tolist() == tokenizer.build_inputs(encoded.ids[:capacity])[0]
        n_truncated += any(first >= capacity for first in encoded.first_tokens)
    assert dataset.n_truncated == n_truncated
    assert dataset.label_counts.tolist() == [int((batch.tags == tag).sum()) for tag in range(9)]


def test_wrong_tags_are_refused_by_their_sentence():
    sentences = [TaggedSentence(("The", "cat"), ("O", "B-X"))]
    with pytest.raises(DataError, match=r"example 1, 'The cat': label 'B-X' is not one of O, B-PER\."):
        TaggingDataset(sentences, KINDS["wordpiece"], 20, ["O", "B-PER"])
    with pytest.raises(DataError, match="sentence 1 has 2 words, but 1 tag: give every word a tag"):
        TaggingDataset([TaggedSentence(("The", "cat"), ("O",))], KINDS["wordpiece"], 20)
    with pytest.raises(DataError, match="there are no tagged sentences"):
        TaggingDataset([], KINDS["wordpiece"], 20)

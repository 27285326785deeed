"""The steps of a tokenizer lead to the tokens that it returns, and training chooses the merges by their counts."""

import json
from collections import Counter
from dataclasses import astuple
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway import tokenizers
from headway.errors import InputError
from headway.tokenizers.bpe import count_words, learn_merges
from headway.tokenizers.segmentation import explain_segmentation

TEXTS = ["the lowest lower low newest newer new wider widest", "don't unlow the widow's newt; déjà vu"] * 3
SIZES = {"bpe": 300, "wordpiece": 60, "unigram": 50}
TOKENIZERS = {kind: tokenizers.train(kind, TEXTS, size) for kind, size in SIZES.items()}
PIECES = ["low", "new", "wid", "est", "er", "the", "un", "'s", "déjà", "l", "w", "e", " ", " ", "\n", ",", "Z中"]
ANY_TEXT = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)  # several merges apply to most words


def merges_of(tokenizer):
    merges = json.loads(tokenizer.backend.to_str())["model"]["merges"]
    return [tuple(merge) if isinstance(merge, list) else tuple(merge.split(" ")) for merge in merges]


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=40)
@given(text=ANY_TEXT)
@example(text="")
def test_the_pieces_are_those_of_encode(kind, text):
    words = explain_segmentation(TOKENIZERS[kind], text)
    assert [id for word in words for id in word.ids] == TOKENIZERS[kind].encode(text)
    assert all(word.steps[-1].pieces == word.pieces for word in words if word.steps)


@settings(max_examples=40)
@given(text=ANY_TEXT)
def test_each_merge_is_the_one_of_the_lowest_rank(text):
    merges = merges_of(TOKENIZERS["bpe"])
    for word in explain_segmentation(TOKENIZERS["bpe"], text):
        pieces = word.start
        for step in word.steps:
            assert step.rank == min(merges.index(pair) for pair in pairwise(pieces) if pair in merges)
            assert step.merged == merges[step.rank]
            assert "".join(step.pieces) == "".join(pieces)
            assert len(step.pieces) == len(pieces) - 1
            pieces = step.pieces
        assert not any(pair in merges for pair in pairwise(pieces))


def segmentations(word):
    """Every way to cut a word into pieces."""
    if not word:
        yield []
    for i in range(1, len(word) + 1):
        yield from ([word[:i], *rest] for rest in segmentations(word[i:]))


@pytest.mark.parametrize("word", ["lowest", "newer", "widow", "the"])
def test_unigram_takes_the_segmentation_with_the_highest_score(word):
    tokenizer = TOKENIZERS["unigram"]
    scores = dict(json.loads(tokenizer.backend.to_str())["model"]["vocab"])
    (segmentation,) = explain_segmentation(tokenizer, word)
    best = max(sum(map(scores.get, pieces)) for pieces in segmentations(f"▁{word}") if scores.keys() >= set(pieces))
    assert sum(step.score for step in segmentation.steps) == pytest.approx(best)


def test_wordpiece_takes_the_longest_match_each_time():
    (word,) = explain_segmentation(TOKENIZERS["wordpiece"], "Lowest")
    vocab, rest = TOKENIZERS["wordpiece"].vocab, "lowest"
    for i, step in enumerate(word.steps):
        piece = step.piece.removeprefix("##")
        longer = [rest[:n] for n in range(len(piece) + 1, len(rest) + 1)]
        assert rest.startswith(piece)
        assert step.n_tried == len(longer)
        assert not any(("##" if i else "") + candidate in vocab for candidate in longer)
        rest = rest.removeprefix(piece)
    assert rest == ""
    (unknown,) = explain_segmentation(TOKENIZERS["wordpiece"], "lowQ")
    assert unknown.pieces == ["[UNK]"]


def test_tokenizers_without_steps_are_refused():
    for kind in ("char", "word"):
        with pytest.raises(InputError, match="it has no merges and no steps; use one of kind bpe"):
            explain_segmentation(tokenizers.train(kind, TEXTS), "low")
    with pytest.raises(InputError, match="a word of 1,500 characters has too many steps"):
        explain_segmentation(TOKENIZERS["bpe"], "a" * 1500)


def test_an_added_token_that_the_steps_do_not_follow_is_told():
    tokenizer = tokenizers.train("bpe", TEXTS, 300)
    tokenizer.backend.add_tokens(["lowest"])
    with pytest.raises(InputError, match="the steps do not lead to the tokens of 'the lowest'"):
        explain_segmentation(tokenizer, "the lowest")


# ── training ──────────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=25)
@given(texts=st.lists(st.text(st.sampled_from("ab cé"), min_size=1, max_size=25), min_size=1, max_size=8),
       min_frequency=st.integers(0, 3))  # fmt: skip
@example(texts=["aaaa aaaaa", "abab"], min_frequency=0)
def test_the_learned_merges_are_those_of_the_trainer(texts, min_frequency):
    word_counts = Counter()
    trained = tokenizers.train("bpe", count_words(texts, word_counts), 280, min_frequency=min_frequency)
    merges = learn_merges(word_counts, 1000, min_frequency=min_frequency)[: len(merges_of(trained))]
    assert [(merge.left, merge.right) for merge in merges] == merges_of(trained)


def test_the_count_of_a_merge_is_that_of_its_pair_at_that_time():
    """Sennrich et al. 2016, §3.2: low ×5, lower ×2, newest ×6, widest ×3: first e + s, then es + t, both 9 times."""
    counts = {"low": 5, "lower": 2, "newest": 6, "widest": 3}
    merges = learn_merges(counts, 4)
    assert [astuple(merge) for merge in merges] == [("e", "s", 9), ("es", "t", 9), ("l", "o", 7), ("lo", "w", 7)]


def test_words_are_counted_as_training_sees_them():
    counts = Counter()
    assert list(count_words(["a cat, a", "é"], counts)) == ["a cat, a", "é"]
    assert counts == {"a": 1, "Ġcat": 1, ",": 1, "Ġa": 1, "Ã©": 1}

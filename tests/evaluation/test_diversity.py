"""Diversity of texts, on constructed texts with known values, and against sacreBLEU."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU

from headway.errors import InputError
from headway.evaluation.diversity import _bleu, distinct, repetition, self_bleu


def test_distinct_n_counts_different_ngrams():
    assert distinct(["a b a b"], 1) == 2 / 4
    assert distinct(["a b a b"], 2) == 2 / 3
    assert distinct(["a b", "a b"], 2) == 1 / 2  # over all texts
    assert distinct(["a", "b"], 2) == 0.0  # no bigram spans two texts


def test_repetition_is_within_a_text():
    assert repetition(["a b c d", "a b c d"]) == 0.0
    assert repetition(["a b c d a b c d"]) == pytest.approx(1 - 4 / 5)
    assert repetition(["a b c d a b c d", "a"]) == pytest.approx((1 - 4 / 5) / 2)  # too short for a 4-gram: 0
    assert repetition(["a a a"], 2) == 1 / 2


def test_self_bleu_is_1_for_equal_texts_and_0_without_common_words():
    assert self_bleu(["a b c d e", "a b c d e", "a b c d e"]) == pytest.approx(1.0)
    assert self_bleu(["a b c d", "e f g h"]) == 0.0
    assert self_bleu(["", ""]) == 1.0
    assert 0 < self_bleu(["a b c d", "a b e f"]) < 1
    with pytest.raises(InputError, match="self-BLEU of 1 text compares nothing: give at least 2"):
        self_bleu(["a"])


WORDS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=9)


@settings(max_examples=60)
@given(hypothesis=WORDS, references=st.lists(WORDS, min_size=1, max_size=3))
def test_bleu_is_that_of_sacrebleu(hypothesis, references):
    metric = BLEU(tokenize="none", effective_order=True)
    expected = metric.sentence_score(" ".join(hypothesis), [" ".join(words) for words in references]).score / 100
    assert _bleu(hypothesis, references) == pytest.approx(expected, abs=1e-9)

"""Constrained decoding: the tags of a sentence are always valid, and of all valid sequences the most probable one."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data.tag_schemes import is_valid, scheme_of
from headway.prediction.viterbi import LOWEST_LOG_PROB, TagRules, decode_tags, viterbi

TYPES = ("PER", "LOC")
ALL_TAGS = ("O", *(f"{prefix}-{type}" for prefix in "BIES" for type in TYPES))
BIO = [tag for tag in ALL_TAGS if tag[0] in "OBI"]
# Numbers of every size, or ties and many impossible tags.
ODD_NUMBERS = st.sampled_from([0.0, 1.0, -np.inf, -np.inf, -np.inf, np.nan, -1e5, 1e-9])
LOGITS = st.sampled_from([st.floats(-30, 30), ODD_NUMBERS, st.sampled_from([0.0, -np.inf])])


@st.composite
def label_sets(draw, tags=ALL_TAGS):
    """Any tags in any order: BIO, BIOES, parts of them, and tags that have no scheme."""
    chosen = draw(st.one_of(st.just(BIO), st.just(tags), st.sets(st.sampled_from(tags), min_size=1).map(sorted)))
    return draw(st.permutations(chosen))


def arrays(draw, n_words, n_tags):
    values = draw(st.lists(draw(LOGITS), min_size=n_words * n_tags, max_size=n_words * n_tags))
    return np.array(values, dtype=np.float32).reshape(n_words, n_tags)


@st.composite
def scored_sentences(draw, max_words=8):
    labels = draw(label_sets())
    return labels, arrays(draw, draw(st.integers(0, max_words)), len(labels))


@given(scored_sentences())
def test_decoded_tags_are_always_a_valid_sequence(sentence):
    labels, scores = sentence
    ids = decode_tags(scores, TagRules.of(labels))
    assert ids.shape == (len(scores),)
    if scheme := scheme_of(labels):
        assert is_valid([labels[id] for id in ids], scheme)


@given(scored_sentences(max_words=4))
def test_viterbi_finds_the_best_of_all_valid_sequences(sentence):
    """By brute force. Ties make several sequences the best, so the scores are compared."""
    labels, scores = sentence
    scheme, rules = scheme_of(labels), TagRules.of(labels)
    if rules is None or len(scores) == 0 or len(labels) ** len(scores) > 7000:
        return
    finite = np.nan_to_num(scores.astype(np.float64), nan=LOWEST_LOG_PROB, neginf=LOWEST_LOG_PROB)

    def score(ids):
        return sum(finite[t, id] for t, id in enumerate(ids))

    candidates = product(range(len(labels)), repeat=len(scores))
    best = max(score(ids) for ids in candidates if is_valid([labels[id] for id in ids], scheme))
    assert score(viterbi(scores, rules)) == pytest.approx(best, rel=1e-9, abs=1e-6)


@given(scored_sentences())
def test_the_best_tag_of_each_word_is_kept_if_that_is_valid(sentence):
    labels, scores = sentence
    rules, argmax = TagRules.of(labels), scores.argmax(axis=1)
    scheme = scheme_of(labels)
    is_allowed = scheme is None or is_valid([labels[id] for id in argmax], scheme)
    assert rules is None or rules.allow(argmax) == is_allowed
    if is_allowed:
        assert decode_tags(scores, rules).tolist() == argmax.tolist()
    assert decode_tags(scores, None).tolist() == argmax.tolist()


@given(st.sampled_from([[*BIO], [*ALL_TAGS]]), st.integers(1, 60), st.integers(0, 10**6))
def test_long_random_sentences_are_valid_and_never_beaten_by_their_neighbours(labels, n_words, seed):
    """Of the valid sequences that differ in one or two adjacent tags, none scores higher."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(scale=3, size=(n_words, len(labels)))
    rules, scheme = TagRules.of(labels), scheme_of(labels)
    ids = viterbi(scores, rules)
    assert is_valid([labels[id] for id in ids], scheme)
    best = scores[np.arange(n_words), ids].sum()
    for t in rng.integers(0, n_words, size=3):
        for pair in product(range(len(labels)), repeat=min(2, n_words - t)):
            other = ids.copy()
            other[t : t + 2] = pair
            if rules.allow(other):
                assert scores[np.arange(n_words), other].sum() <= best + 1e-9


def test_an_entity_that_one_word_spoils_is_repaired():
    """Without constraints: O I-PER. The second word can only be I-PER after B-PER, so one of the two gives way."""
    labels = ["O", "B-PER", "I-PER"]
    rules = TagRules.of(labels)
    sure_of_person = np.log([[0.5, 0.4, 0.1], [0.1, 0.1, 0.8]])
    assert [labels[id] for id in decode_tags(sure_of_person, rules)] == ["B-PER", "I-PER"]
    sure_of_outside = np.log([[0.98, 0.01, 0.01], [0.45, 0.1, 0.45 + 1e-6]])
    assert [labels[id] for id in decode_tags(sure_of_outside, rules)] == ["O", "O"]
    assert [labels[id] for id in decode_tags(sure_of_outside, None)] == ["O", "I-PER"]


@pytest.mark.parametrize("impossible", [-np.inf, np.nan])
@pytest.mark.parametrize("labels", [["I-PER", "B-PER", "O"], ["E-PER", "I-PER", "B-PER", "S-PER"]])
def test_where_every_valid_sequence_is_impossible_one_is_still_found(labels, impossible):
    """Only the first tag is possible, and no sentence begins with it."""
    scores = np.full((4, len(labels)), impossible)
    scores[:, 0] = 0.0
    ids = decode_tags(scores, TagRules.of(labels))
    assert is_valid([labels[id] for id in ids], scheme_of(labels))


def test_tags_without_a_scheme_have_no_rules():
    assert TagRules.of(["NOUN", "VERB"]) is None
    assert TagRules.of(["O", "I-PER", "B-LOC", "I-LOC"]) is None


def test_a_sentence_without_words_has_no_tags():
    rules = TagRules.of(BIO)
    assert decode_tags(np.empty((0, len(BIO))), rules).tolist() == []
    assert viterbi(np.empty((0, len(BIO))), rules).tolist() == []

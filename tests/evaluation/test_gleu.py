"""GLEU: identities, the penalty for errors that are kept, and the published scores of JFLEG."""

import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import InputError
from headway.evaluation.gleu import gleu, reference_counts, sentence_gleu

RIGHT = "She buys a red car and drives home ."
WRONG = "She buy an red car and drives home ."
WORDS = st.lists(st.sampled_from(["a", "b", "c", "d", "e"]), min_size=5, max_size=9).map(" ".join)


def test_the_reference_itself_scores_100():
    assert gleu([RIGHT], [[RIGHT]], [WRONG]) == pytest.approx(100)
    assert sentence_gleu(RIGHT, [RIGHT], WRONG) == pytest.approx(100)


def test_keeping_an_error_costs_more_than_a_new_one():
    """Both hypotheses differ from the reference in one word; only one of them is what the source had."""
    kept, new = "She buy a red car and drives home .", "She bought a red car and drives home ."
    assert gleu([kept], [[RIGHT]], [WRONG]) < gleu([new], [[RIGHT]], [WRONG])


def test_counts_by_hand():
    """Source a b c d, reference a x c d, hypothesis a b c d: unigrams 3 − 1, bigrams 1 − 2 → 0, and so on."""
    counts = reference_counts(["a b c d"], [["a x c d"]], ["a b c d"])[0, 0]
    assert counts.tolist() == [4, 4, 2, 4, 0, 3, 0, 2, 0, 1]
    smoothed = [2 / 4, 1 / 3, 1 / 2, 1 / 1]
    assert sentence_gleu("a b c d", ["a x c d"], "a b c d") == pytest.approx(100 * math.prod(smoothed) ** 0.25)


def test_a_short_hypothesis_pays_the_brevity_penalty():
    assert sentence_gleu("a b c d", ["a b c d e"], "z") == pytest.approx(100 * math.exp(1 - 5 / 4))


@given(WORDS, WORDS, WORDS)
def test_gleu_is_bleu_without_what_was_wrongly_kept(hypothesis, reference, source):
    """With a source that shares nothing with the hypothesis GLEU is BLEU; no source gives more."""
    unrelated = " ".join("xyz")
    best = gleu([hypothesis], [[reference]], [unrelated])
    assert 0 <= gleu([hypothesis], [[reference]], [source]) <= best + 1e-9
    assert best <= 100


def test_bleu_is_the_same_as_sacrebleu_if_the_source_is_unrelated():
    from sacrebleu.metrics import BLEU

    hypotheses = [WRONG, "The cat sat on the mat ."]
    references = [RIGHT, "The cat sits on a mat ."]
    expected = BLEU(tokenize="none", smooth_method="none", force=True).corpus_score(hypotheses, [references]).score
    assert gleu(hypotheses, [references], ["x", "y"]) == pytest.approx(expected)


def test_several_references_are_averaged_over_draws():
    """Between the scores against each reference, and the same every time."""
    others = ["She bought one red car and drove off ."]
    both = gleu([RIGHT], [[RIGHT], others], [WRONG])
    assert both == gleu([RIGHT], [[RIGHT], others], [WRONG])
    assert gleu([RIGHT], [others], [WRONG]) < both < 100


@pytest.mark.parametrize(("references", "sources"), [([["a"]], ["a", "b"]), ([["a", "b"]], ["a"]), ([], ["a"])])
def test_lines_must_be_as_many(references, sources):
    with pytest.raises(InputError, match="line by line"):
        gleu(["a"], references, sources)


def test_the_sources_of_jfleg_score_what_its_leader_board_says():
    """keisks/jfleg, README: SOURCE 38.21 (dev) and 40.54 (test)."""
    folder = Path(os.environ.get("HEADWAY_DATA", "data")) / "jfleg"
    if not folder.is_dir():
        pytest.skip("JFLEG is not below $HEADWAY_DATA")
    for part, published in (("dev", 38.21), ("test", 40.54)):
        source = (folder / f"{part}.src").read_text().splitlines()
        references = [(folder / f"{part}.ref{i}").read_text().splitlines() for i in range(4)]
        assert gleu(source, references, source) == pytest.approx(published, abs=0.006)

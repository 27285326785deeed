"""Metrics: BLEU and chrF equal sacreBLEU's, and files of different lengths are refused."""

import math

import pytest
import sacrebleu

from headway.errors import InputError
from headway.evaluation import metrics

REFERENCES = ["Ein Hund spielt im Schnee.", "Zwei Männer gehen nach Hause.", "Das ist gut."] * 5
HYPOTHESES = ["Ein Hund spielt im Schnee.", "Zwei Männer laufen nach Haus.", "Das ist Gut."] * 5


def test_scores_and_signatures_equal_sacrebleus():
    bleu, chrf = metrics.score(HYPOTHESES, [REFERENCES])
    assert bleu.score == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert chrf.score == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert "tok:13a" in bleu.signature
    assert "case:mixed" in bleu.signature
    lowercased = metrics.score(HYPOTHESES, [REFERENCES], lowercase=True)[0]
    assert lowercased.score == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], lowercase=True).score > bleu.score
    both = metrics.score(HYPOTHESES, [REFERENCES, HYPOTHESES])[0]
    assert both.score == pytest.approx(100.0)


def test_each_sentence_gets_a_score():
    scores = metrics.sentence_scores(HYPOTHESES, [REFERENCES])
    assert len(scores) == len(HYPOTHESES)
    assert scores[0] == {"BLEU": 100.0, "chrF2": 100.0}
    assert scores[1]["BLEU"] < 100


def test_the_paired_bootstrap_tells_systems_apart_only_if_they_differ():
    worse = ["Ein Hund."] * len(REFERENCES)
    bleu, chrf = metrics.compare(HYPOTHESES, worse, [REFERENCES], samples=300)
    assert bleu.first > bleu.second
    assert bleu.p < 0.05
    assert chrf.p < 0.05
    assert "bs:300" in bleu.signature
    same = metrics.compare(HYPOTHESES, list(HYPOTHESES), [REFERENCES], samples=300)[0]
    assert same.p > 0.9


def test_files_of_different_lengths_are_refused():
    with pytest.raises(InputError, match="15 translations and 14 lines of reference 1"):
        metrics.score(HYPOTHESES, [REFERENCES[:-1]])
    with pytest.raises(InputError, match="nothing to score"):
        metrics.score([], [])


def test_exact_match_ignores_surrounding_whitespace_only():
    assert metrics.exact_match(["a", "b ", "C"], ["a", "b", "c"]) == pytest.approx(2 / 3)
    with pytest.raises(InputError, match="no answers to score"):
        metrics.exact_match([], [])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_no_number_is_refused(value):
    """An infinite one would be the best forever."""
    metric = metrics.GenerationMetric("mine", lambda hypotheses, references: value)
    with pytest.raises(InputError, match=f"the metric 'mine' of 1 text is {value}: it must return a number"):
        metric(["a"], ["b"])


@pytest.mark.parametrize("metric", [metrics.exact_match, metrics.bleu])
def test_a_metric_of_no_texts_is_refused(metric):
    with pytest.raises(InputError, match=r"nothing to score|no answers to score"):
        metric([], [])

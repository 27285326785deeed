"""BLEU and chrF are sacreBLEU's own, and files that do not go together are refused."""

import pytest
import sacrebleu

from headway.errors import InputError
from headway.evaluation import metrics

RIGHT = ["Ein Hund spielt im Schnee.", "Zwei Männer gehen nach Hause.", "Das ist gut."] * 5
FOUND = ["Ein Hund spielt im Schnee.", "Zwei Männer laufen nach Haus.", "Das ist Gut."] * 5


def test_scores_and_signatures_are_sacrebleus():
    bleu, chrf = metrics.score(FOUND, [RIGHT])
    assert bleu.score == sacrebleu.corpus_bleu(FOUND, [RIGHT]).score
    assert chrf.score == sacrebleu.corpus_chrf(FOUND, [RIGHT]).score
    assert "tok:13a" in bleu.signature
    assert "case:mixed" in bleu.signature
    lower = metrics.score(FOUND, [RIGHT], lowercase=True)[0]
    assert lower.score == sacrebleu.corpus_bleu(FOUND, [RIGHT], lowercase=True).score > bleu.score
    both = metrics.score(FOUND, [RIGHT, FOUND])[0]
    assert both.score == pytest.approx(100.0)


def test_sentences_are_scored_one_by_one():
    each = metrics.sentence_scores(FOUND, [RIGHT])
    assert len(each) == len(FOUND)
    assert each[0] == {"BLEU": 100.0, "chrF2": 100.0}
    assert each[1]["BLEU"] < 100


def test_two_systems_are_told_apart_only_if_they_differ():
    worse = ["Ein Hund."] * len(RIGHT)
    bleu, chrf = metrics.compare(FOUND, worse, [RIGHT], samples=300)
    assert bleu.first > bleu.second
    assert bleu.p < 0.05
    assert chrf.p < 0.05
    assert "bs:300" in bleu.signature
    same = metrics.compare(FOUND, list(FOUND), [RIGHT], samples=300)[0]
    assert same.p > 0.9


def test_files_that_do_not_go_together_are_refused():
    with pytest.raises(InputError, match="15 translations and 14 lines of reference 1"):
        metrics.score(FOUND, [RIGHT[:-1]])
    with pytest.raises(InputError, match="nothing to score"):
        metrics.score([], [])

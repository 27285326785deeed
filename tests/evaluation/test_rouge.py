"""ROUGE by rouge-score, and what happens without the package."""

import sys

import pytest

import headway
from headway.errors import InputError
from headway.evaluation.metrics import METRICS, related_metrics
from headway.evaluation.rouge import ROUGE_NAMES, rouge

TEXT, SUMMARY = "the cats sat on the mat", "the cat sat on a mat"


def test_rouge_counts_shared_stems_and_sequences():
    """Five of six words shared after stemming (cats = cat); pairs: the-cat, cat-sat, sat-on of five; LCS 5 of 6."""
    assert rouge("rouge1", [TEXT], [[SUMMARY]]) == pytest.approx(100 * 5 / 6)
    assert rouge("rouge2", [TEXT], [[SUMMARY]]) == pytest.approx(100 * 3 / 5)
    assert rouge("rougeL", [TEXT], [[SUMMARY]]) == pytest.approx(100 * 5 / 6)
    assert rouge("rougeL", ["mat the on sat cats the"], [[SUMMARY]]) < 40  # the order counts


def test_the_mean_is_over_texts_and_the_best_reference_counts():
    assert rouge("rouge1", [TEXT, "dog"], [[TEXT, "cat"]]) == pytest.approx(50)
    assert rouge("rouge1", [TEXT, "dog"], [["x", "dog"], [TEXT, "cat"]]) == pytest.approx(100)


def test_one_variant_stands_for_all():
    assert related_metrics(["rougeL", "bleu", "gleu"]) == [*ROUGE_NAMES, "gleu"]
    assert METRICS["rouge2"]([TEXT], [SUMMARY]) == rouge("rouge2", [TEXT], [[SUMMARY]])


def test_gleu_by_name_needs_the_sources():
    with pytest.raises(InputError, match="'gleu' compares texts with their sources"):
        METRICS["gleu"]([TEXT], [SUMMARY])


def test_a_missing_package_is_named_before_training(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    recipe = headway.load_recipe("summarize")
    with pytest.raises(InputError, match=r"ROUGE needs rouge-score: pip install .*\[metrics\]"):
        headway.train(recipe, out=tmp_path / "x", quiet=True)

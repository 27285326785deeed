"""Scores of translations: of files, of a model, and of two systems."""

import pytest

import headway
from headway.errors import InputError
from headway.evaluation.translation import evaluate_translations, evaluate_translator

REFERENCES = ["a dog plays in the park .", "two cats sleep on the sofa .", "the old man reads a book ."]


@pytest.fixture(scope="module")
def translator():
    model = headway.create("transformer-mini", vocab_size=40, n_layers=1, d_model=16, n_heads=2, context=16)
    model.tokenizer = headway.tokenizers.train("word", REFERENCES)
    return model


def test_exact_match_accepts_any_reference():
    score = evaluate_translations(REFERENCES, [["x", *REFERENCES[1:]], [REFERENCES[0], "x", "x"]])
    assert score.exact_match == 1.0
    assert [sentence["line"] for sentence in score.sentences()] == [1, 2, 3]
    assert score.to_dict()["BLEU"] == pytest.approx(100.0)


def test_limit_scores_the_first_sentences_of_all_lists():
    score = evaluate_translations(REFERENCES, [REFERENCES], against=["x"] * 3, limit=2)
    assert len(score.hypotheses) == len(score.references[0]) == 2
    assert [result.first > result.second for result in score.comparison] == [True, True]


def test_lists_of_different_lengths_are_refused_before_the_limit():
    with pytest.raises(InputError, match="3 translations and 2 lines of reference 1"):
        evaluate_translations(REFERENCES, [REFERENCES[:2]], limit=1)
    with pytest.raises(InputError, match="2 translations and 3 lines"):
        evaluate_translations(REFERENCES, [REFERENCES], against=REFERENCES[:2], limit=1)


def test_a_model_is_scored_by_its_translations(translator):
    messages = []
    sources = ["dog " * 20, *REFERENCES[1:]]
    progress = []
    options = {"num_beams": 2, "on_message": messages.append, "on_progress": progress.append}
    score = evaluate_translator(translator, sources, [REFERENCES], against=translator, **options)
    expected = [t.text for t in headway.translate(translator, sources, num_beams=2, truncate=True)]
    assert score.hypotheses == expected
    assert {result.p for result in score.comparison} == {1.0}  # the same model
    assert messages == ["note: 1 of 3 texts exceed the model's context and are cut off"] * 2
    assert progress == [1, 2, 3] * 2
    assert score.seconds > 0


def test_words_are_counted_as_bleu_counts_them():
    """13a splits off punctuation, so two words and two marks are the four that BLEU needs."""
    assert evaluate_translations(["a b c"], [["a b c"]]).is_too_short_for_bleu
    assert not evaluate_translations(["yes, no."], [["yes, no."]]).is_too_short_for_bleu
    assert evaluate_translations(["yes, no."], [["yes, no."]]).metrics[0].score == pytest.approx(100.0)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_leaves_nothing_is_refused(limit):
    with pytest.raises(InputError, match=f"limit={limit} leaves nothing to score: use at least 1"):
        evaluate_translations(["a"], [["a"]], limit=limit)

"""Answers are scored by the rules of SQuAD's official script, which is written here again, word by word."""

import json
import math
import re
import string

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import headway
from headway import tokenizers
from headway.data.records import Answer, Question
from headway.errors import DataError, InputError
from headway.evaluation.question_answering import (
    answer_report,
    best_threshold,
    exact_match,
    normalize_answer,
    score_answers,
    score_predictions,
    word_f1,
)
from headway.models import SpanReader

# ── the official rules ────────────────────────────────────────────────────────────────────────────────────────────


def naive_normalized(text):
    """Lower case, then without ASCII punctuation, then without articles, then with single spaces."""
    text = "".join(char for char in text.lower() if char not in set(string.punctuation))
    text = re.compile(r"\b(a|an|the)\b", re.UNICODE).sub(" ", text)
    return " ".join(text.split())


def naive_exact(gold, answer):
    return int(naive_normalized(gold) == naive_normalized(answer))


def naive_f1(gold, answer):
    gold_words, words = naive_normalized(gold).split(), naive_normalized(answer).split()
    if not gold_words or not words:
        return int(gold_words == words)
    left, n_same = list(gold_words), 0
    for word in words:
        if word in left:
            left.remove(word)
            n_same += 1
    if n_same == 0:
        return 0
    precision, recall = n_same / len(words), n_same / len(gold_words)
    return 2 * precision * recall / (precision + recall)


def naive_scores(golds, answer):
    """Exact match and F1 against the best of the gold answers; none, or none that is left: the empty text."""
    golds = [gold for gold in golds if naive_normalized(gold)] or [""]
    return max(naive_exact(gold, answer) for gold in golds), max(naive_f1(gold, answer) for gold in golds)


def question(number, *golds):
    return Question(f"q{number}", "Who?", "…", tuple(Answer(gold, 0) for gold in golds))


def scores_of(golds, answer):
    scores = score_answers([answer], [question(1, *golds)])
    return float(scores.exact_match[0]), float(scores.f1[0])


@pytest.mark.parametrize(
    ("golds", "answer", "expected"),
    [
        (["the Eiffel Tower"], "Eiffel Tower", (1, 1)),  # articles
        (["a cat, an owl"], "The cat owl!", (1, 1)),
        (["theatre"], "the atre", (0, 0)),  # whole words only
        (["A.I."], "ai", (1, 1)),  # punctuation goes first, so no article is left
        (["a.m."], "am", (1, 1)),
        (["The-end"], "theend", (1, 1)),
        (["the"], "", (1, 1)),  # nothing is left of the gold answer
        (["the", "cat"], "", (0, 0)),  # but another one is left
        (["cat"], "the", (0, 0)),
        (["!?"], "the", (1, 1)),
        (["U.S.", "United States"], "the united states", (1, 1)),  # several gold answers
        (["red cat", "cat"], "a cat", (1, 1)),
        (["President Barack Obama"], "Barack Obama", (0, 0.8)),
        (["cat cat dog"], "cat", (0, 0.5)),  # words count as often as they occur
        (["cat"], "cat cat", (0, 2 / 3)),
        ([], "", (1, 1)),  # no answer
        ([], "cat", (0, 0)),
        ([], "the", (1, 1)),
        (["5 €"], "5 €", (1, 1)),
        (["5 €"], "5", (0, 2 / 3)),  # € is a symbol, not ASCII punctuation
        (["naïve Ärzte"], "NAÏVE ÄRZTE", (1, 1)),  # unicode
        (["“quoted”"], "quoted", (0, 0)),  # curly quotes stay
        (["日本語"], "日本語。", (0, 0)),
        (["café"], "cafe\u0301", (0, 0)),  # composed and decomposed characters differ
        (["new\u00a0york\n city"], "New York City", (1, 1)),  # every kind of space
        (["the\u200bcat"], "cat", (0, 0)),
        (["àa"], "à", (0, 0)),
        (["là a"], "là", (1, 1)),
    ],
)
def test_constructed_answers_have_their_official_scores(golds, answer, expected):
    assert scores_of(golds, answer) == pytest.approx(expected)
    assert naive_scores(golds, answer) == pytest.approx(expected)


PIECES = st.lists(
    st.sampled_from(
        ["a", "an", "the", "The", "A.", "cat", "Cat's", "dog", "-", "…", "é", "E\u0301", "日", "€5", " ", "\n"]
    ),
    max_size=5,
)
TEXTS = st.one_of(PIECES.map(" ".join), PIECES.map("".join), st.text(max_size=8))


@given(st.lists(TEXTS, max_size=3), TEXTS)
@example([], "")
def test_any_answer_has_its_official_scores(golds, answer):
    assert normalize_answer(answer) == naive_normalized(answer)
    assert scores_of(golds, answer) == pytest.approx(naive_scores(golds, answer))
    for gold in golds:
        assert exact_match(answer, gold) == naive_exact(gold, answer)
        assert word_f1(answer, gold) == pytest.approx(naive_f1(gold, answer))


# ── the report ────────────────────────────────────────────────────────────────────────────────────────────────────

QUESTIONS = [question(1, "the cat"), question(2), question(3, "red dog", "dog"), question(4), question(5, "the")]
PREDICTIONS = {"q1": "Cat", "q2": "", "q3": "a red cat", "q4": "mat", "q5": "", "q99": "ignored"}


def naive_report(questions, answers):
    """HasAns are the questions with a gold answer in the file, whatever is left of it."""
    rows = {"all": [], "has_answer": [], "no_answer": []}
    for q, answer in zip(questions, answers, strict=True):
        golds = [gold.text for gold in q.answers]
        for name in ("all", "has_answer" if golds else "no_answer"):
            rows[name].append(naive_scores(golds, answer))
    return {name: np.mean(values, axis=0) for name, values in rows.items() if values}


def test_questions_with_and_without_an_answer_are_reported_apart():
    report = score_predictions(PREDICTIONS, QUESTIONS)
    table = report.to_dict()
    expected = naive_report(QUESTIONS, report.answers)
    assert expected["all"] == pytest.approx([3 / 5, (1 + 1 + 0.5 + 0 + 1) / 5])
    assert (table["exact_match"], table["f1"]) == pytest.approx(expected["all"])
    assert report.metrics == {"exact_match": table["exact_match"], "f1": table["f1"]}
    for name, n in (("has_answer", 3), ("no_answer", 2)):
        assert table[name]["n_questions"] == n
        assert (table[name]["exact_match"], table[name]["f1"]) == pytest.approx(expected[name])
    lines = report.render().splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["all", "5"], ["HasAns", "3"], ["NoAns", "2"]]
    assert lines[1].split()[2:] == ["60.00%", "70.00%"]


@given(st.lists(st.tuples(st.lists(TEXTS, max_size=2), TEXTS), min_size=1, max_size=6))
def test_any_predictions_have_the_official_averages(cases):
    questions = [question(number, *golds) for number, (golds, _) in enumerate(cases)]
    answers = [answer for _, answer in cases]
    table = score_predictions({q.id: a for q, a in zip(questions, answers, strict=True)}, questions).to_dict()
    expected = naive_report(questions, answers)
    assert (table["exact_match"], table["f1"]) == pytest.approx(expected["all"])
    if "no_answer" in expected:  # SQuAD 2.0
        for name in ("has_answer", "no_answer"):
            assert (name in table) == (name in expected)
            if name in expected:
                assert (table[name]["exact_match"], table[name]["f1"]) == pytest.approx(expected[name])
    else:
        assert "has_answer" not in table


def test_questions_without_a_prediction_are_an_error_that_names_one():
    with pytest.raises(DataError, match=r"2 of 5 questions have no prediction, such as 'q2': give every question"):
        score_predictions({"q1": "", "q3": "", "q5": ""}, QUESTIONS)
    with pytest.raises(DataError, match="there are no questions"):
        score_predictions(PREDICTIONS, [])


def test_sums_over_questions_give_the_f1_of_any_resample():
    report = score_predictions(PREDICTIONS, QUESTIONS)
    assert report.statistic(report.statistics.sum(axis=0)) == pytest.approx(report.metrics["f1"])
    rows = np.random.default_rng(0).integers(0, 5, size=(4, 5))
    expected = report.scores.f1[rows].mean(axis=1)
    assert report.statistic(report.statistics[rows].sum(axis=1)) == pytest.approx(expected)


# ── the best threshold ────────────────────────────────────────────────────────────────────────────────────────────

SCORES = st.sampled_from([0.0, 0.25, 0.5, 1.0])
MARGINS = st.one_of(st.sampled_from([-1.0, 0.0, 0.5, math.inf]), st.floats(-5, 5))


@given(st.lists(st.tuples(SCORES, SCORES, MARGINS), min_size=1, max_size=8))
def test_the_best_threshold_is_that_of_a_search_over_all_thresholds(rows):
    scores, empty_scores, margins = (np.array(column) for column in zip(*rows, strict=True))

    def mean(threshold):
        return np.where(margins <= threshold, scores, empty_scores).mean()

    best = best_threshold(scores, empty_scores, margins)
    assert best.score == pytest.approx(max(map(mean, [-math.inf, *margins, math.inf])))
    assert mean(best.threshold) == pytest.approx(best.score)


def test_the_best_threshold_may_be_rounded():
    scores, empty_scores = np.array([1.0, 1.0, 0.0]), np.array([0.0, 0.0, 1.0])
    best = best_threshold(scores, empty_scores, np.array([0.123456, 1.23449, 2.0]))
    assert best.score == 1.0
    assert 1.23449 <= float(f"{best.threshold:.4g}") < 2.0
    assert best_threshold(scores * 0, empty_scores + 1, np.array([1.0, 2.0, 3.0])).threshold < 1  # answers nothing
    assert best_threshold(np.ones(3), empty_scores * 0, np.array([1.0, 2.0, 3.0])).threshold > 3  # answers everything


# ── a reader ──────────────────────────────────────────────────────────────────────────────────────────────────────

PASSAGE = "The cat sat on the mat. " * 8
TOKENIZER = tokenizers.train("wordpiece", [f"Who where {PASSAGE}"], 60)


@pytest.fixture(scope="module")
def reader():
    torch.manual_seed(1)
    sizes = {"vocab_size": TOKENIZER.vocab_size, "context": 24, "n_layers": 1, "n_heads": 2, "d_model": 16}
    bert = headway.create("bert", device="cpu", **sizes)
    bert.tokenizer = TOKENIZER
    reader = SpanReader(bert)
    with torch.no_grad():
        reader.output.weight.normal_()
    return reader


def records(*golds_of_questions):
    return [
        Question(f"q{n}", f"Who sat {'there ' * n}?", PASSAGE, tuple(Answer(g, PASSAGE.index(g)) for g in golds))
        for n, golds in enumerate(golds_of_questions)
    ]


def test_without_unanswerable_questions_every_question_is_answered(reader):
    """SQuAD 1.1."""
    report = answer_report(reader, records(["cat"], ["mat", "the mat"], ["The cat"]), overlap=6, batch_size=2)
    assert all(report.answers)
    assert report.threshold == math.inf
    assert report.best_f1 is None
    assert json.dumps(report.to_dict())  # without infinity
    assert "threshold" not in report.to_dict()
    assert len(report.render().splitlines()) == 2


def test_with_unanswerable_questions_a_threshold_decides_and_the_best_one_is_reported(reader):
    """SQuAD 2.0. The scores at the best threshold are those of answering with it."""
    questions = records(["cat"], [], ["The cat", "cat sat"], [], ["mat"], [])
    report = answer_report(reader, questions, overlap=6, batch_size=2)
    assert report.threshold == 0
    candidates = [headway.answer(reader, q.question, q.context, overlap=6) for q in questions]
    assert report.answers == [best.text for best in candidates]
    for name, best in (("exact_match", report.best_exact_match), ("f1", report.best_f1)):
        again = answer_report(reader, questions, overlap=6, threshold=best.threshold)
        assert again.metrics[name] == pytest.approx(best.score)
        for threshold in np.linspace(-30, 30, 50):
            other = answer_report(reader, questions, overlap=6, threshold=threshold)
            assert other.metrics[name] <= best.score + 1e-9
    assert report.to_dict()["best_f1"] == {"score": report.best_f1.score, "threshold": report.best_f1.threshold}
    assert "at --threshold" in report.render()
    assert report.predictions == {q.id: text for q, text in zip(questions, report.answers, strict=True)}
    never = answer_report(reader, questions, threshold=-math.inf)
    assert never.answers == [""] * 6
    assert never.to_dict()["no_answer"]["exact_match"] == 1.0


def test_a_passage_without_tokens_is_scored_as_no_answer(reader):
    report = answer_report(reader, [Question("q", "Who?", "\u200b", ()), *records(["cat"])])
    assert report.answers[0] == ""
    assert report.scores.exact_match[0] == 1.0
    assert math.isfinite(report.best_f1.threshold)


def test_only_span_readers_have_a_report():
    with pytest.raises(InputError, match="answer needs an encoder with a head for answer spans"):
        answer_report(headway.create("gpt-tiny", device="cpu"), records(["cat"]))

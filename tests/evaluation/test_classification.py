import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data.records import LabelledText
from headway.errors import DataError, InputError
from headway.evaluation.classification import (
    ClassificationReport,
    calibration_error,
    classification_report,
)
from tests.prediction.test_classify import classifier


def report_of(truth, predicted, n_labels, confidence=0.9):
    """A report of label ids, whose predicted labels all have the same confidence."""
    one_hot = np.eye(n_labels, dtype=bool)
    probabilities = np.full((len(truth), n_labels), (1 - confidence) / max(n_labels - 1, 1))
    probabilities[np.arange(len(truth)), predicted] = confidence
    labels = [f"label {i}" for i in range(n_labels)]
    return ClassificationReport(labels, one_hot[truth], one_hot[predicted], probabilities)


def multi_report(truth, probabilities, threshold=0.5):
    truth, probabilities = np.array(truth, dtype=bool), np.array(probabilities, dtype=float)
    labels = [f"label {i}" for i in range(truth.shape[1])]
    return ClassificationReport(labels, truth, probabilities >= threshold, probabilities, multi_label=True)


@given(
    st.integers(2, 5).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), min_size=1, max_size=40),
        )
    )
)
def test_scores_are_those_of_scikit_learn(case):
    sklearn = pytest.importorskip("sklearn.metrics", reason="scikit-learn comes with seqeval, headway[metrics]")
    n_labels, pairs = case
    truth, predicted = map(list, zip(*pairs, strict=True))
    report = report_of(truth, predicted, n_labels)
    assert report.accuracy == pytest.approx(sklearn.accuracy_score(truth, predicted))
    expected = sklearn.precision_recall_fscore_support(truth, predicted, labels=range(n_labels), zero_division=0)
    for name, values in zip(("precision", "recall", "f1"), expected[:3], strict=True):
        assert [counts.scores[name] for counts in report.counts_by_label.values()] == pytest.approx(list(values))
    assert report.metrics["macro_f1"] == pytest.approx(
        sklearn.f1_score(truth, predicted, average="macro", zero_division=0)
    )
    matrix = sklearn.confusion_matrix(truth, predicted, labels=range(n_labels))
    assert report.confusion_matrix.tolist() == matrix.tolist()


def test_multi_label_scores_of_a_case_worked_by_hand():
    #           has        probabilities   predicted
    truth = [[1, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 0]]
    probabilities = [[0.9, 0.1, 0.8], [0.6, 0.7, 0.1], [0.2, 0.3, 0.1], [0.9, 0.4, 0.1]]
    report = multi_report(truth, probabilities)
    assert report.accuracy == 0.5  # the first and the third text
    assert [tuple(c) for c in report.counts_by_label.values()] == [(2, 3, 2), (1, 1, 2), (1, 1, 1)]
    assert report.metrics["micro_f1"] == pytest.approx(2 * 4 / (5 + 5))
    assert report.metrics["macro_f1"] == pytest.approx((4 / 5 + 2 / 3 + 1) / 3)
    assert "confusion_matrix" not in report.to_dict()
    assert "micro average" in report.render()


@pytest.mark.parametrize(
    ("confidences", "is_correct", "expected"),
    [
        ([1.0, 1.0], [1, 1], 0.0),  # sure and right
        ([1.0, 1.0], [0, 0], 1.0),  # sure and wrong
        ([0.75] * 4, [1, 1, 1, 0], 0.0),  # three of four are right
        ([0.9, 0.9, 0.6, 0.6], [1, 1, 1, 0], 0.1),  # |1 − 0.9| and |0.5 − 0.6|
        ([0.95] * 10 + [0.55] * 30, [1] * 10 + [0] * 30, 0.25 * 0.05 + 0.75 * 0.55),
        ([0.0, 1e-12], [0, 0], 0.0),
    ],
)
def test_calibration_error_of_cases_worked_by_hand(confidences, is_correct, expected):
    assert calibration_error(np.array(confidences), np.array(is_correct)) == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60), st.integers(1, 20))
def test_calibration_error_equals_a_loop_over_the_bins(predictions, n_bins):
    error = 0.0
    for b in range(n_bins):
        low, high = b / n_bins, (b + 1) / n_bins
        inside = [(p, ok) for p, ok in predictions if low < p * 1.0 <= high or (b == 0 and p == 0)]
        if inside:
            accuracy = sum(ok for _, ok in inside) / len(inside)
            confidence = sum(p for p, _ in inside) / len(inside)
            error += len(inside) / len(predictions) * abs(accuracy - confidence)
    confidences, is_correct = (np.array(column) for column in zip(*predictions, strict=True))
    on_an_edge = np.isclose(confidences * n_bins, np.round(confidences * n_bins), atol=1e-9).any()
    if not on_an_edge:  # there rounding decides which bin a number is in
        assert calibration_error(confidences, is_correct, n_bins) == pytest.approx(error, abs=1e-9)


def test_calibration_of_multi_label_predictions_counts_every_label():
    report = multi_report([[1, 0], [0, 1]], [[0.8, 0.2], [0.4, 0.6]])
    assert report.calibration_error == pytest.approx((0.2 + 0.2 + 0.4 + 0.4) / 4)


def test_a_label_that_is_neither_there_nor_predicted_is_no_part_of_the_macro_average():
    report = report_of([0, 0, 1], [0, 1, 1], n_labels=3)
    assert report.metrics["macro_f1"] == pytest.approx((2 / 3 + 2 / 3) / 2)
    assert "label 2" in report.render()


def test_many_labels_list_the_most_frequent_confusions():
    truth, predicted = [0, 0, 0, 5, 5, 7], [1, 1, 0, 6, 5, 7]
    text = report_of(truth, predicted, n_labels=20).render()
    table = text.split("most frequent confusions\n")[1].splitlines()
    assert [line.split() for line in table] == [
        ["true", "label", "predicted", "as", "texts"],
        ["label", "0", "label", "1", "2"],
        ["label", "5", "label", "6", "1"],
    ]


@pytest.mark.parametrize("multi_label", [False, True])
def test_the_report_of_a_model_counts_its_own_predictions(multi_label):
    model = classifier(multi_label=multi_label)
    texts = ["the cat sat", "a dog", "the mat", "on the mat the cat sat", "dog dog dog"]
    labels = ["animal", "place", "animal", "other", "place"]
    records = [
        LabelledText(text, (label,) if multi_label else label) for text, label in zip(texts, labels, strict=True)
    ]
    report = classification_report(model, records, batch_size=2)
    from headway.prediction.classify import classify

    found = classify(model, texts)
    expected = sum(result.labels == (label,) for result, label in zip(found, labels, strict=True)) / len(texts)
    assert report.accuracy == pytest.approx(expected)
    for row, result in zip(report.probabilities, found, strict=True):
        by_label = dict(zip(report.labels, row, strict=True))
        assert by_label == pytest.approx(dict(result.probabilities), abs=1e-6)
    assert json.loads(json.dumps(report.to_dict()))["n_texts"] == 5


def test_a_label_that_the_model_does_not_know_is_named():
    with pytest.raises(DataError, match=r"label 'anmal' is not one of animal, other, place\. Did you mean 'animal'\?"):
        classification_report(classifier(), [LabelledText("the cat", "anmal")])


def test_a_model_without_a_classification_head_is_refused():
    with pytest.raises(InputError, match="classify needs an encoder with a classification head"):
        classification_report(classifier().encoder, [LabelledText("the cat", "animal")])

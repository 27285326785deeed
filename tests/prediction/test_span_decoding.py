"""The spans of a passage by their scores: equal to a loop over all windows, starts and ends."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.prediction.span_decoding import PassageScores, span_scores


def test_row_i_and_column_n_is_the_span_of_n_plus_1_tokens_from_i():
    scores = span_scores(np.float32([1, 2, 3]), np.float32([10, 20, 30]), max_tokens=2)
    assert scores.tolist() == [[11, 21], [22, 32], [33, -math.inf]]
    assert span_scores(np.float32([1]), np.float32([5]), 4).tolist() == [[6, -math.inf, -math.inf, -math.inf]]
    assert span_scores(np.float32([]), np.float32([]), 3).shape == (0, 3)


@st.composite
def passages(draw):
    """Tokens that may delimit an answer, and windows with their scores, which may overlap or leave tokens out."""
    n_tokens, rng = draw(st.integers(0, 10)), np.random.default_rng(draw(st.integers(0, 10**6)))
    can_delimit = rng.random(n_tokens) < draw(st.sampled_from([0.2, 0.8, 1.0]))
    windows = []
    for _ in range(draw(st.integers(1, 3))):
        start = int(rng.integers(0, n_tokens // 2 + 1))
        width = int(rng.integers(0, n_tokens - start + 1))
        logits = rng.integers(-3, 4, size=(2, width)).astype(np.float32)  # with ties
        windows.append((start, logits, float(rng.normal())))
    return can_delimit, windows


def naive_spans(can_delimit, windows, max_tokens):
    best = {}
    for start, (starts, ends), _ in windows:
        for i in range(len(starts)):
            for j in range(i, min(len(ends), i + max_tokens)):
                span = (start + i, start + j)
                if can_delimit[span[0]] and can_delimit[span[1]]:
                    best[span] = max(best.get(span, -math.inf), float(starts[i]) + float(ends[j]))
    return best


@given(passages(), st.integers(1, 12))
def test_spans_are_ranked_as_by_a_loop_over_all_windows(passage, max_tokens):
    can_delimit, windows = passage
    scores = PassageScores(can_delimit, max_tokens)
    for start, (starts, ends), no_answer in windows:
        scores.add_window(start, starts, ends, no_answer)
    expected = naive_spans(can_delimit, windows, max_tokens)
    ranked = list(scores.ranked())
    assert {(span.first, span.last): span.score for span in ranked} == expected
    assert [(span.first, span.last) for span in ranked] == sorted(expected, key=lambda span: (-expected[span], span))
    assert scores.no_answer == min(no_answer for *_, no_answer in windows)
    total = sum(math.exp(score) for score in [*expected.values(), scores.no_answer])
    assert scores.log_sum() == pytest.approx(math.log(total), abs=1e-5)


def test_ranking_leaves_the_scores_as_they_are():
    scores = PassageScores(np.ones(3, dtype=bool), 3)
    scores.add_window(0, np.float32([1, 2, 3]), np.float32([3, 2, 1]), 0.0)
    before = scores.spans.copy()
    assert list(scores.ranked()) == list(scores.ranked())
    assert (scores.spans == before).all()


def test_large_scores_do_not_overflow():
    scores = PassageScores(np.ones(2, dtype=bool), 2)
    scores.add_window(0, np.float32([1e4, -1e4]), np.float32([1e4, -1e4]), 500.0)
    assert scores.log_sum() == pytest.approx(2e4)


def test_a_limit_beyond_the_passage_takes_no_memory():
    scores = PassageScores(np.ones(3, dtype=bool), 10**9)
    scores.add_window(0, np.float32([1, 2, 3]), np.float32([3, 2, 1]), 0.0)
    assert scores.spans.shape == (3, 3)
    assert len(list(scores.ranked())) == 6


def test_numbers_that_are_not_finite_are_no_answer():
    scores = PassageScores(np.ones(2, dtype=bool), 2)
    scores.add_window(0, np.float32([math.nan, 1]), np.float32([1, 1]), 0.0)
    assert list(scores.ranked()) == []

"""Attention on one's own matrices: the lecture's numbers, the definition, and what is refused."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import headway
from headway.analysis import attention_steps, weighted_sum
from headway.analysis.worked_attention import scores_to_weights
from headway.errors import InputError
from headway.nn import dot_product_attention, masks


def matrices(seed, *shapes):
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=rng, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize("seed", range(20))
def test_steps_equal_the_definition_and_follow_from_each_other(seed):
    T, S = 2 + seed % 3, 3 + seed % 4
    Q, K, V, bias = matrices(seed, (T, 5), (S, 5), (S, 7), (T, S))
    mask = masks.causal(T, S) if seed % 2 else torch.rand(T, S, generator=torch.Generator().manual_seed(seed)) < 0.7
    steps = attention_steps(Q, K, V, mask, bias=bias)
    output, weights = dot_product_attention(*(x[None, None] for x in (Q, K, V)), mask=mask, bias=bias)
    assert_close(steps.weights, weights[0, 0], rtol=0, atol=1e-12)
    assert_close(steps.output, output[0, 0], rtol=0, atol=1e-12)
    assert_close(steps.scaled, Q @ K.T / math.sqrt(5))
    assert torch.equal(steps.masked == -math.inf, ~mask)
    assert_close((steps.scaled + bias + steps.additive_mask), steps.masked)
    assert_close(steps.weights.sum(dim=-1), mask.any(dim=-1).double())  # a row that sees nothing is 0


def test_causal_hides_every_later_key_and_combines_with_a_mask():
    Q, K, V = matrices(0, (4, 2), (4, 2), (4, 3))
    assert torch.equal(attention_steps(Q, K, V, causal=True).mask, masks.causal(4))
    padded = attention_steps(Q, K, V, [True, True, False, True], causal=True)
    assert torch.equal(padded.mask, masks.causal(4) & torch.tensor([True, True, False, True]))


@pytest.mark.parametrize("swapped", [False, True])
def test_the_in_class_exercise_gives_the_same_before_and_after_the_swap(swapped):
    """The weights travel with their tokens, so attention does not see the order: x₄' = [0.1, 0.2, 1.3]."""
    weights, X = [0.1, 0.2, 0.6, 0.1], [[1, 0, 0], [0, 1, 0], [0, 0, 2], [0, 0, 1]]
    if swapped:
        weights, X = ([rows[i] for i in (0, 2, 1, 3)] for rows in (weights, X))
    result = weighted_sum(weights, X, W_V=np.eye(3))
    assert_close(result.output, torch.tensor([0.1, 0.2, 1.3], dtype=torch.float64))
    assert_close(result.terms.sum(dim=0), result.output)


def test_permuted_inputs_give_permuted_outputs():
    X, W_Q, W_K, W_V = matrices(1, (6, 4), (4, 3), (4, 3), (4, 3))
    order = torch.tensor([3, 0, 5, 1, 4, 2])

    def attend(X):
        return attention_steps(X @ W_Q, X @ W_K, X @ W_V).output

    assert_close(attend(X[order]), attend(X)[order])


def test_scores_112_and_96_with_heads_of_64_give_88_and_12():
    steps = scores_to_weights([112, 96], 64)
    assert steps.scaled.tolist() == [[14.0, 12.0]]
    assert [round(w, 2) for w in steps.weights[0].tolist()] == [0.88, 0.12]
    masked = scores_to_weights([112, -math.inf, 96], 64)
    assert_close(masked.weights[0, [0, 2]], steps.weights[0])
    assert masked.weights[0, 1] == 0


def test_several_heads_are_concatenated_and_projected():
    Q, K, V, W_O, b_O = matrices(2, (4, 3, 2), (2, 5, 2), (2, 5, 2), (8, 6), (6,))  # 4 query heads, 2 key/value heads
    steps = attention_steps(Q, K, V, W_O=W_O, b_O=b_O)
    heads = [attention_steps(Q[h], K[h // 2], V[h // 2]).output for h in range(4)]
    assert_close(steps.concat, torch.cat(heads, dim=-1))
    assert_close(steps.projected, torch.cat(heads, dim=-1) @ W_O + b_O)


@pytest.mark.parametrize("convert", [torch.tensor, np.array, list, lambda rows: [np.array(row) for row in rows]])
def test_tensors_arrays_and_nested_lists_are_taken(convert):
    Q, K, V = [[1, 0], [2, 1]], [[0, 1], [1, 1]], [[1.5], [2.5]]
    expected = attention_steps(Q, K, V).output
    assert_close(attention_steps(*map(convert, (Q, K, V))).output.double(), expected, rtol=0, atol=1e-6)


MASKS = {
    "booleans": [[True, False], [True, True]],
    "ones and zeros": [[1, 0], [1, 1]],
    "numpy": np.tril(np.ones((2, 2))),
    "added": [[0.0, -math.inf], [0.0, 0.0]],
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_every_form_of_a_mask_means_the_same(mask):
    Q, K, V = matrices(3, (2, 2), (2, 2), (2, 2))
    assert torch.equal(attention_steps(Q, K, V, mask).mask, masks.causal(2))


I2 = [[1, 0], [0, 1]]
REFUSED = [
    (([[1, 2, 3]], I2, I2), {}, "queries and keys need the same width"),
    ((I2, I2, [[1, 2]]), {}, "every key needs one value"),
    ((I2, [[1, 0], [0]], I2), {}, "K is not a matrix of numbers with rows of one length"),
    (([["a", "b"]], I2, I2), {}, "Q is not a matrix of numbers"),
    (([[math.nan, 1]], I2, I2), {}, "Q holds NaN"),
    (([[1e200, 0], [0, 1]], [[1e200, 0], [0, 1]], I2), {}, "Q Kᵀ is too large"),
    (([1, 2], I2, I2), {}, r"Q has the shape \(2,\)"),
    (([], I2, I2), {}, "Q has the shape"),
    ((I2, I2, I2, [[2, 0], [1, 1]]), {}, "the mask is neither"),
    ((I2, I2, I2, [[0, 0], [0, 0]]), {}, "a mask of zeros alone may hide everything or nothing"),
    ((I2, I2, I2, [[True] * 3]), {}, r"mask of shape \(1, 3\) does not fit \(2, 2\)"),
    ((I2, I2, I2), {"scale": math.inf}, "scale=inf is not a finite number"),
    ((I2, I2, I2), {"W_O": [[1, 2, 3]]}, "it needs 2 rows"),
    ((I2, I2, I2), {"b_O": [1, 2]}, "give W_O too"),
    ((I2, I2, I2), {"rows": ["a"]}, "pass a list of 2 names"),
]


@pytest.mark.parametrize(("matrices", "options", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_wrong_input_is_refused_with_the_rule(matrices, options, message):
    with pytest.raises(InputError, match=message):
        attention_steps(*matrices, **options)


def test_weights_that_are_none_are_refused():
    with pytest.raises(InputError, match=r"each row sums to 1; these sum to 0\.9"):
        weighted_sum([0.3, 0.6], I2)
    with pytest.raises(InputError, match="one of them is negative"):
        weighted_sum([1.2, -0.2], I2)
    with pytest.raises(InputError, match="one weight per row of X"):
        weighted_sum([0.5, 0.25, 0.25], I2)
    with pytest.raises(InputError, match="d_head=0: the width of queries and keys is at least 1"):
        scores_to_weights([1, 2], 0)
    with pytest.raises(InputError, match="at least one has to be finite"):
        scores_to_weights([-math.inf], 4)


def test_printed_steps_show_every_matrix_with_names_and_infinity():
    names = ["the", "cat"]
    text = str(attention_steps(I2, I2, [[1, 2], [3, 4]], causal=True, rows=names, columns=names))
    titles = [line for line in text.splitlines() if line and not line.startswith(" ")]
    assert [title.split("  ")[0] for title in titles] == [
        "Q", "K", "V", "Q Kᵀ", "Q Kᵀ / √2", "Q Kᵀ / √2", "A = softmax", "A V",
    ]  # fmt: skip
    assert "  the  0.707     −∞" in text
    assert "  cat  0.33  0.67  1.00" in text  # softmax(0, 1/√2), and the row's sum


def test_the_package_names_what_it_has():
    assert "attention_steps" in headway.analysis.__all__
    assert all(callable(getattr(headway.analysis, name)) for name in headway.analysis.__all__)
    with pytest.raises(AttributeError, match="it has: attention_steps"):
        _ = headway.analysis.attention_step

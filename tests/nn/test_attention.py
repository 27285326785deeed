"""Loops, reference and fast attention agree, outputs and gradients, over random shapes, masks and biases."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from headway.nn import dot_product_attention, fast_attention, flex_attention, masks
from tests.reference.attention import attention_in_loops


@st.composite
def problems(draw):
    """q, k, v, mask, bias and causality, with T ≤ S as after a cache."""
    G, group = draw(st.sampled_from([(1, 1), (2, 1), (1, 3), (2, 2)]))
    B, T, K = draw(st.integers(1, 2)), draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 5]))
    S = T + draw(st.integers(0, 3))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    q, k, v = (torch.randn(B, h, n, K, generator=rng) * 2 for h, n in ((G * group, T), (G, S), (G, S)))
    mask = draw(st.sampled_from([None, "rows", "full"]))
    if mask is not None:
        shape = (B, 1, 1, S) if mask == "rows" else (B, G * group, T, S)
        mask = torch.rand(shape, generator=rng) < 0.6  # some queries may attend to nothing
    bias = torch.randn(1, G * group, T, S, generator=rng) if draw(st.booleans()) else None
    return q, k, v, mask, bias, draw(st.booleans())


@given(problems())
@settings(max_examples=150)
def test_reference_equals_loops(problem):
    q, k, v, mask, bias, causal = problem
    y, weights = dot_product_attention(q, k, v, mask=mask, bias=bias, causal=causal)
    expected, expected_weights = attention_in_loops(q, k, v, mask, bias, causal)
    assert_close(y, expected, rtol=1e-5, atol=1e-5)
    assert_close(weights, expected_weights, rtol=1e-5, atol=1e-5)


@given(problems())
@settings(max_examples=300)
def test_fast_equals_reference_with_gradients(problem):
    q, k, v, mask, bias, causal = problem
    results = []
    for function in (dot_product_attention, fast_attention):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        bias_leaf = None if bias is None else bias.clone().requires_grad_()
        y, _ = function(*leaves, mask=mask, bias=bias_leaf, causal=causal)
        (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
        results.append([y, *(x.grad for x in leaves), *([] if bias_leaf is None else [bias_leaf.grad])])
    for fast, reference in zip(results[1], results[0], strict=True):
        assert torch.isfinite(fast).all()
        assert_close(fast, reference, rtol=1e-4, atol=1e-5)


def test_weights_sum_to_one_and_masked_keys_get_exactly_zero():
    q, k, v = torch.randn(3, 2, 4, 6, 8).unbind()
    _, weights = dot_product_attention(q, k, v, mask=masks.sliding_window(6, window=3))
    assert_close(weights.sum(-1), torch.ones(2, 4, 6))
    assert (weights.masked_select(~masks.sliding_window(6, window=3)) == 0).all()


def test_dropout_applies_to_the_attention_weights():
    q, k, v = torch.ones(3, 1, 1, 1000, 4).unbind()
    for function in (dot_product_attention, fast_attention):
        y, _ = function(q, k, v, dropout=0.5)
        assert y.std() > 0.01  # different for each query
        assert y.mean().item() == pytest.approx(1.0, abs=0.02)  # but unbiased


@pytest.mark.skipif(not torch.cuda.is_available(), reason="FlexAttention needs a GPU")
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_mask", [False, True])
def test_flex_equals_reference_on_the_gpu(has_bias, has_mask):
    q = torch.randn(2, 4, 128, 32, device="cuda", requires_grad=True)
    k, v = (torch.randn(2, 2, 128, 32, device="cuda", requires_grad=True) for _ in range(2))
    bias = torch.randn(1, 4, 128, 128, device="cuda", requires_grad=True) if has_bias else None
    documents = torch.arange(128, device="cuda")[None].expand(2, -1) // 50
    mask = masks.document(documents)[:, None] if has_mask else None
    leaves = [x for x in (q, k, v, bias) if x is not None]
    y, _ = dot_product_attention(q, k, v, mask=mask, bias=bias, causal=True)
    expected = torch.autograd.grad(y.square().sum(), leaves)
    flex, _ = flex_attention(q, k, v, mask=mask, bias=bias, causal=True)
    assert_close(flex, y, rtol=1e-3, atol=1e-3)
    for gradient, reference in zip(torch.autograd.grad(flex.square().sum(), leaves), expected, strict=True):
        assert_close(gradient, reference, rtol=1e-2, atol=1e-2)


def test_flex_falls_back_to_fast_on_the_cpu():
    q, k, v = torch.randn(3, 1, 2, 5, 8).unbind()
    assert_close(flex_attention(q, k, v, causal=True)[0], fast_attention(q, k, v, causal=True)[0])

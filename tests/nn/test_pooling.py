"""Pooling: equal to a loop over the real tokens, for any padding and any precision."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import headway
from headway.nn.pooling import max_pool, mean_pool


@st.composite
def padded_rows(draw):
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    width = max(lengths) + draw(st.integers(0, 3))
    hidden = torch.randn(len(lengths), width, 5, generator=torch.Generator().manual_seed(draw(st.integers(0, 10**6))))
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    fill = draw(st.sampled_from([0.0, 1e30, -1e30, float("inf"), float("nan")]))
    return hidden.masked_fill(~mask[..., None], fill), mask, lengths


@given(padded_rows())
def test_padding_has_no_part_in_it(rows):
    hidden, mask, lengths = rows
    mean, largest = mean_pool(hidden, mask), max_pool(hidden, mask)
    for i, n in enumerate(lengths):
        assert_close(mean[i], sum(hidden[i, t] for t in range(n)) / n)
        assert_close(largest[i], torch.stack([hidden[i, :n, d].max() for d in range(5)]), rtol=0, atol=0)


@pytest.mark.parametrize("pool", [mean_pool, max_pool])
def test_no_mask_is_a_mask_of_real_tokens(pool):
    hidden = torch.randn(3, 4, 5)
    assert_close(pool(hidden), pool(hidden, torch.ones(3, 4, dtype=torch.bool)))


@pytest.mark.parametrize("pool", [mean_pool, max_pool])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_result_has_the_precision_of_the_hidden_states(pool, dtype):
    hidden, mask = torch.randn(2, 4, 5).to(dtype), torch.tensor([[True] * 4, [True, False, False, False]])
    pooled = pool(hidden, mask)
    assert pooled.dtype == dtype
    assert_close(pooled[1], hidden[1, 0], rtol=0, atol=0)


def test_padding_gets_no_gradient():
    hidden = torch.randn(2, 4, 5, requires_grad=True)
    mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
    for pool in (mean_pool, max_pool):
        (gradient,) = torch.autograd.grad(pool(hidden, mask).square().sum(), hidden)
        assert not gradient[~mask].any()
        assert gradient[mask].any()


def test_a_row_without_tokens_is_zero_not_nan():
    assert not mean_pool(torch.randn(1, 3, 5), torch.zeros(1, 3, dtype=torch.bool)).any()


@pytest.mark.parametrize("pooling", ["first", "mean", "max"])
def test_a_bilstm_pools_as_it_is_set_for_any_padding(pooling):
    model = headway.create("bilstm", vocab_size=31, d_model=6, d_hidden=5, dropout=0.0, pooling=pooling).eval()
    torch.nn.init.normal_(model.pooler.weight)
    ids, lengths = torch.randint(31, (3, 7)), [7, 2, 4]
    mask = torch.arange(7) < torch.tensor(lengths)[:, None]
    pooled = model.pool(model(ids, mask), mask)
    by_hand = {"first": lambda h: h[0], "mean": lambda h: h.mean(dim=0), "max": lambda h: h.amax(dim=0)}[pooling]
    for i, n in enumerate(lengths):
        hidden = model(ids[i : i + 1, :n])[0]
        assert_close(pooled[i], torch.tanh(model.pooler(by_hand(hidden))))

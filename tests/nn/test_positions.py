"""Each kind of position against its formula."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from headway.nn.positions import ALiBi, Learned, PerLayer, Relative, Rotary, Sinusoidal, alibi_slopes


def test_rotary_scores_depend_on_the_distance_alone():
    place, q, k = Rotary(8, 10_000.0), torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def score(m: int, n: int) -> float:
        turned, _, _ = place.qkv_transform(torch.tensor([[m]]))(q, k, k)
        _, key, _ = place.qkv_transform(torch.tensor([[n]]))(q, k, k)
        return (turned * key).sum().item()

    assert score(3, 1) == pytest.approx(score(103, 101), abs=1e-4)
    assert score(0, 0) == pytest.approx((q * k).sum().item(), abs=1e-5)
    assert abs(score(3, 1) - score(4, 1)) > 1e-3


def test_rotary_turns_each_pair_by_its_angle():
    """Su et al. 2021, eq. 34, number by number; pair i is (i, i + K/2)."""
    x, pos, theta, K = torch.randn(1, 1, 1, 6), 5, 100.0, 6
    turned, _, _ = Rotary(K, theta).qkv_transform(torch.tensor([[pos]]))(x, x, x)
    for i in range(3):
        angle = pos * theta ** (-2 * i / K)
        a, b = x[0, 0, 0, i].item(), x[0, 0, 0, i + 3].item()
        assert turned[0, 0, 0, i].item() == pytest.approx(a * math.cos(angle) - b * math.sin(angle), abs=1e-5)
        assert turned[0, 0, 0, i + 3].item() == pytest.approx(b * math.cos(angle) + a * math.sin(angle), abs=1e-5)


def test_rotary_and_sinusoidal_are_exact_far_out_in_bfloat16():
    """bfloat16 cannot tell position 5001 from 5002; the angles are made in float32."""
    x = torch.ones(1, 1, 2, 8, dtype=torch.bfloat16)
    turned, _, _ = Rotary(8, 10_000.0).qkv_transform(torch.tensor([[5001, 5002]]))(x, x, x)
    assert turned[0, 0, 0, 0].item() == pytest.approx(math.cos(5001) - math.sin(5001), abs=0.01)
    assert turned[0, 0, 1, 0].item() == pytest.approx(math.cos(5002) - math.sin(5002), abs=0.01)
    added = Sinusoidal().embed(torch.zeros(1, 2, 8, dtype=torch.bfloat16), torch.tensor([[5001, 5002]]))
    assert added[0, 1, 0].item() == pytest.approx(math.sin(5002), abs=0.01)


def test_rotary_is_as_exact_as_its_input():
    x = torch.randn(1, 1, 2, 4, dtype=torch.float64, requires_grad=True)
    turn = Rotary(4, 100.0).qkv_transform(torch.tensor([[3, 4]]))
    assert turn(x, x, x)[0].dtype == torch.float64
    assert torch.autograd.gradcheck(lambda x: turn(x, x, x)[0], x)


def test_alibi_slopes_of_the_paper():
    """Press et al. 2022, §3: eight heads 1/2 … 1/256; sixteen 2^-0.5, 2^-1, …"""
    assert_close(alibi_slopes(8), torch.tensor([2.0**-i for i in range(1, 9)]))
    assert_close(alibi_slopes(16), torch.tensor([2.0 ** -(i / 2) for i in range(1, 17)]))
    assert_close(alibi_slopes(3), torch.tensor([2.0**-4, 2.0**-8, 2.0**-2]))  # of 2 heads, then the first of 4


def test_alibi_falls_linearly_with_distance():
    bias = ALiBi(2).bias(torch.tensor([[3, 4]]), torch.arange(5)[None])
    assert bias.shape == (1, 2, 2, 5)
    assert_close(bias[0, 0, 0], -torch.tensor([3.0, 2, 1, 0, 1]) / 16)


def test_relative_bias_is_one_number_per_head_and_offset():
    place = Relative(4, 2, is_causal=True)
    place.weight.data = torch.arange(8.0).view(2, 4)
    bias = place.bias(torch.tensor([[3]]), torch.arange(4)[None])
    assert bias[0, :, 0].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]  # offsets −3 … 0
    both = Relative(3, 1, is_causal=False)
    both.weight.data = torch.arange(5.0)[None]  # offsets −2 … 2
    assert both.bias(torch.arange(3)[None], torch.arange(3)[None])[0, 0].tolist() == [[2, 3, 4], [1, 2, 3], [0, 1, 2]]


@given(st.integers(1, 6), st.integers(0, 5), st.integers(0, 4), st.integers(1, 8), st.booleans())
def test_relative_bias_by_shifting_equals_looking_up(n_queries, n_before, n_after, context, is_causal):
    """Outputs and gradients, for queries that stand anywhere among the keys."""
    place = Relative(context, 2, is_causal=is_causal)
    torch.nn.init.normal_(place.weight)
    query = torch.arange(n_before, n_before + n_queries)[None]
    key = torch.arange(n_before + n_queries + n_after)[None]
    shifted = place.bias(query, key)
    looked_up = place.bias(query.expand(2, -1), key)[:1]  # two rows take the general way
    assert_close(shifted, looked_up, rtol=0, atol=0)
    weights = torch.randn(shifted.shape)
    gradients = [torch.autograd.grad((b * weights).sum(), place.weight)[0] for b in (shifted, looked_up)]
    assert_close(*gradients, rtol=1e-5, atol=1e-5)


def test_relative_offsets_beyond_the_context_are_clipped():
    place = Relative(3, 1, is_causal=True)
    place.weight.data = torch.tensor([[7.0, 8, 9]])
    assert place.bias(torch.tensor([[10]]), torch.arange(11)[None]).flatten().tolist() == [7] * 9 + [8, 9]


def test_learned_and_per_layer_read_their_tables():
    learned, per_layer, pos = Learned(5, 4), PerLayer(5, 2), torch.tensor([[4, 1]])
    for place in (learned, per_layer):
        torch.nn.init.normal_(place.weight)
    assert_close(learned.embed(torch.zeros(1, 2, 4), pos)[0], learned.weight[[4, 1]])
    q, k, v = torch.randn(3, 1, 3, 2, 2).unbind()
    for before, after in zip((q, k, v), per_layer.qkv_transform(pos)(q, k, v), strict=True):
        assert_close(after - before, per_layer.weight[[4, 1]].expand(1, 3, 2, 2), rtol=1e-5, atol=1e-6)

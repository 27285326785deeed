"""Each position encoding equals its formula."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from headway.nn.positions import ALiBi, Learned, PerLayer, Relative, Rotary, Sinusoidal, alibi_slopes


def test_rotary_scores_depend_only_on_the_distance():
    positions, q, k = Rotary(8, 10_000.0), torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def score(m: int, n: int) -> float:
        query, _, _ = positions.qkv_transform(torch.tensor([[m]]))(q, k, k)
        _, key, _ = positions.qkv_transform(torch.tensor([[n]]))(q, k, k)
        return (query * key).sum().item()

    assert score(3, 1) == pytest.approx(score(103, 101), abs=1e-4)
    assert score(0, 0) == pytest.approx((q * k).sum().item(), abs=1e-5)
    assert abs(score(3, 1) - score(4, 1)) > 1e-3


def test_rotary_rotates_each_pair_by_its_angle():
    """Su et al. 2021, eq. 34, entry by entry; pair i is (i, i + K/2)."""
    x, pos, theta, K = torch.randn(1, 1, 1, 6), 5, 100.0, 6
    rotated, _, _ = Rotary(K, theta).qkv_transform(torch.tensor([[pos]]))(x, x, x)
    for i in range(3):
        angle = pos * theta ** (-2 * i / K)
        a, b = x[0, 0, 0, i].item(), x[0, 0, 0, i + 3].item()
        assert rotated[0, 0, 0, i].item() == pytest.approx(a * math.cos(angle) - b * math.sin(angle), abs=1e-5)
        assert rotated[0, 0, 0, i + 3].item() == pytest.approx(b * math.cos(angle) + a * math.sin(angle), abs=1e-5)


def test_rotary_and_sinusoidal_are_exact_at_large_positions_in_bfloat16():
    """bfloat16 cannot tell position 5001 from 5002; the angles are computed in float32."""
    x = torch.ones(1, 1, 2, 8, dtype=torch.bfloat16)
    rotated, _, _ = Rotary(8, 10_000.0).qkv_transform(torch.tensor([[5001, 5002]]))(x, x, x)
    assert rotated[0, 0, 0, 0].item() == pytest.approx(math.cos(5001) - math.sin(5001), abs=0.01)
    assert rotated[0, 0, 1, 0].item() == pytest.approx(math.cos(5002) - math.sin(5002), abs=0.01)
    embedded = Sinusoidal().embed(torch.zeros(1, 2, 8, dtype=torch.bfloat16), torch.tensor([[5001, 5002]]))
    assert embedded[0, 1, 0].item() == pytest.approx(math.sin(5002), abs=0.01)


def test_rotary_keeps_the_precision_of_its_input():
    x = torch.randn(1, 1, 2, 4, dtype=torch.float64, requires_grad=True)
    rotate = Rotary(4, 100.0).qkv_transform(torch.tensor([[3, 4]]))
    assert rotate(x, x, x)[0].dtype == torch.float64
    assert torch.autograd.gradcheck(lambda x: rotate(x, x, x)[0], x)


def test_alibi_slopes_are_the_papers():
    """Press et al. 2022, §3: eight heads 1/2 … 1/256; sixteen 2^-0.5, 2^-1, …"""
    assert_close(alibi_slopes(8), torch.tensor([2.0**-i for i in range(1, 9)]))
    assert_close(alibi_slopes(16), torch.tensor([2.0 ** -(i / 2) for i in range(1, 17)]))
    assert_close(alibi_slopes(3), torch.tensor([2.0**-4, 2.0**-8, 2.0**-2]))  # of 2 heads, then the first of 4


def test_alibi_falls_linearly_with_distance():
    bias = ALiBi(2).bias(torch.tensor([[3, 4]]), torch.arange(5)[None])
    assert bias.shape == (1, 2, 2, 5)
    assert_close(bias[0, 0, 0], -torch.tensor([3.0, 2, 1, 0, 1]) / 16)


def test_relative_bias_is_one_scalar_per_head_and_offset():
    positions = Relative(4, 2, is_causal=True)
    positions.weight.data = torch.arange(8.0).view(2, 4)
    bias = positions.bias(torch.tensor([[3]]), torch.arange(4)[None])
    assert bias[0, :, 0].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]  # offsets −3 … 0
    bidirectional = Relative(3, 1, is_causal=False)
    bidirectional.weight.data = torch.arange(5.0)[None]  # offsets −2 … 2
    bias = bidirectional.bias(torch.arange(3)[None], torch.arange(3)[None])
    assert bias[0, 0].tolist() == [[2, 3, 4], [1, 2, 3], [0, 1, 2]]


@given(st.integers(1, 6), st.integers(0, 5), st.integers(0, 4), st.integers(1, 8), st.booleans())
def test_relative_bias_by_shifting_equals_gathering(n_queries, n_left, n_right, context, is_causal):
    """Outputs and gradients, for queries anywhere among the keys."""
    positions = Relative(context, 2, is_causal=is_causal)
    torch.nn.init.normal_(positions.weight)
    query = torch.arange(n_left, n_left + n_queries)[None]
    key = torch.arange(n_left + n_queries + n_right)[None]
    shifted = positions.bias(query, key)
    gathered = positions.bias(query.expand(2, -1), key)[:1]  # two rows take the general path
    assert_close(shifted, gathered, rtol=0, atol=0)
    weights = torch.randn(shifted.shape)
    gradients = [torch.autograd.grad((b * weights).sum(), positions.weight)[0] for b in (shifted, gathered)]
    assert_close(*gradients, rtol=1e-5, atol=1e-5)


def test_relative_offsets_beyond_the_context_are_clipped():
    positions = Relative(3, 1, is_causal=True)
    positions.weight.data = torch.tensor([[7.0, 8, 9]])
    assert positions.bias(torch.tensor([[10]]), torch.arange(11)[None]).flatten().tolist() == [7] * 9 + [8, 9]


def test_learned_and_per_layer_positions_add_rows_of_their_tables():
    learned, per_layer, pos = Learned(5, 4), PerLayer(5, 2), torch.tensor([[4, 1]])
    for positions in (learned, per_layer):
        torch.nn.init.normal_(positions.weight)
    assert_close(learned.embed(torch.zeros(1, 2, 4), pos)[0], learned.weight[[4, 1]])
    q, k, v = torch.randn(3, 1, 3, 2, 2).unbind()
    for old, new in zip((q, k, v), per_layer.qkv_transform(pos)(q, k, v), strict=True):
        assert_close(new - old, per_layer.weight[[4, 1]].expand(1, 3, 2, 2), rtol=1e-5, atol=1e-6)

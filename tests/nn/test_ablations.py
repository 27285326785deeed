"""Ablations of attention and blocks, each against a loop that follows its definition."""

import math

import pytest
import torch
import torch.nn.functional as F

from headway.nn import AttentionContext, Block, CrossAttention, FeedForward, SelfAttention, masks
from headway.nn.ablations import mask_after_softmax
from headway.nn.attention import dot_product_attention
from headway.nn.norm import make_norm

T, D, H, K = 5, 12, 3, 4


def naive_scores(q, k, similarity, scale):
    """One head, pair by pair: q, k (T, K) → (T, T)."""
    scores = torch.empty(len(q), len(k))
    for t, query in enumerate(q):
        for s, key in enumerate(k):
            dot = sum(float(a) * float(b) for a, b in zip(query, key, strict=True))
            if similarity == "dot":
                scores[t, s] = dot / math.sqrt(K) if scale == "sqrt" else dot
            else:
                cosine = dot / (float(query.norm()) * float(key.norm()))
                scores[t, s] = cosine * math.sqrt(K) if scale == "sqrt" else cosine
    return scores


@pytest.mark.parametrize("similarity", ["dot", "cosine"])
@pytest.mark.parametrize("scale", ["sqrt", "none"])
def test_scores_follow_the_table(similarity, scale):
    torch.manual_seed(0)
    module = SelfAttention(D, H, similarity=similarity, scale=scale)
    torch.nn.init.normal_(module.qkv.weight, std=0.7)
    torch.nn.init.normal_(module.qkv.bias)
    x = torch.randn(1, T, D)
    q, k, v = module.qkv(x).detach()[0].unflatten(-1, (-1, K)).split(module.heads, dim=1)  # (T, H, K) each
    heads = [
        naive_scores(q[:, h], k[:, h], similarity, scale).masked_fill(~masks.causal(T), -math.inf).softmax(-1) @ v[:, h]
        for h in range(H)
    ]
    expected = F.linear(torch.cat(heads, dim=-1), module.out.weight, module.out.bias)
    torch.testing.assert_close(module(x, AttentionContext(causal=True))[0], expected, atol=1e-5, rtol=1e-5)


def test_cross_attention_has_the_same_scores():
    torch.manual_seed(0)
    cross = CrossAttention(D, H, similarity="cosine")
    x, memory = torch.randn(2, T, D), torch.randn(2, 7, D)
    once = cross(x, *cross.project(memory), None)
    with torch.no_grad():  # cosines do not depend on lengths, so neither do the outputs
        cross.q.weight *= 3
        cross.q.bias *= 3
    torch.testing.assert_close(cross(x, *cross.project(memory), None), once)


def test_random_scores_have_unit_deviation_only_if_they_are_scaled():
    torch.manual_seed(0)
    q, k = torch.randn(1, 1, 400, 64), torch.randn(1, 1, 400, 64)
    from headway.nn.attention import scale_keys, scale_queries

    def deviation(similarity, scale):
        queries, keys = scale_queries(q, similarity, scale), scale_keys(k, similarity)
        return float((queries @ keys.transpose(-2, -1) / math.sqrt(64)).std())

    assert deviation("dot", "sqrt") == pytest.approx(1, abs=0.02)
    assert deviation("dot", "none") == pytest.approx(8, abs=0.2)
    assert deviation("cosine", "sqrt") == pytest.approx(1, abs=0.02)
    assert deviation("cosine", "none") == pytest.approx(1 / 8, abs=0.01)


def test_a_mask_after_the_softmax_leaves_rows_that_do_not_sum_to_1():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, H, T, K) for _ in range(3))
    output, weights = mask_after_softmax(q, k, v, causal=True)
    _, everything = dot_product_attention(q, k, v)
    torch.testing.assert_close(weights, everything * masks.causal(T))
    torch.testing.assert_close(output, weights @ v)
    assert (weights[:, :, :-1].sum(-1) < 0.999).all()
    torch.testing.assert_close(weights[:, :, -1].sum(-1), torch.ones(2, H))  # nothing comes after the last token
    torch.testing.assert_close(mask_after_softmax(q, k, v)[0], dot_product_attention(q, k, v)[0])


def test_padding_is_hidden_before_the_softmax():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, H, T, K) for _ in range(3))
    mask = masks.padding(torch.tensor([3]), T)[:, None, None]
    weights = mask_after_softmax(q, k, v, mask=mask, causal=True)[1]
    torch.testing.assert_close(weights[:, :, 2, :3].sum(-1), torch.ones(1, H))
    assert not weights[..., 3:].any()


@pytest.mark.parametrize("norm_order", ["pre", "post"])
def test_a_block_without_residuals_is_its_sub_layers_in_a_row(norm_order):
    torch.manual_seed(0)
    attention, feed_forward = SelfAttention(D, H), FeedForward(D, 16, F.relu)
    norm = lambda: make_norm("layer", D, eps=1e-5, bias=True)  # noqa: E731
    block = Block(attention, feed_forward, norm, norm_order=norm_order, dropout=0.0, residual=False)
    x, ctx = torch.randn(1, T, D), AttentionContext(causal=True)
    if norm_order == "pre":
        expected = feed_forward(block.norm2(attention(block.norm1(x), ctx)))
    else:
        expected = block.norm2(feed_forward(block.norm1(attention(x, ctx))))
    torch.testing.assert_close(block(x, ctx), expected)
    assert isinstance(make_norm("none", D, eps=1e-5, bias=True), torch.nn.Identity)

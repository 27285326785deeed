"""The worked examples of the lectures."""

import math

import pytest
import torch
from torch.testing import assert_close

import headway
from headway.nn import AttentionContext, SelfAttention, dot_product_attention, make_positions, masks
from headway.nn.positions import Positions, sinusoid
from headway.sampling import SAMPLERS


def test_scores_112_and_96_with_keys_of_64_give_weights_88_and_12():
    """Divided by √64 they are 14 and 12: softmax 0.88 and 0.12."""
    q = torch.zeros(1, 1, 1, 64)
    k = torch.zeros(1, 1, 2, 64)
    q[..., 0], k[0, 0, :, 0] = 1.0, torch.tensor([112.0, 96.0])
    _, weights = dot_product_attention(q, k, torch.randn(1, 1, 2, 64))
    assert [round(w, 2) for w in weights.flatten().tolist()] == [0.88, 0.12]


def attend_with_weights(a, x):
    """Attention with exactly the weights a: the score of each key is ln a."""
    q = torch.ones(1, 1, 1, 1)
    k = torch.tensor(a).log()[None, None, :, None]
    y, weights = dot_product_attention(q, k, torch.tensor(x)[None, None])
    assert_close(weights.flatten(), torch.tensor(a))
    return y.flatten()


def test_weighted_sum_of_four_inputs():
    a = [0.1, 0.2, 0.6, 0.1]
    x = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 2.0], [0.0, 0.0, 1.0]]
    assert_close(attend_with_weights(a, x), torch.tensor([0.1, 0.2, 1.3]))
    swap = [0, 2, 1, 3]  # x₂ and x₃ swapped, and their weights with them
    swapped = attend_with_weights([a[i] for i in swap], [x[i] for i in swap])
    assert_close(swapped, torch.tensor([0.1, 0.2, 1.3]))


def attend(positions: Positions, x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(3)
    layer = SelfAttention(16, 4)
    pos = torch.arange(x.shape[1])[None]
    ctx = AttentionContext(bias=positions.bias(pos, pos), qkv_transform=positions.qkv_transform(pos))
    return layer(positions.embed(x, pos), ctx)


def test_attention_without_positions_is_permutation_equivariant():
    x, order = torch.randn(2, 7, 16), torch.tensor([3, 0, 6, 1, 5, 2, 4])
    assert_close(attend(Positions(), x[:, order]), attend(Positions(), x)[:, order], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["sinusoidal", "learned", "per-layer", "relative", "rotary", "alibi"])
def test_attention_with_positions_is_not_permutation_equivariant(kind):
    positions = make_positions(kind, context=7, d_model=16, d_head=4, n_heads=4, theta=10_000.0, is_causal=False)
    for table in positions.parameters():
        torch.nn.init.normal_(table)
    x, order = torch.randn(2, 7, 16), torch.tensor([3, 0, 6, 1, 5, 2, 4])
    assert (attend(positions, x[:, order]) - attend(positions, x)[:, order]).abs().max() > 1e-2


@pytest.mark.parametrize("d", [4, 16, 64, 256, 1024])
def test_the_variance_of_a_dot_product_is_its_width_and_one_after_scaling(d):
    """With 20,000 samples the standard error of a variance is 1 %; the tolerance of 6 % is six of them."""
    q, k = torch.randn(2, 20_000, d).unbind()
    dots = (q * k).sum(-1)
    assert dots.var().item() == pytest.approx(d, rel=0.06)
    assert (dots / math.sqrt(d)).var().item() == pytest.approx(1.0, rel=0.06)


def test_causal_mask_of_four():
    assert masks.causal(4).int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


def test_sinusoidal_values():
    """Vaswani et al. 2017, §3.5: even entries sin(pos / 10000^(2i/D)), odd ones cos of the same."""
    table = sinusoid(torch.arange(50), 8)
    for pos in (0, 1, 7, 49):
        for i in range(4):
            angle = pos / 10_000 ** (2 * i / 8)
            assert table[pos, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-5)
            assert table[pos, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)
    assert_close(table[0], torch.tensor([0.0, 1.0] * 4))


def test_sinusoidal_positions_are_pairwise_distinct():
    table = sinusoid(torch.arange(2048), 64)
    distance = torch.cdist(table, table) + torch.eye(2048) * 10
    assert distance.min() > 0.1


def test_a_low_temperature_puts_nearly_all_probability_on_the_best_token():
    p = SAMPLERS["temperature"](torch.tensor([[3.0, 1.0, -1.0]]), temperature=0.2).softmax(-1)
    assert p[0, 0] > 0.999


def test_log_probability_of_a_text_is_the_sum_of_its_conditional_terms():
    """log p(w_1 … w_n) = Σ log p(w_t | w_1 … w_{t−1}), whether scored at once or token by token."""
    model = headway.create("gpt-tiny", vocab_size=50).eval()
    text = torch.randint(50, (1, 12))
    at_once = model(text).log_softmax(-1)[0, :-1].gather(1, text[0, 1:, None]).sum()
    one_by_one = sum(model(text[:, :t]).log_softmax(-1)[0, -1, text[0, t]] for t in range(1, 12))
    state, stepwise = model.start(1), 0.0
    for t in range(11):
        logits, state = model.step(text[:, t : t + 1], state)
        stepwise += logits.log_softmax(-1)[0, -1, text[0, t + 1]]
    assert_close(at_once, one_by_one, rtol=1e-6, atol=1e-5)
    assert_close(at_once, stepwise, rtol=1e-6, atol=1e-5)


def test_probabilities_of_all_texts_of_a_length_sum_to_one():
    """A vocabulary of four, three tokens after the first: 64 texts."""
    model = headway.create("gpt-tiny", vocab_size=4).eval()
    texts = torch.cartesian_prod(torch.tensor([2]), *[torch.arange(4)] * 3)
    terms = model(texts).log_softmax(-1)[:, :-1].gather(2, texts[:, 1:, None])
    assert terms.sum(dim=(1, 2)).exp().sum().item() == pytest.approx(1.0, abs=1e-5)

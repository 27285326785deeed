"""The fused loss equals the plain one, in value and gradients, for any chunk size."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from headway.nn import cross_entropy as module
from headway.nn.cross_entropy import cross_entropy, fused_cross_entropy, scoring_nll, token_losses, token_nll

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=CUDA)]


def random_problem(n, d, v, seed, device="cpu", bias=True):
    rng = torch.Generator().manual_seed(seed)
    h, w, b = (torch.randn(*shape, generator=rng).to(device).requires_grad_() for shape in ((n, d), (v, d), (v,)))
    targets = torch.randint(v, (n,), generator=rng)
    targets[torch.rand(n, generator=rng) < 0.2] = -100
    return h, w, targets.to(device), b if bias else None


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 40),
    d=st.integers(1, 9),
    v=st.integers(1, 70),
    chunk=st.integers(1, 500),
    smoothing=st.sampled_from([0.0, 0.1, 0.9]),
    bias=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_equal_to_the_definition(device, n, d, v, chunk, smoothing, bias, seed):
    h, w, targets, b = random_problem(n, d, v, seed, device, bias)
    leaves = [t for t in (h, w, b) if t is not None]
    old, module.CHUNK_LOGITS[device] = module.CHUNK_LOGITS[device], chunk
    try:
        fused = fused_cross_entropy(h, w, targets, b, smoothing=smoothing)
    finally:
        module.CHUNK_LOGITS[device] = old
    plain = cross_entropy(h, w, targets, b, smoothing=smoothing)
    assert_close(fused, plain, rtol=1e-5, atol=1e-4)  # float32 sums of up to 40 losses
    gradients = [torch.autograd.grad(3 * loss, leaves) for loss in (fused, plain)]
    for actual, expected in zip(*gradients, strict=True):
        assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_autocast_sets_the_precision_of_matmuls_and_sums_stay_in_float32(device):
    h, w, targets, b = random_problem(64, 16, 50, 1, device)
    with torch.autocast(device, torch.bfloat16):
        half = fused_cross_entropy(h, w, targets, b)
    full = fused_cross_entropy(h, w, targets, b)
    assert half.dtype == torch.float32
    assert 0 < abs(half.item() - full.item()) < 0.01 * full.item()
    grads = torch.autograd.grad(half, (h, w, b))
    assert all(g.dtype == torch.float32 for g in grads)
    for actual, expected in zip(grads, torch.autograd.grad(full, (h, w, b)), strict=True):
        assert float((actual - expected).norm() / expected.norm()) < 0.02  # bfloat16 keeps 8 bits


def test_gradients_are_computed_only_where_they_are_needed():
    h, w, targets, b = random_problem(8, 4, 10, 2)
    with torch.no_grad():
        assert not fused_cross_entropy(h, w, targets, b).requires_grad
    frozen = fused_cross_entropy(h.detach(), w, targets, b)
    assert torch.autograd.grad(frozen, w)[0].shape == w.shape


def test_label_smoothing_has_the_entropy_of_its_target_as_minimum():
    """A model that predicts exactly the smoothed target has its entropy as loss: 1.38 nats for ε = 0.1, V = 37,000."""
    v, smoothing = 37_000, 0.1
    p = torch.full((v,), smoothing / v, dtype=torch.float64)
    p[7] += 1 - smoothing
    entropy = float(-(p * p.log()).sum())
    assert entropy == pytest.approx(1.377, abs=1e-3)
    loss = fused_cross_entropy(torch.ones(1, 1), p.log().float()[:, None], torch.tensor([7]), smoothing=smoothing)
    assert float(loss) == pytest.approx(entropy, rel=1e-4)


@CUDA
@pytest.mark.parametrize("vocab_size", [65, 50_257, 128_256])
def test_padding_the_vocabulary_changes_nothing(vocab_size):
    h, w, targets, _ = random_problem(300, 64, vocab_size, 3, "cuda")
    assert_close(fused_cross_entropy(h, w, targets), cross_entropy(h, w, targets), rtol=1e-5, atol=1e-2)


def test_the_losses_of_the_tokens_are_the_terms_of_the_sum():
    h, w, b = torch.randn(3, 5, 8), torch.randn(11, 8), torch.randn(11)
    targets = torch.randint(0, 11, (3, 5))
    targets[1, 2:] = -100
    losses = token_losses(h, (w, b), targets)
    expected = F.cross_entropy(F.linear(h, w, b).transpose(1, 2), targets, reduction="none")
    assert_close(losses, expected)
    assert_close(token_nll(h, (w, b), targets), losses.sum())
    assert scoring_nll(h, (w, b), targets) == losses.double().sum()  # in float64: a long text loses no digits


def test_columns_that_pad_the_vocabulary_have_no_gradient():
    """On a GPU the vocabulary is padded; without Triton, the definition has to leave the padding out as well."""
    logits, targets, losses = torch.randn(5, 12), torch.tensor([0, 8, -100, 3, 3]), torch.empty(5)
    leaf = logits[:, :9].clone().requires_grad_()
    expected = F.cross_entropy(leaf, targets, reduction="none", label_smoothing=0.1)
    (gradient,) = torch.autograd.grad(expected.sum(), leaf)
    module._to_gradient(logits, targets, losses, 9, 0.1, -100)
    assert_close(losses, expected.detach())
    assert_close(logits[:, :9], gradient)
    assert not logits[:, 9:].any()

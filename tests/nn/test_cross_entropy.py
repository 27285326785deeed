"""The fused loss is the plain one: the same sum, the same gradients, whatever the chunks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from headway.nn import cross_entropy as module
from headway.nn.cross_entropy import cross_entropy, fused_cross_entropy

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=CUDA)]


def case(n, d, v, seed, device="cpu", bias=True):
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
    h, w, targets, b = case(n, d, v, seed, device, bias)
    leaves = [t for t in (h, w, b) if t is not None]
    before, module.CHUNK_NUMBERS[device] = module.CHUNK_NUMBERS[device], chunk
    try:
        fused = fused_cross_entropy(h, w, targets, b, smoothing=smoothing)
    finally:
        module.CHUNK_NUMBERS[device] = before
    plain = cross_entropy(h, w, targets, b, smoothing=smoothing)
    assert_close(fused, plain, rtol=1e-5, atol=1e-4)  # float32 sums of up to 40 losses
    for ours, theirs in zip(
        torch.autograd.grad(3 * fused, leaves), torch.autograd.grad(3 * plain, leaves), strict=True
    ):
        assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_products_are_in_the_precision_of_autocast_and_sums_in_float32(device):
    h, w, targets, b = case(64, 16, 50, 1, device)
    with torch.autocast(device, torch.bfloat16):
        half = fused_cross_entropy(h, w, targets, b)
    full = fused_cross_entropy(h, w, targets, b)
    assert half.dtype == torch.float32
    assert 0 < abs(half.item() - full.item()) < 0.01 * full.item()
    grads = torch.autograd.grad(half, (h, w, b))
    assert all(g.dtype == torch.float32 for g in grads)
    for ours, theirs in zip(grads, torch.autograd.grad(full, (h, w, b)), strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 0.02  # bfloat16 keeps 8 bits


def test_nothing_is_kept_where_nothing_is_learned():
    h, w, targets, b = case(8, 4, 10, 2)
    with torch.no_grad():
        assert not fused_cross_entropy(h, w, targets, b).requires_grad
    frozen = fused_cross_entropy(h.detach(), w, targets, b)
    assert torch.autograd.grad(frozen, w)[0].shape == w.shape


def test_smoothing_has_the_floor_its_definition_implies():
    """A model that says exactly the smoothed target pays its entropy: for ε = 0.1 and 37,000 tokens, 1.38 nats."""
    v, smoothing = 37_000, 0.1
    p = torch.full((v,), smoothing / v, dtype=torch.float64)
    p[7] += 1 - smoothing
    entropy = float(-(p * p.log()).sum())
    assert entropy == pytest.approx(1.377, abs=1e-3)
    loss = fused_cross_entropy(torch.ones(1, 1), p.log().float()[:, None], torch.tensor([7]), smoothing=smoothing)
    assert float(loss) == pytest.approx(entropy, rel=1e-4)


@CUDA
@pytest.mark.parametrize("vocabulary", [65, 50_257, 128_256])
def test_padding_of_the_vocabulary_changes_nothing(vocabulary):
    h, w, targets, _ = case(300, 64, vocabulary, 3, "cuda")
    assert_close(fused_cross_entropy(h, w, targets), cross_entropy(h, w, targets), rtol=1e-5, atol=1e-2)

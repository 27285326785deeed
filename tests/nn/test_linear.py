"""CPU kernels equal `F.linear`, and are applied to a model from outside."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import headway
from headway.nn.kernels import cpu_linear
from headway.nn.kernels.cpu_linear import CPUKernels, CPULinear, banded_linear, onednn_linear, use_cpu_training_kernels
from headway.nn.linear import Linear, use_linear

HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
needs_onednn = pytest.mark.skipif(not HAS_ONEDNN, reason="this PyTorch has no oneDNN")


@given(st.integers(1, 40), st.integers(1, 20), st.integers(1, 6), st.integers(1, 9), st.booleans())
def test_banded_equals_plain(n_out, n_in, rows, n_bands, has_bias):
    rng = torch.Generator().manual_seed(n_out * n_in)
    x, weight = torch.randn(rows, 1, n_in, generator=rng), torch.randn(n_out, n_in, generator=rng)
    bias = torch.randn(n_out, generator=rng) if has_bias else None
    assert_close(banded_linear(x, weight, bias, n_bands), F.linear(x, weight, bias), rtol=1e-5, atol=1e-5)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=[False, pytest.param(True, marks=needs_onednn)], ids=["mkl", "onednn"])
def library(request, monkeypatch):
    """Both choices of library, whatever the processor."""
    monkeypatch.setattr(cpu_linear, "_prefers_onednn", lambda: request.param)
    return request.param


@pytest.mark.usefixtures("two_threads", "library")
@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 17, 600])
def test_every_number_of_rows_gives_the_plain_product(rows, pack):
    x, weight, bias = torch.randn(rows, 256), torch.randn(300, 256), torch.randn(300)
    kernel = CPULinear(pack=pack)
    with torch.no_grad():
        assert_close(kernel(x, weight, bias), F.linear(x, weight, bias), rtol=1e-4, atol=1e-4)
        assert_close(kernel(x, weight, bias), F.linear(x, weight, bias), rtol=1e-4, atol=1e-4)  # packed by now


@needs_onednn
def test_onednn_gradients_are_the_plain_ones():
    x, weight, bias = (torch.randn(*shape, requires_grad=True) for shape in ((7, 5, 256), (300, 256), (300,)))
    gradients = []
    for function in (onednn_linear, F.linear):
        (function(x, weight, bias) ** 2).sum().backward()
        gradients.append([t.grad.clone() for t in (x, weight, bias)])
        x.grad = weight.grad = bias.grad = None
    for ours, plain in zip(*gradients, strict=True):
        assert_close(ours, plain, rtol=1e-4, atol=1e-2)


@pytest.fixture
def model():
    return headway.create("gpt", vocab_size=1021, n_layers=2, d_model=256, n_heads=4, context=16).eval()


@torch.no_grad()
def step_through(model, ids):
    state, parts = model.start(len(ids)), []
    for t in range(ids.shape[1]):
        logits, state = model.step(ids[:, t : t + 1], state)
        parts.append(logits)
    return torch.cat(parts, dim=1)


@pytest.mark.usefixtures("two_threads", "library")
def test_a_model_decodes_the_same_with_the_kernels(model, monkeypatch):
    ids, calls = torch.randint(1021, (3, 6)), []
    call = CPULinear.__call__
    monkeypatch.setattr(CPULinear, "__call__", lambda self, *args: calls.append(1) or call(self, *args))
    plain = step_through(model, ids)
    assert not calls  # nothing is exchanged unless someone asks
    kernels = CPUKernels(model)
    for _ in range(2):  # the context can be entered again
        with kernels:
            assert_close(step_through(model, ids), plain, rtol=1e-4, atol=1e-4)
    assert len(calls) == 2 * 6 * (2 * 4 + 1)  # every product of every step
    assert_close(step_through(model, ids), plain)


def test_nested_contexts_share_the_outer_kernels_and_restore_the_rest(model):
    outer, inner = CPUKernels(model), CPUKernels(model)
    layer = next(m for m in model.modules() if isinstance(m, Linear))
    with outer:
        used = layer.linear_fn
        with inner, outer:
            assert layer.linear_fn is used
        assert layer.linear_fn is used
    assert layer.linear_fn is F.linear
    assert model.unembed_fn is F.linear
    with pytest.raises(ZeroDivisionError), outer:
        1 / 0  # noqa: B018
    assert layer.linear_fn is F.linear


def test_training_inside_the_context_uses_plain_products(model):
    with CPUKernels(model):
        model(torch.randint(1021, (2, 5))).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_any_function_can_be_used(model):
    calls = []

    def counted(x, weight, bias):
        calls.append(tuple(weight.shape))
        return F.linear(x, weight, bias)

    ids = torch.randint(1021, (2, 5))
    plain = model(ids)
    assert torch.equal(use_linear(model, counted)(ids), plain)
    assert len(calls) == 2 * 4 + 1
    assert calls[-1] == (1021, 256)  # the unembedding


@needs_onednn
def test_training_kernels_are_used_where_onednn_is_faster(model, monkeypatch):
    monkeypatch.setattr(cpu_linear, "_prefers_onednn", lambda: True)
    ids = torch.randint(1021, (2, 5))
    plain = model(ids)
    use_cpu_training_kernels(model)
    assert_close(model(ids), plain, rtol=1e-4, atol=1e-4)
    model(ids).sum().backward()
    with CPUKernels(model):  # decoding a model that is being trained
        step_through(model, ids)

"""The banded product equals the plain one."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import headway
from headway.nn import linear
from headway.nn.linear import few_rows_linear


@given(st.integers(1, 40), st.integers(1, 20), st.integers(1, 6), st.integers(1, 9), st.booleans())
def test_banded_equals_plain(n_out, n_in, rows, parts, has_bias):
    rng = torch.Generator().manual_seed(n_out * n_in)
    x, weight = torch.randn(rows, 1, n_in, generator=rng), torch.randn(n_out, n_in, generator=rng)
    bias = torch.randn(n_out, generator=rng) if has_bias else None
    assert_close(few_rows_linear(x, weight, bias, parts), F.linear(x, weight, bias), rtol=1e-5, atol=1e-5)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_a_whole_model_steps_the_same_by_either_product(monkeypatch):
    model = headway.create("gpt", vocab_size=1021, n_layers=2, d_model=256, n_heads=4, context=16).eval()
    ids, calls = torch.randint(1021, (3, 6)), []
    banded = linear.few_rows_linear
    monkeypatch.setattr(linear, "few_rows_linear", lambda *args: calls.append(1) or banded(*args))

    def step_through():
        with torch.no_grad():
            state, parts = model.start(3), []
            for t in range(6):
                logits, state = model.step(ids[:, t : t + 1], state)
                parts.append(logits)
        return torch.cat(parts, dim=1)

    fast = step_through()
    assert len(calls) == 6 * (2 * 4 + 1)  # every product of every step
    assert_close(fast, model(ids).detach(), rtol=1e-5, atol=1e-5)
    torch.set_num_threads(1)
    assert_close(step_through(), fast, rtol=1e-5, atol=1e-5)
    assert len(calls) == 6 * (2 * 4 + 1)  # one core gains nothing


@pytest.mark.usefixtures("two_threads")
def test_gradients_take_the_plain_way():
    layer = linear.Linear(512, 512)
    layer(torch.randn(1, 512)).sum().backward()
    assert layer.weight.grad is not None

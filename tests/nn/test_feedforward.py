"""Activations: the code for torch.compile equals the definition."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from headway.nn import feedforward
from headway.nn.feedforward import ACTIVATIONS

DEFINITIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu2": lambda x: F.relu(x) ** 2,
}


@pytest.mark.parametrize("is_compiling", [False, True])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_equal_to_the_definition_with_gradients(name, is_compiling, monkeypatch):
    monkeypatch.setattr(feedforward.torch.compiler, "is_compiling", lambda: is_compiling)
    x = torch.cat((torch.linspace(-12, 12, 4001), torch.tensor([0.0, -0.0, 1e-8, 40.0, -40.0]))).requires_grad_()
    actual, expected = ACTIVATIONS[name](x), DEFINITIONS[name](x)
    assert_close(actual, expected, rtol=1e-6, atol=2e-6)  # 12 times the 1.5e-7 of the series
    weight = torch.randn_like(x)
    grads = [torch.autograd.grad((y * weight).sum(), x)[0] for y in (actual, expected)]
    assert_close(*grads, rtol=1e-5, atol=2e-6)


def test_bfloat16_input_gives_bfloat16_output(monkeypatch):
    monkeypatch.setattr(feedforward.torch.compiler, "is_compiling", lambda: True)
    x = torch.linspace(-4, 4, 1001, dtype=torch.bfloat16)
    for name in ("gelu", "gelu-tanh"):
        assert ACTIVATIONS[name](x).dtype == torch.bfloat16
        assert_close(ACTIVATIONS[name](x), DEFINITIONS[name](x.float()).bfloat16(), rtol=1e-2, atol=1e-3)

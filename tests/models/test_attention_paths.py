"""Fast attention equals the reference, for the outputs and gradients of complete models.

Tolerance 1e-5 of the largest gradient: sums over a batch are added in a different order.
"""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from headway.nn import use_attention
from tests.models.variants import GPTS, TRANSFORMERS, gpt, name, transformer


def run(model, attention_fn, ids, **source):
    use_attention(model, attention_fn).zero_grad()
    logits = model(ids, **source)
    F.cross_entropy(logits.flatten(0, 1), ids.roll(-1, 1).flatten()).backward()
    return logits.detach(), {n: p.grad.clone() for n, p in model.named_parameters()}


def compare(model, ids, **source):
    logits, gradients = run(model, "reference", ids, **source)
    fast_logits, fast_gradients = run(model, "fast", ids, **source)
    assert_close(fast_logits, logits, rtol=1e-5, atol=1e-5)
    for parameter, gradient in gradients.items():
        assert gradient.abs().max() > 0, parameter  # every parameter has an effect
        assert_close(fast_gradients[parameter], gradient, rtol=1e-4, atol=1e-5 * max(1.0, float(gradient.abs().max())))


@pytest.mark.parametrize("config", GPTS, ids=name)
def test_gpt(config):
    compare(gpt(**config), torch.randint(41, (3, 24)))


@pytest.mark.parametrize("config", TRANSFORMERS, ids=name)
def test_transformer(config):
    ids, source = torch.randint(41, (3, 9)), torch.randint(41, (3, 24))
    mask = torch.arange(24) < torch.tensor([24, 1, 11])[:, None]
    compare(transformer(**config), ids, source=source, source_mask=mask)


@pytest.mark.parametrize("attention_fn", ["reference", "fast"])
@pytest.mark.parametrize("config", GPTS, ids=name)
def test_bfloat16_is_close_to_float32(config, attention_fn):
    """bfloat16 has 8 bits of mantissa: 0.4 % per operation; a wrong sign, mask or position would be off by far more."""
    model, ids = use_attention(gpt(**config), attention_fn), torch.randint(41, (2, 20))
    expected = model(ids)
    model.bfloat16()
    logits = model(ids)
    assert logits.dtype == torch.bfloat16
    assert (logits - expected).abs().mean() < 0.05 * expected.std()
    state, outputs = model.start(2), []
    for chunk in ids.split([9, 1, 10], dim=1):
        logits, state = model.step(chunk, state)
        outputs.append(logits)
    assert (torch.cat(outputs, 1) - expected).abs().mean() < 0.05 * expected.std()


@pytest.mark.parametrize("config", GPTS, ids=name)
def test_cached_steps(config):
    model, ids = gpt(**config), torch.randint(41, (3, 12))
    results = []
    for attention_fn in ("reference", "fast"):
        use_attention(model, attention_fn)
        _, state = model.step(ids[:, :8], model.start(3), lengths=torch.tensor([8, 2, 5]))
        several, state = model.step(ids[:, 8:11], state)
        one, _ = model.step(ids[:, 11:], state)
        results.append(torch.cat((several, one), dim=1))
    assert_close(*results, rtol=1e-5, atol=1e-5)

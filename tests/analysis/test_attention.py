"""What is recorded is what the definition gives, and recording changes nothing."""

import pytest
import torch

import headway
from headway.analysis.attention import modules_of, record
from headway.nn.attention import dot_product_attention, use_attention
from tests.models.variants import GPTS, TRANSFORMERS, gpt, name, transformer


def by_definition(model, side, call):
    """The weights of every layer as the reference attention makes them."""
    found = []

    def watched(q, k, v, **around):
        y, weights = dot_product_attention(q, k, v, **around)
        found.append(weights)
        return y, weights

    use_attention(model, "reference")
    modules = modules_of(model, side)
    for module in modules:
        module.attention_fn = watched
    with torch.no_grad():
        call()
    use_attention(model, "fast")
    return found


@pytest.mark.parametrize("config", GPTS, ids=name)
def test_a_gpt_is_recorded_as_it_is(config):
    model, ids = gpt(**config), [3, 1, 4, 1, 5]
    with torch.no_grad():
        before = model(torch.tensor([ids]))
    maps = record(model, ids)
    wanted = by_definition(model, "decoder", lambda: model(torch.tensor([ids])))
    for seen, weights in zip(maps, wanted, strict=True):
        torch.testing.assert_close(seen.weights, weights[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(seen.weights.sum(-1), torch.ones(seen.weights.shape[:2]))
        assert seen.weights.triu(1).abs().max() == 0
    with torch.no_grad():
        assert torch.equal(model(torch.tensor([ids])), before)


@pytest.mark.parametrize("side", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("config", TRANSFORMERS, ids=name)
def test_an_encoder_decoder_is_recorded_on_every_side(config, side):
    model, ids, source = transformer(**config), [1, 7, 9], [4, 8, 15, 16]

    def call():
        return model(torch.tensor([ids]), source=torch.tensor([source]))

    maps = record(model, ids, source=source, side=side, heads=[2, 0])
    wanted = by_definition(model, side, call)
    assert len(maps) == len(wanted)
    for seen, weights in zip(maps, wanted, strict=True):
        torch.testing.assert_close(seen.weights, weights[0][[2, 0]], rtol=1e-4, atol=1e-5)


def test_one_layer_of_an_encoder():
    model = headway.create("bert-mini", vocab_size=50)
    (seen,) = record(model, [5, 6, 7], layers=[1], heads=[0])
    assert (seen.side, seen.layer, seen.heads, tuple(seen.weights.shape)) == ("encoder", 1, [0], (1, 3, 3))

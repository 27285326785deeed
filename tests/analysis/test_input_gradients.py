"""How far back models feel."""

import pytest
import torch

import headway
from headway.analysis.input_gradients import as_text, draw, gradient_reach
from headway.errors import InputError

IDS = torch.randint(11, (80,), generator=torch.Generator().manual_seed(0)).tolist()


def elman(factor: float):
    """W_hh = factor · I: what came d steps ago counts factor^d."""
    model = headway.create("rnn", vocab_size=11, d_model=8)
    with torch.no_grad():
        (layer,) = model.layers
        model.embedding.mul_(0.1)  # small, so that tanh is nearly straight
        layer.weight_x.copy_(torch.eye(8))
        layer.weight_h.copy_(factor * torch.eye(8))
        layer.bias_x.zero_()
        layer.bias_h.zero_()
    return model


def test_an_elman_network_forgets_by_its_factor():
    for factor in (0.5, 0.9):
        found = gradient_reach(elman(factor), IDS, distance=12, places=5).values
        assert found == pytest.approx([factor**d for d in range(12)], rel=0.05)


def test_every_family_that_learns_has_a_reach(tmp_path):
    families = {
        "gpt": {"n_layers": 1, "n_heads": 2, "context": 32},
        "lstm": {"n_layers": 2},
        "nplm": {"order": 4, "d_hidden": 9},
    }
    found = [
        gradient_reach(headway.create(name, vocab_size=11, d_model=8, **more), IDS, distance=10, places=3, name=name)
        for name, more in families.items()
    ]
    assert all(one.values[0] == 1.0 and len(one.values) == 10 for one in found)
    window = found[2].values
    assert all(v > 0 for v in window[:3])
    assert window[3:] == [0.0] * 7  # it sees three words, and nothing before
    assert "lstm" in as_text(found)
    assert draw(found, tmp_path / "reach.png").stat().st_size > 5000


def test_what_has_no_gradient_or_no_room_says_so():
    with pytest.raises(InputError, match="has no vectors"):
        gradient_reach(headway.create("ngram", vocab_size=11), IDS, distance=4)
    with pytest.raises(InputError, match="too few to look 90 back"):
        gradient_reach(elman(0.5), IDS, distance=90)
    with pytest.raises(InputError, match="more than the context of 8"):
        gradient_reach(
            headway.create("gpt", vocab_size=11, d_model=8, n_heads=2, n_layers=1, context=8), IDS, distance=9
        )

"""examples/own_transformer.py: the same function as Headway's transformer, and able to learn."""

import importlib.util
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

FILE = Path(__file__).parent.parent.parent / "examples" / "own_transformer.py"


@pytest.fixture(scope="module")
def own():
    spec = importlib.util.spec_from_file_location("own_transformer", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 5e-6)])
def test_it_equals_headways_transformer(own, dtype, limit):
    """Log-probabilities of about −5: in float32 a unit in the last place is 5e-7."""
    assert max(own.distance_to_headway(dtype, seed) for seed in range(2)) < limit


def test_a_wrong_scale_is_not_equal(own, monkeypatch):
    monkeypatch.setattr(own, "math", SimpleNamespace(sqrt=lambda x: x**0.501, inf=math.inf))
    assert own.distance_to_headway() > 1e-4


def test_two_vocabularies_and_an_untied_generator(own):
    model = own.make_model(7, 11, n_layers=1, d_model=8, d_ff=16, n_heads=2)
    log_probs = model(torch.randint(7, (2, 4)), torch.randint(11, (2, 3)))
    assert log_probs.shape == (2, 3, 11)
    assert model.generator.projection.weight is not model.target_embedding[0].table.weight
    assert log_probs.exp().sum(-1).allclose(torch.ones(2, 3))


def test_it_learns_to_copy(own, monkeypatch, capsys):
    """Short sequences of few symbols, so that a second of training is enough."""
    monkeypatch.setattr(own, "N_SYMBOLS", 3)
    monkeypatch.setattr(own, "LENGTH", 3)
    monkeypatch.setattr("sys.argv", [str(FILE), "--steps", "60"])
    own.main()
    out = capsys.readouterr().out
    assert "largest difference from Headway's transformer: " in out
    fraction = int(out.splitlines()[-1].partition("%")[0])
    assert fraction >= 95, out

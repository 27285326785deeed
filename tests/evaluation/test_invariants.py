"""The promises a user can have checked: they hold for every generative model, and a broken one is noticed."""

import pytest
import torch

from headway.errors import InputError
from headway.evaluation.invariants import max_batched_difference, max_cached_difference
from tests.models.variants import cases

IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
CHOSEN = ("gpt positions=rotary-n_kv_heads=2-norm_order=pre", "transformer positions=sinusoidal-norm_order=post")


@pytest.mark.parametrize(
    ("name", "make"),
    [(name, make) for name, make in cases() if name in CHOSEN or not name.startswith(("gpt", "transformer"))],
)
def test_promises_hold_for_every_family(name, make):
    case = make()
    source = [7, 8, 9] if hasattr(case, "source") else None
    assert max_cached_difference(case.model, IDS, source) < 1e-4
    assert max_batched_difference(case.model, [IDS, IDS[:5], IDS[:1]], source) < 1e-4


def test_a_broken_promise_is_noticed(monkeypatch):
    made = dict(cases())["rnn cell=lstm-n_layers=2"]().model
    step = made.step
    monkeypatch.setattr(made, "step", lambda ids, state, **more: step(ids, made.start(1), **more))  # remembers nothing
    assert max_cached_difference(made, IDS) > 1e-3
    forward = type(made).forward
    monkeypatch.setattr(type(made), "forward", lambda self, ids, lengths=None: forward(self, ids + len(ids) - 1))
    assert max_batched_difference(made, [IDS, IDS[:5]]) > 1e-3
    with pytest.raises(InputError, match="an empty text"):
        max_cached_difference(made, [])
    assert torch.is_grad_enabled()

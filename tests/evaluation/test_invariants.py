"""Invariants that users can check: they hold for every generative model, and a violation is detected."""

import pytest
import torch

from headway.errors import InputError
from headway.evaluation.invariants import max_batched_difference, max_cached_difference
from headway.evaluation.validation import NonFiniteLossError
from headway.models.fused_decode import CPUDecodeStep
from headway.nn.kernels.cpu_decode import why_no_library
from tests.models.variants import cases

IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
DECODERS = ("gpt positions=rotary-n_kv_heads=2-norm_order=pre", "transformer positions=sinusoidal-norm_order=post")


@pytest.mark.parametrize(
    ("name", "make"),
    [(name, make) for name, make in cases() if name in DECODERS or not name.startswith(("gpt", "transformer"))],
)
def test_invariants_hold_for_every_family(name, make):
    case = make()
    source = [7, 8, 9] if hasattr(case, "source") else None
    assert max_cached_difference(case.model, IDS, source) < 1e-4
    assert max_batched_difference(case.model, [IDS, IDS[:5], IDS[:1]], source) < 1e-4


def test_a_violation_is_detected(monkeypatch):
    model = dict(cases())["rnn cell=lstm-n_layers=2"]().model
    step = model.step
    monkeypatch.setattr(model, "step", lambda ids, state, **options: step(ids, model.start(1), **options))  # no memory
    assert max_cached_difference(model, IDS) > 1e-3
    forward = type(model).forward
    monkeypatch.setattr(type(model), "forward", lambda self, ids, lengths=None: forward(self, ids + len(ids) - 1))
    assert max_batched_difference(model, [IDS, IDS[:5]]) > 1e-3
    with pytest.raises(InputError, match="an empty text"):
        max_cached_difference(model, [])
    assert torch.is_grad_enabled()


@pytest.mark.skipif(why_no_library() is not None, reason="needs a C compiler with OpenMP")
def test_the_fused_step_of_generation_is_what_is_checked(monkeypatch):
    model = dict(cases())[DECODERS[0]]().model
    assert max_cached_difference(model, IDS * 3) < 1e-4
    monkeypatch.setattr(CPUDecodeStep, "__call__", lambda self, model, ids, cache: (torch.zeros(1, 1, 41), cache))
    assert max_cached_difference(model, IDS * 3) > 0.1


def test_probabilities_that_are_no_numbers_do_not_pass_as_equal():
    model = dict(cases())["rnn cell=lstm-n_layers=2"]().model
    with torch.no_grad():
        model.bias[0] = torch.nan
    for check in (lambda: max_cached_difference(model, IDS), lambda: max_batched_difference(model, [IDS, IDS[:5]])):
        with pytest.raises(NonFiniteLossError, match="the model's probabilities are not numbers"):
            check()

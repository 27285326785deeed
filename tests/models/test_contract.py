"""The contract of models/base.py, for every generative model.

Numerical properties are checked for every combination of parts; bookkeeping (arguments, errors, rows) does not depend
on the parts and is checked once per family.

Tolerance: 1e-5, relative and absolute, on logits of order 1 to 10 in float32; where there is one number for all, twice
as much. The compared computations differ only in the order of sums.
"""

import pytest
import torch
from torch.testing import assert_close

from headway.errors import InputError
from headway.evaluation.contract import check_contract
from tests.models.variants import N_ROWS, cases

CASES = cases()
FAMILIES = {name.split()[0]: (name, make) for name, make in reversed(CASES)}  # the first variant of each family
close = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(params=[pytest.param(make, id=name) for name, make in CASES])
def model(request):
    return request.param()


@pytest.fixture(params=[pytest.param(make, id=name) for name, make in FAMILIES.values()])
def family_model(request):
    return request.param()


@pytest.fixture
def ids():
    return torch.randint(41, (N_ROWS, 14), generator=torch.Generator().manual_seed(2))


# ── for every combination of parts ────────────────────────────────────────────────────────────────────────────────────


def test_the_model_keeps_the_contract(model):
    """Step by step = forward, a batch = its rows, padding changes nothing, no leak, and more."""
    report = check_contract(model.model, length=10, atol=2 * close["atol"])
    assert report.passed, report
    assert report["padding-ids"].status == "passed"  # padding may hold ids that are not even in the vocabulary


def test_ragged_steps_equal_forward(model, ids):
    """A ragged prefill, then ragged and uniform steps, in a cache without a spare slot."""
    expected = model(ids)
    state, done = model.start(N_ROWS, capacity=14), torch.zeros(N_ROWS, dtype=torch.long)
    for lengths in ([5, 2, 7, 1], None, [3, 1, 0, 2], None, [4, 1, 1, 4], [0, 8, 4, 0]):
        n_tokens = max(lengths) if lengths else 1
        n_real = torch.tensor(lengths or [1] * N_ROWS)
        chunk = torch.full((N_ROWS, n_tokens), -7)
        for b in range(N_ROWS):
            chunk[b, : n_real[b]] = ids[b, done[b] : done[b] + n_real[b]]
        logits, state = model.step(chunk, state, lengths=None if lengths is None else n_real)
        for b in range(N_ROWS):
            assert_close(logits[b, : n_real[b]], expected[b, done[b] : done[b] + n_real[b]], **close)
        done += n_real
    assert state.length.tolist() == done.tolist() == [14, 14, 14, 9]


def test_a_ragged_batch_of_one(model, ids):
    """Positions of padding repeat; that must not shift the positions of real tokens."""
    expected, row = model(ids)[:1], slice(0, 1)
    _, state = model.step(ids[:1, :3], model.start(1, rows=row), lengths=[2])
    chunk = torch.cat((ids[:1, 2:4], ids[:1, :2]), dim=1)
    logits, state = model.step(chunk, state, lengths=torch.tensor([2], dtype=torch.int32))
    assert_close(logits[:, :2], expected[:, 2:4], **close)
    logits, _ = model.step(ids[:1, 4:6].int(), state)
    assert_close(logits, expected[:, 4:6], **close)


# ── once per family ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_reorder_accepts_row_indices_only(family_model, ids):
    _, state = family_model.step(ids[:, :3], family_model.start(N_ROWS), lengths=torch.tensor([3, 1, 2, 3]))
    for rows in ([2, 0], (2, 0), torch.tensor([2, 0], dtype=torch.int32)):
        assert state.reorder(rows).length.tolist() == [2, 3]
    empty = state.reorder([])
    for _ in range(3):
        logits, empty = family_model.step(ids[:0, :9], empty)
        assert logits.shape[0] == 0
    for wrong in ([4], [-1], torch.tensor(1), torch.tensor([True, False, True, False]), [0.5]):
        with pytest.raises(InputError, match="rows"):
            state.reorder(wrong)


def test_full_lengths_equal_no_lengths(family_model, ids):
    assert_close(family_model(ids, torch.full((N_ROWS,), 14)), family_model(ids), rtol=0, atol=0)


def test_steps_record_no_gradients(family_model, ids):
    logits, _ = family_model.step(ids, family_model.start(N_ROWS))
    assert not logits.requires_grad


@pytest.mark.parametrize("lengths", [torch.tensor([1.5, 2, 3, 4]), torch.tensor([True] * 4)])
def test_lengths_must_be_integers(family_model, ids, lengths):
    with pytest.raises(InputError, match="lengths of type"):
        family_model(ids, lengths)

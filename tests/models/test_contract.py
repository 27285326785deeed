"""The contract of models/base.py, for every generative model.

Numerical properties are checked for every combination of parts; bookkeeping (arguments, errors, rows) does not depend
on the parts and is checked once per family.

Tolerance: 1e-5 absolute on logits of order 1 to 10 in float32. The compared computations differ only in the order of
sums.
"""

import pytest
import torch
from torch.testing import assert_close

from headway.errors import InputError
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


def test_step_by_step_equals_forward(model, ids):
    expected = model(ids)
    for sizes in ([14], [1] * 14, [5, 1, 1, 4, 3]):
        state, outputs = model.start(N_ROWS), []
        for chunk in ids.split(sizes, dim=1):
            logits, state = model.step(chunk, state)
            outputs.append(logits)
        assert_close(torch.cat(outputs, dim=1), expected, **close)
        assert state.length.tolist() == [14] * N_ROWS


def test_batch_equals_rows_one_by_one(model, ids):
    expected = model(ids)
    for b in range(N_ROWS):
        assert_close(model(ids[b : b + 1], rows=slice(b, b + 1)), expected[b : b + 1], **close)


def test_padding_changes_nothing(model, ids):
    lengths = torch.tensor([14, 3, 1, 9])
    expected = model(ids)
    padded = ids.clone()
    for b, n in enumerate(lengths):
        padded[b, n:] = torch.tensor([-100, 10**6])[torch.arange(14 - n) % 2]  # not even valid token ids
    logits = model(padded, lengths)
    for b, n in enumerate(lengths):
        assert_close(logits[b, :n], expected[b, :n], **close)


def test_a_future_token_never_changes_a_past_logit(model, ids):
    expected = model(ids)
    for t in (1, 6, 13):
        changed = ids.clone()
        changed[:, t:] = (changed[:, t:] + 1) % 41
        assert_close(model(changed)[:, :t], expected[:, :t], **close)


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


def test_last_returns_only_the_last_logits_of_each_row(family_model, ids):
    expected, lengths = family_model(ids), torch.tensor([14, 3, 1, 9])
    logits, _ = family_model.step(ids, family_model.start(N_ROWS), lengths=lengths, last=True)
    assert logits.shape == (N_ROWS, 1, 41)
    assert_close(logits[:, 0], expected[torch.arange(N_ROWS), lengths - 1], **close)
    logits, _ = family_model.step(ids, family_model.start(N_ROWS), last=True)
    assert_close(logits, expected[:, -1:], **close)


def test_reorder_repeats_and_drops_rows(family_model, ids):
    """Rows 2, 0, 0, 3, 2 continue as if each were alone from the start, independently of each other."""
    lengths, rows = torch.tensor([6, 4, 2, 5]), torch.tensor([2, 0, 0, 3, 2])
    _, state = family_model.step(ids[:, :6], family_model.start(N_ROWS, capacity=9), lengths=lengths)
    original = state.copy()
    state = state.reorder(rows)
    assert state.length.tolist() == lengths[rows].tolist()
    following = torch.randint(41, (5, 2))
    logits, _ = family_model.step(following, state)
    for i, b in enumerate(rows.tolist()):
        text = torch.cat((ids[b, : lengths[b]], following[i]))[None]
        assert_close(logits[i], family_model(text, rows=slice(b, b + 1))[0, -2:], **close)
    logits, _ = family_model.step(ids[:, 6:7], original)  # the copy is unaffected by steps of the reordered state
    for b in range(N_ROWS):
        text = torch.cat((ids[b, : lengths[b]], ids[b, 6:7]))[None]
        assert_close(logits[b], family_model(text, rows=slice(b, b + 1))[0, -1:], **close)


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

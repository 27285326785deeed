"""The contract of models/base.py, for every generative model and every combination of parts.

Tolerance: 1e-5 absolute on logits of order 1 to 10 in float32. What is compared differs only in the order of sums.
"""

import pytest
import torch
from torch.testing import assert_close

from headway.errors import InputError
from tests.models.variants import N_ROWS, cases

CASES = [pytest.param(make, id=name) for name, make in cases()]
close = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(params=CASES)
def model(request):
    return request.param()


@pytest.fixture
def ids():
    return torch.randint(41, (N_ROWS, 14), generator=torch.Generator().manual_seed(2))


def test_step_by_step_equals_forward(model, ids):
    whole = model(ids)
    for cuts in ([14], [1] * 14, [5, 1, 1, 4, 3]):
        state, parts = model.start(N_ROWS), []
        for piece in ids.split(cuts, dim=1):
            logits, state = model.step(piece, state)
            parts.append(logits)
        assert_close(torch.cat(parts, dim=1), whole, **close)
        assert state.length.tolist() == [14] * N_ROWS


def test_batch_equals_rows_one_by_one(model, ids):
    whole = model(ids)
    for b in range(N_ROWS):
        assert_close(model(ids[b : b + 1], rows=slice(b, b + 1)), whole[b : b + 1], **close)


def test_padding_changes_nothing(model, ids):
    lengths = torch.tensor([14, 3, 1, 9])
    whole = model(ids)
    noise = ids.clone()
    for b, n in enumerate(lengths):
        noise[b, n:] = torch.tensor([-100, 10**6])[torch.arange(14 - n) % 2]  # no token at all
    padded = model(noise, lengths)
    for b, n in enumerate(lengths):
        assert_close(padded[b, :n], whole[b, :n], **close)


def test_future_never_changes_the_past(model, ids):
    whole = model(ids)
    for t in (1, 6, 13):
        changed = ids.clone()
        changed[:, t:] = (changed[:, t:] + 1) % 41
        assert_close(model(changed)[:, :t], whole[:, :t], **close)


def test_rows_of_different_lengths_step_together(model, ids):
    """Ragged prompt, then ragged and even steps, in a cache with no slot to spare, equal each row on its own."""
    whole = model(ids)
    state, done = model.start(N_ROWS, capacity=14), torch.zeros(N_ROWS, dtype=torch.long)
    for lengths in ([5, 2, 7, 1], None, [3, 1, 0, 2], None, [4, 1, 1, 4], [0, 8, 4, 0]):
        n_tokens = max(lengths) if lengths else 1
        taken = torch.tensor(lengths or [1] * N_ROWS)
        piece = torch.full((N_ROWS, n_tokens), -7)
        for b in range(N_ROWS):
            piece[b, : taken[b]] = ids[b, done[b] : done[b] + taken[b]]
        logits, state = model.step(piece, state, lengths=None if lengths is None else taken)
        for b in range(N_ROWS):
            assert_close(logits[b, : taken[b]], whole[b, done[b] : done[b] + taken[b]], **close)
        done += taken
    assert state.length.tolist() == done.tolist() == [14, 14, 14, 9]


def test_last_gives_each_rows_last_logits_only(model, ids):
    whole, lengths = model(ids), torch.tensor([14, 3, 1, 9])
    logits, _ = model.step(ids, model.start(N_ROWS), lengths=lengths, last=True)
    assert logits.shape == (N_ROWS, 1, 41)
    assert_close(logits[:, 0], whole[torch.arange(N_ROWS), lengths - 1], **close)
    logits, _ = model.step(ids, model.start(N_ROWS), last=True)
    assert_close(logits, whole[:, -1:], **close)


def test_reorder_repeats_and_drops_rows(model, ids):
    """Rows 2, 0, 0, 3, 2 go on as if each had been there alone from the beginning, and do not touch each other."""
    lengths, rows = torch.tensor([6, 4, 2, 5]), torch.tensor([2, 0, 0, 3, 2])
    _, state = model.step(ids[:, :6], model.start(N_ROWS, capacity=9), lengths=lengths)
    kept = state.copy()
    state = state.reorder(rows)
    assert state.length.tolist() == lengths[rows].tolist()
    following = torch.randint(41, (5, 2))
    logits, _ = model.step(following, state)
    for i, b in enumerate(rows.tolist()):
        alone = torch.cat((ids[b, : lengths[b]], following[i]))[None]
        assert_close(logits[i], model(alone, rows=slice(b, b + 1))[0, -2:], **close)
    again, _ = model.step(ids[:, 6:7], kept)  # the original rows, untouched by what was done to the others
    for b in range(N_ROWS):
        alone = torch.cat((ids[b, : lengths[b]], ids[b, 6:7]))[None]
        assert_close(again[b], model(alone, rows=slice(b, b + 1))[0, -1:], **close)


def test_lengths_that_say_no_padding_are_no_lengths(model, ids):
    assert_close(model(ids, torch.full((N_ROWS,), 14)), model(ids), rtol=0, atol=0)


def test_a_ragged_batch_of_one(model, ids):
    """Positions of padding repeat; they must not move those of the tokens."""
    whole, one = model(ids)[:1], slice(0, 1)
    _, state = model.step(ids[:1, :3], model.start(1, rows=one), lengths=[2])
    piece = torch.cat((ids[:1, 2:4], ids[:1, :2]), dim=1)
    logits, state = model.step(piece, state, lengths=torch.tensor([2], dtype=torch.int32))
    assert_close(logits[:, :2], whole[:, 2:4], **close)
    logits, _ = model.step(ids[:1, 4:6].int(), state)
    assert_close(logits, whole[:, 4:6], **close)


def test_reorder_takes_row_numbers_in_any_form_and_nothing_else(model, ids):
    _, state = model.step(ids[:, :3], model.start(N_ROWS), lengths=torch.tensor([3, 1, 2, 3]))
    for rows in ([2, 0], (2, 0), torch.tensor([2, 0], dtype=torch.int32)):
        assert state.reorder(rows).length.tolist() == [2, 3]
    empty = state.reorder([])
    for _ in range(3):
        logits, empty = model.step(ids[:0, :9], empty)
        assert logits.shape[0] == 0
    for wrong in ([4], [-1], torch.tensor(1), torch.tensor([True, False, True, False]), [0.5]):
        with pytest.raises(InputError, match="rows"):
            state.reorder(wrong)


def test_steps_track_no_gradients_and_forward_does(model, ids):
    logits, _ = model.step(ids, model.start(N_ROWS))
    assert not logits.requires_grad


@pytest.mark.parametrize("lengths", [torch.tensor([1.5, 2, 3, 4]), torch.tensor([True] * 4)])
def test_lengths_are_whole_numbers(model, ids, lengths):
    with pytest.raises(InputError, match="lengths of type"):
        model(ids, lengths)

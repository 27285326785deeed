"""Windows: every token a target once, and batches that can be made again."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.data import consecutive_windows, random_windows
from headway.errors import DataError


@given(st.integers(2, 60), st.integers(1, 12), st.integers(1, 5))
def test_consecutive_windows_predict_every_token_once(n, context, batch_size):
    stream = torch.arange(100, 100 + n)
    targets, inputs = [], []
    for x, y, lengths in consecutive_windows(stream, context, batch_size):
        assert x.shape == y.shape
        assert x.shape[1] <= context
        for row in range(len(lengths)):
            inputs += x[row, : lengths[row]].tolist()
            targets += y[row, : lengths[row]].tolist()
    assert targets == stream[1:].tolist()
    assert inputs == stream[:-1].tolist()


@given(st.integers(2, 60), st.integers(1, 80), st.integers(0, 2**31), st.integers(0, 10**6))
def test_random_windows_depend_on_seed_and_step_alone(n, context, seed, step):
    stream = torch.arange(n)
    x, y = random_windows(stream, context, 3, seed=seed, step=step)
    again, _ = random_windows(stream, context, 3, seed=seed, step=step)
    assert torch.equal(x, again)
    assert torch.equal(x + 1, y)
    assert x.shape == (3, min(context, n - 1))


def test_every_place_is_reached():
    stream = torch.arange(12)
    seen = {int(random_windows(stream, 4, 1, seed=1, step=step)[0][0, 0]) for step in range(200)}
    assert seen == set(range(8))


def test_too_little_text_is_an_error():
    with pytest.raises(DataError, match="1 tokens are too few"):
        random_windows(torch.zeros(1, dtype=torch.long), 4, 1, seed=0, step=0)

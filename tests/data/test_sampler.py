"""Order: a permutation, asked for anywhere, shared by any number of ranks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.data import BatchSampler, TokenBudgetBatchSampler
from headway.data.sampler import permute, uniforms
from headway.errors import ConfigError, InputError


@given(st.integers(1, 3000), st.integers(0, 10**9), st.integers(0, 50))
def test_every_epoch_is_a_permutation(n, seed, epoch):
    assert sorted(permute(np.arange(n), n, seed, epoch).tolist()) == list(range(n))


@given(st.integers(2, 2000), st.integers(0, 99))
def test_any_place_can_be_asked_for_alone(n, seed):
    whole = permute(np.arange(n), n, seed)
    place = seed % n
    assert permute(np.array([place]), n, seed)[0] == whole[place]


def test_billions_of_examples_need_no_list():
    n = 10**12 + 7
    found = permute(np.arange(1000, dtype=np.int64), n, 1)
    assert len(set(found.tolist())) == 1000
    assert found.min() >= 0
    assert found.max() < n


def test_the_order_looks_random():
    """Where 0 … 999 go, over many seeds: every place about equally often, neighbours unrelated."""
    n = 1000
    rows = np.stack([permute(np.arange(n), n, "seed", seed) for seed in range(400)])
    assert abs(rows[:, 0].mean() - 499.5) < 5 * 289 / 20
    correlation = np.corrcoef(rows[:, :-1].ravel(), rows[:, 1:].ravel())[0, 1]
    assert abs(correlation) < 0.01
    counts = np.bincount(rows[:, :10].ravel() // 100, minlength=10)
    assert counts.min() > 300
    numbers = uniforms("u", counters=np.arange(100_000))
    assert abs(numbers.mean() - 0.5) < 0.005
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.01


@given(st.integers(1, 400), st.integers(1, 50), st.sampled_from([1, 2, 3, 4]), st.booleans(), st.integers(0, 9))
def test_ranks_cover_each_example_once_an_epoch(n, batch_size, world, shuffle, epoch):
    order = BatchSampler(n, batch_size, seed=7, shuffle=shuffle)
    seen = []
    for step in range(order.steps()):
        whole = order.indices(epoch, step)
        shares = [order.indices(epoch, step, rank, world) for rank in range(world)]
        assert sorted(np.concatenate(shares).tolist()) == sorted(whole.tolist())  # the batch is that of one rank
        seen += whole.tolist()
    assert sorted(seen) == list(range(n))


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=300),
    st.integers(120, 500),
    st.integers(0, 3),
)
@settings(max_examples=60)
def test_length_batches_keep_the_budget_and_cover_everything(lengths, budget, epoch):
    lengths = np.array(lengths)
    order = TokenBudgetBatchSampler(lengths, budget, seed=3)
    seen = []
    for step in range(order.steps(epoch)):
        batch = order.indices(epoch, step)
        assert len(batch) * lengths[batch].max(axis=0).sum() <= budget
        split = np.concatenate([order.indices(epoch, step, rank, 2) for rank in range(2)])
        assert sorted(split.tolist()) == sorted(batch.tolist())
        seen += batch.tolist()
    assert sorted(seen) == list(range(len(lengths)))
    again = TokenBudgetBatchSampler(lengths, budget, seed=3)
    assert (
        again.indices(epoch, order.steps(epoch) - 1).tolist() == order.indices(epoch, order.steps(epoch) - 1).tolist()
    )


def test_length_batches_waste_little():
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 50, (5000, 2))
    order = TokenBudgetBatchSampler(lengths, 2000, seed=1)
    padded = sum(len(b) * lengths[b].max(axis=0).sum() for b in order.plan(0))
    assert lengths.sum() / padded > 0.75  # 0.55 for random batches of this size
    assert [b.tolist() for b in order.plan(0)[:3]] != [b.tolist() for b in order.plan(1)[:3]]


def test_places_outside_are_named():
    order = BatchSampler(10, 4)
    with pytest.raises(InputError, match="no batch at epoch 0, step 3: an epoch has steps 0 to 2"):
        order.indices(0, 3)
    with pytest.raises(InputError, match="rank 2 is outside a world of 2"):
        order.indices(0, 0, 2, 2)
    with pytest.raises(ConfigError, match="tokens_per_batch=10 is less than the 12 tokens"):
        TokenBudgetBatchSampler(np.array([[6, 6]]), 10)

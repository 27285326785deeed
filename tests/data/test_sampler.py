"""Batch samplers: every epoch is a permutation, available at any position, for any number of ranks."""

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
def test_a_permutation_can_be_evaluated_at_one_position(n, seed):
    values = permute(np.arange(n), n, seed)
    position = seed % n
    assert permute(np.array([position]), n, seed)[0] == values[position]


def test_billions_of_examples_need_no_index_list():
    n = 10**12 + 7
    values = permute(np.arange(1000, dtype=np.int64), n, 1)
    assert len(set(values.tolist())) == 1000
    assert values.min() >= 0
    assert values.max() < n


def test_permutations_look_random():
    """Over many seeds, values are uniform at every position and neighbours are uncorrelated."""
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
def test_ranks_cover_each_example_once_per_epoch(n, batch_size, world_size, shuffle, epoch):
    sampler = BatchSampler(n, batch_size, seed=7, shuffle=shuffle)
    indices = []
    for step in range(sampler.steps()):
        global_batch = sampler.indices(epoch, step)
        per_rank = [sampler.indices(epoch, step, rank, world_size) for rank in range(world_size)]
        assert sorted(np.concatenate(per_rank).tolist()) == sorted(global_batch.tolist())
        indices += global_batch.tolist()
    assert sorted(indices) == list(range(n))


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=300),
    st.integers(120, 500),
    st.integers(0, 3),
)
@settings(max_examples=60)
def test_token_budget_batches_stay_within_budget_and_cover_everything(lengths, budget, epoch):
    lengths = np.array(lengths)
    sampler = TokenBudgetBatchSampler(lengths, budget, seed=3)
    indices = []
    for step in range(sampler.steps(epoch)):
        batch = sampler.indices(epoch, step)
        assert len(batch) * lengths[batch].max(axis=0).sum() <= budget
        per_rank = np.concatenate([sampler.indices(epoch, step, rank, 2) for rank in range(2)])
        assert sorted(per_rank.tolist()) == sorted(batch.tolist())
        indices += batch.tolist()
    assert sorted(indices) == list(range(len(lengths)))
    again = TokenBudgetBatchSampler(lengths, budget, seed=3)
    last = sampler.steps(epoch) - 1
    assert again.indices(epoch, last).tolist() == sampler.indices(epoch, last).tolist()


def test_token_budget_batches_have_little_padding():
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 50, (5000, 2))
    sampler = TokenBudgetBatchSampler(lengths, 2000, seed=1)
    n_padded = sum(len(batch) * lengths[batch].max(axis=0).sum() for batch in sampler.plan(0))
    assert lengths.sum() / n_padded > 0.75  # 0.55 for random batches of this size
    assert [batch.tolist() for batch in sampler.plan(0)[:3]] != [batch.tolist() for batch in sampler.plan(1)[:3]]


def test_drop_last_leaves_out_the_smaller_batch_unless_it_is_the_only_one():
    assert BatchSampler(10, 4, drop_last=True).steps() == 2
    assert BatchSampler(3, 4, drop_last=True).steps() == 1


def test_steps_and_ranks_out_of_range_are_refused():
    sampler = BatchSampler(10, 4)
    with pytest.raises(InputError, match="no batch at epoch 0, step 3: an epoch has steps 0 to 2"):
        sampler.indices(0, 3)
    with pytest.raises(InputError, match="rank=2 is not in 0 … 1"):
        sampler.indices(0, 0, 2, 2)
    with pytest.raises(ConfigError, match="tokens_per_batch=10 is less than the 12 tokens"):
        TokenBudgetBatchSampler(np.array([[6, 6]]), 10)

"""The bag of words: equal to a loop over words and bigrams, blind to padding and to all order but that of bigrams."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import headway
from headway.errors import InputError
from headway.models import BagOfWords, Classifier, Tagger
from headway.models.bag_of_words import LEFT_PRIMES, RIGHT_PRIMES
from tests.models.variants import amplified
from tests.training.recipes import for_objective

V, N_BUCKETS = 31, 101
SIZE = {"vocab_size": V, "d_model": 6, "n_buckets": N_BUCKETS}
ROWS = st.lists(st.lists(st.integers(0, V - 1), min_size=1, max_size=9), min_size=1, max_size=5)


def model_of(**settings):
    return amplified(headway.create("bow", **{**SIZE, **settings}))


def reference(model, row):
    """The hidden states of a row, by a loop with Python's own integers; a row starts and ends with a word outside."""
    words = [V, *row, V]
    hidden = []
    for before, word, after in zip(words, words[1:], words[2:], strict=False):
        left = (before * LEFT_PRIMES[0] + word * LEFT_PRIMES[1]) % model.config.n_buckets
        right = (word * RIGHT_PRIMES[0] + after * RIGHT_PRIMES[1]) % model.config.n_buckets
        hidden.append(model.embedding[word] + model.bigrams[left] + model.bigrams[right])
    return torch.stack(hidden)


def padded(rows, fill, extra=0):
    width = max(map(len, rows)) + extra
    ids = torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])
    return ids, torch.tensor([[i < len(row) for i in range(width)] for row in rows])


@given(ROWS, st.sampled_from([0, 7, V, -1]), st.integers(0, 3))
def test_a_batch_equals_its_rows_by_a_loop_for_any_padding(rows, fill, extra):
    model = model_of()
    ids, mask = padded(rows, fill, extra)
    hidden = model(ids, mask)
    pooled = model.pool(hidden, mask)
    for i, row in enumerate(rows):
        expected = reference(model, row)
        assert_close(hidden[i, : len(row)], expected)
        assert_close(model(torch.tensor([row]))[0], expected)  # without a mask
        assert_close(pooled[i], expected.mean(dim=0))


def test_the_order_matters_within_bigrams_and_nowhere_else():
    def pooled(*row):
        model = model_of(n_buckets=10_000)
        return model.pool(model(torch.tensor([row])))[0]

    assert not torch.allclose(pooled(1, 2), pooled(2, 1), atol=1e-2)
    assert not torch.allclose(pooled(1, 2, 3), pooled(1, 3, 2), atol=1e-2)
    assert not torch.allclose(pooled(1), pooled(1, 1), atol=1e-2)
    # The same words and bigrams in another order: 1 2 · 2 1 · 1 3 · 3 1 with the same ends.
    assert_close(pooled(1, 2, 1, 3, 1), pooled(1, 3, 1, 2, 1))


def test_a_tagger_sees_the_word_before_and_the_word_after():
    model = model_of(n_buckets=10_000)
    row = torch.tensor([[4, 5, 6, 7, 8]])
    for column, changed in ((0, {0, 1}), (2, {1, 2, 3}), (4, {3, 4})):
        other = row.clone()
        other[0, column] = 20
        differs = (model(row) != model(other)).any(dim=-1)[0]
        assert set(differs.nonzero().flatten().tolist()) == changed


def test_bigrams_seldom_share_both_rows():
    """Two hash functions: one pair of bigrams in n_buckets² does."""
    model = model_of(vocab_size=1000, n_buckets=2000)
    first, second = torch.randint(1000, (2, 2000)), torch.randint(1000, (2, 2000))
    left, right = (model._hash(first, second, primes) for primes in (LEFT_PRIMES, RIGHT_PRIMES))
    is_same = (first[0][:, None] == first[1]) & (second[0][:, None] == second[1])
    for rows in (left, right):
        shared = (rows[0][:, None] == rows[1]) & ~is_same
        assert 0.5 < shared.float().mean() * 2000 < 2  # one alone is shared by one pair in 2,000
    both = (left[0][:, None] == left[1]) & (right[0][:, None] == right[1]) & ~is_same
    assert both.sum() < 20  # of 4 million pairs: one is expected


def test_the_largest_ids_do_not_overflow():
    model = headway.create("bow", vocab_size=2**31 - 1, d_model=1, n_buckets=3, device="meta")
    ids = torch.tensor([2**31 - 2, 2**31 - 1])
    for primes in (LEFT_PRIMES, RIGHT_PRIMES):
        expected = [(int(a) * primes[0] + int(b) * primes[1]) % 3 for a in ids for b in ids]
        assert model._hash(ids[:, None], ids[None], primes).flatten().tolist() == expected
        assert all(prime < 2**30 for prime in primes)


def test_wrong_inputs_are_refused():
    model, ids = model_of(), torch.zeros(1, 3, dtype=torch.long)
    with pytest.raises(InputError, match=r"a bag of words has no segments: .* or use a bert"):
        model(ids, segments=ids)
    with pytest.raises(InputError, match="mask of shape"):
        model(ids, torch.ones(1, 2, dtype=torch.bool))
    with pytest.raises(InputError):
        model(ids + V)


@pytest.mark.parametrize("objective", ["classify", "tag"])
def test_it_learns_saves_and_loads(objective, tmp_path):
    recipe = for_objective(objective, tmp_path, steps=60, lr=0.1)
    bag = headway.load_recipe("demo", ["model.family=bow", "model.n_buckets=500"]).model
    result = headway.train(recipe.replace(model=bag, preset=""), out=tmp_path / "run")
    assert isinstance(result.model.encoder, BagOfWords)
    assert result.score.accuracy > 0.95
    loaded = headway.load(tmp_path / "run")
    assert type(loaded) is {"classify": Classifier, "tag": Tagger}[objective]
    for saved, trained in zip(loaded.parameters(), result.model.parameters(), strict=True):
        assert_close(saved, trained, rtol=0, atol=0)

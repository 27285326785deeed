"""The n-gram against counting by hand."""

from collections import Counter

import pytest
import torch
from torch.testing import assert_close

import headway
from headway.errors import CheckpointError


def by_hand(text: list[int], V: int, history: list[int], order: int) -> list[float]:
    """Witten-Bell, from the longest context down, in dicts."""
    p = [1 / V] * V
    for k in range(min(order - 1, len(history)) + 1):
        context = tuple(history[len(history) - k :])
        followers = Counter(text[i] for i in range(max(k, 1), len(text)) if tuple(text[i - k : i]) == context)
        total, distinct = sum(followers.values()), len(followers)
        if total:
            p = [(followers[w] + distinct * p[w]) / (total + distinct) for w in range(V)]
    return p


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_equals_counting_by_hand(order, seed):
    rng = torch.Generator().manual_seed(seed)
    text = torch.randint(4, (60,), generator=rng)
    model = headway.create("ngram", vocab_size=6, order=order).fit(text)  # tokens 4 and 5 never occur
    history = torch.randint(5, (1, 12), generator=rng)
    p = model(history).exp()[0]
    for t in range(12):
        assert_close(p[t], torch.tensor(by_hand(text.tolist(), 6, history[0, : t + 1].tolist(), order)))


def test_distributions_sum_to_one_and_are_never_zero():
    model = headway.create("ngram", vocab_size=9, order=3).fit(torch.tensor([1, 2, 3, 1, 2, 4]))
    p = model(torch.cartesian_prod(*[torch.arange(9)] * 2)).exp()
    assert_close(p.sum(-1), torch.ones(81, 2))
    assert (p > 0).all()


def test_orders_longer_than_the_text_and_tokens_rarer_than_float32_can_say():
    assert headway.create("ngram", vocab_size=5, order=9)(torch.zeros(1, 3, dtype=torch.long)).shape == (1, 3, 5)
    headway.create("ngram", vocab_size=5, order=9).fit(torch.tensor([1, 2, 3]))
    model = headway.create("ngram", vocab_size=3, order=12).fit(torch.zeros(100_000, dtype=torch.long))
    assert model(torch.zeros(1, 20, dtype=torch.long)).isfinite().all()


def test_tables_that_do_not_fit_are_refused(tmp_path):
    saved = headway.create("ngram", vocab_size=9, order=3).fit(torch.randint(9, (100,))).save(tmp_path / "model")
    config = (saved / "config.json").read_text()
    for change, message in (
        ('"order": 2', "should not have"),
        ('"order": 4', "lack"),
        ('"vocab_size": 4', "do not fit"),
    ):
        key = change.split(":")[0]
        (saved / "config.json").write_text(
            "\n".join(change + "," if key in line else line for line in config.splitlines())
        )
        with pytest.raises(CheckpointError, match=message):
            headway.load(saved)


def test_before_counting_all_tokens_are_equal():
    assert_close(headway.create("ngram", vocab_size=4)(torch.tensor([[2]])).exp(), torch.full((1, 1, 4), 0.25))


def test_comes_back_from_disk(tmp_path):
    model = headway.create("ngram", vocab_size=9, order=3).fit(torch.randint(9, (100,)))
    ids = torch.randint(9, (2, 8))
    again = headway.load(model.save(tmp_path / "model"))
    assert again.n_params == model.n_params
    assert_close(again(ids), model(ids), rtol=0, atol=0)

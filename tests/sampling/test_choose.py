"""Choosing: the right distribution, and each row on its own."""

import pytest
import torch

from headway.errors import ConfigError, InputError
from headway.sampling import draw, greedy, temperature


def generators(*seeds):
    return [torch.Generator().manual_seed(s) for s in seeds]


def test_greedy_takes_the_best_and_the_lower_id_of_equals():
    assert greedy(torch.tensor([[1.0, 3.0, 3.0], [0.0, -1.0, -torch.inf]])).tolist() == [1, 0]


@pytest.mark.parametrize("seed", range(3))
def test_draws_follow_the_distribution(seed):
    """Pearson's χ² with 5 degrees of freedom: above 22.1 once in 2,000 right draws; seeds are fixed."""
    logits = torch.tensor([[2.0, 1.0, 1.0, 0.0, -torch.inf, -1.0, -3.0]])
    p = logits.softmax(-1)[0]
    n = 20_000
    rng = generators(seed)
    counts = torch.zeros(7)
    for _ in range(n):
        counts[draw(logits, rng)] += 1
    alive = p > 0
    assert counts[~alive].sum() == 0
    assert ((counts - n * p)[alive].square() / (n * p)[alive]).sum() < 22.1


def test_a_row_depends_on_its_own_seed_alone():
    logits = torch.randn(4, 50)
    together = draw(logits, generators(1, 2, 3, 4))
    for row in range(4):
        assert draw(logits[row : row + 1], generators(row + 1)).item() == together[row].item()


def test_temperature():
    logits = torch.randn(2, 9)
    assert temperature(logits, 1.0) is logits
    torch.testing.assert_close(temperature(logits, 0.5), 2 * logits)
    for bad in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="temperature="):
            temperature(logits, bad)


@pytest.mark.parametrize("row", [[1.0, float("nan")], [1.0, float("inf")], [-float("inf")] * 2])
def test_broken_rows_are_named(row):
    logits = torch.tensor([[0.0, 1.0], row])
    with pytest.raises(InputError, match="row 1 of the logits"):
        greedy(logits)
    with pytest.raises(InputError, match="row 1 of the logits"):
        draw(logits, generators(1, 2))

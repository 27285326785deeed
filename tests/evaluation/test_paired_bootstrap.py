import numpy as np
import pytest

from headway.errors import InputError
from headway.evaluation.paired_bootstrap import paired_bootstrap


class Accuracy:
    """A system by which of its answers are right."""

    statistic_name = "accuracy"

    def __init__(self, is_correct):
        self.statistics = np.stack((np.array(is_correct, dtype=float), np.ones(len(is_correct))), axis=1)

    def statistic(self, sums):
        return sums[..., 0] / sums[..., 1]


def test_the_scores_are_those_of_the_whole_set_and_equal_systems_differ_by_chance():
    first = Accuracy([1, 0, 1, 1])
    result = paired_bootstrap(first, first)
    assert (result.first, result.second, result.p) == (0.75, 0.75, 1.0)
    assert result.name == "accuracy"


def test_a_large_difference_on_many_examples_is_significant_and_a_small_one_on_few_is_not():
    rng = np.random.default_rng(0)
    good, bad = (rng.random(1000) < p for p in (0.9, 0.8))
    assert paired_bootstrap(Accuracy(good), Accuracy(bad)).p < 0.01
    assert paired_bootstrap(Accuracy([1, 1, 1, 0]), Accuracy([1, 1, 0, 0])).p > 0.05


def test_pairing_counts_systems_that_err_on_the_same_examples_are_told_apart():
    base = np.arange(400) % 2 == 0
    better = base.copy()
    better[1:40:4] = True  # ten more right answers, none lost
    paired = paired_bootstrap(Accuracy(better), Accuracy(base)).p
    shuffled = paired_bootstrap(Accuracy(better), Accuracy(np.random.default_rng(0).permutation(base))).p
    assert paired < 0.01 < shuffled


def test_the_confidence_interval_is_that_of_a_binomial_proportion():
    is_correct = np.arange(1000) % 5 != 0
    result = paired_bootstrap(Accuracy(is_correct), Accuracy(~is_correct), samples=4000)
    assert result.ci_half_widths[0] == pytest.approx(1.96 * (0.8 * 0.2 / 1000) ** 0.5, rel=0.1)


def test_the_p_value_is_uniform_under_the_null_hypothesis():
    rng = np.random.default_rng(1)
    p = [paired_bootstrap(*(Accuracy(rng.random(200) < 0.7) for _ in range(2)), samples=200).p for _ in range(60)]
    assert 0.3 < np.mean(p) < 0.7
    assert np.mean(np.array(p) < 0.05) < 0.2


def test_systems_with_other_examples_are_refused():
    with pytest.raises(InputError, match="on the same examples by the same score, not 2 by accuracy and 3 by accuracy"):
        paired_bootstrap(Accuracy([1, 0]), Accuracy([1, 0, 1]))

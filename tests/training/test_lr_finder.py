"""The learning-rate range test and its suggestion."""

import math

import pytest

from headway.errors import ConfigError, HeadwayError
from headway.training.lr_finder import LRTrial, find_lr, suggest_lr
from tests.training.recipes import make


def test_the_steepest_fall_is_suggested():
    rates = [10 ** (-6 + 6 * i / 99) for i in range(100)]
    losses = [4 - 2 / (1 + math.exp(-4 * (math.log10(rate) + 3))) for rate in rates]  # steepest at 1e-3
    trials = [LRTrial(rate, loss, loss) for rate, loss in zip(rates, losses, strict=True)]
    assert suggest_lr(trials) == pytest.approx(1e-3, rel=0.2)


def test_a_sweep_suggests_a_rate_that_learns_and_repeats_itself(tmp_path):
    sweep = find_lr(make(tmp_path), steps=80)
    assert 1e-4 < sweep.suggestion < 0.3
    rates = [trial.lr for trial in sweep.trials]
    assert rates == sorted(rates)
    assert rates[0] == pytest.approx(1e-6)
    assert find_lr(make(tmp_path), steps=80).suggestion == sweep.suggestion


def test_a_recipe_is_found_by_its_path(tmp_path):
    recipe = make(tmp_path)
    (tmp_path / "mine.toml").write_text(recipe.to_toml())
    assert find_lr(tmp_path / "mine.toml", steps=20, high=1e-2) == find_lr(recipe, steps=20, high=1e-2)
    with pytest.raises(ConfigError, match="no recipe 'no-such'"):
        find_lr("no-such")


def test_a_sweep_that_shows_nothing_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"low=1, high=0\.1"):
        find_lr(make(tmp_path), low=1, high=0.1)
    with pytest.raises(ConfigError, match="steps=3 are too few"):
        find_lr(make(tmp_path), steps=3)
    with pytest.raises(HeadwayError, match="never falls"):
        suggest_lr([LRTrial(10.0**i, i, i) for i in range(20)])
    with pytest.raises(HeadwayError, match="diverged after 2 steps"):
        suggest_lr([LRTrial(1.0, 1, 1), LRTrial(2.0, 1, 1)])

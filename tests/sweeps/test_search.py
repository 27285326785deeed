"""Random points and successive halving follow from the seed and the evaluations alone."""

import math
import sys

import pytest

from headway.errors import ConfigError, InputError
from headway.sweeps.points import SweepRange
from headway.sweeps.search import SuccessiveHalving, random_points

RANGES = {"train.lr": SweepRange(1e-4, 1e-1, log=True), "model.n_layers": SweepRange(1, 4)}


def test_random_points_lie_in_their_ranges_and_more_points_begin_with_the_same_ones():
    points = random_points(RANGES, {"train.schedule": ["cosine", "linear"]}, 40, seed=3)
    assert len({point.name for point in points}) == 40
    rates = [point.settings["train.lr"] for point in points]
    assert all(1e-4 <= rate <= 1e-1 for rate in rates)
    below = sum(rate < math.sqrt(1e-4 * 1e-1) for rate in rates)
    assert 10 <= below <= 30  # half of them, were they many: uniform in the logarithm, not in the number
    assert {point.settings["model.n_layers"] for point in points} == {1, 2, 3, 4}
    assert {point.settings["train.schedule"] for point in points} == {"cosine", "linear"}
    assert random_points(RANGES, {"train.schedule": ["cosine", "linear"]}, 7, seed=3) == points[:7]
    assert random_points(RANGES, {}, 3, seed=4) != random_points(RANGES, {}, 3, seed=3)


def test_a_small_space_is_exhausted():
    points = random_points({}, {"model.n_layers": [1, 2, 3]}, 10, seed=0)
    assert sorted(point.settings["model.n_layers"] for point in points) == [1, 2, 3]
    with pytest.raises(ConfigError, match="something to draw"):
        random_points({}, {}, 3, seed=0)


def survivors(curves):
    """How many evaluations each run makes before it is stopped."""
    halving, counts = SuccessiveHalving(), []
    for losses in curves:
        trial = halving.start()
        n = next((i for i, loss in enumerate(losses, 1) if trial.report(i, loss)), len(losses))
        halving.end(trial)
        counts.append(n)
    return counts


def test_halving_stops_runs_that_fall_behind_and_no_others():
    good, bad = [3.0, 2.0, 1.5, 1.2, 1.0, 0.9, 0.8, 0.7, 0.6], [9.0] * 9
    assert survivors([good, bad, bad, good]) == [9, 1, 1, 9]
    late = [3.0, 2.9, 2.8, 2.7, 2.7, 2.7, 2.7, 2.7, 2.7]
    assert survivors([good, bad, bad, late]) == [9, 1, 1, 3]  # as good at its first evaluation, behind at its third
    assert survivors([good, [math.nan] * 9]) == [9, 1]


def test_evaluations_that_a_resumed_run_repeats_change_nothing():
    halving = SuccessiveHalving()
    trial = halving.start()
    for step, loss in [(10, 3.0), (20, 2.0), (20, 2.0), (10, 3.0), (30, 1.0)]:
        trial.report(step, loss)
    assert trial.last_loss == 1.0
    assert trial.trial.storage.get_trial(trial.trial._trial_id).intermediate_values == {1: 3.0, 2: 2.0, 3: 1.0}


def test_without_optuna_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"need Optuna: pip install .*\[search\]"):
        random_points(RANGES, {}, 3, seed=0)

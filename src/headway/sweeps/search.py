"""Random search and successive halving, through Optuna (the extra `search`).

Both are functions of the seed and of what the runs have logged, so that a sweep which is resumed draws the same points
and stops the same runs.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from headway.errors import ConfigError, InputError, install_command
from headway.sweeps.points import SweepPoint, SweepRange, point_name, short_keys

REDUCTION_FACTOR = 3  # of successive halving: the best third of the runs goes on (Li et al. 2020 use 4; Hyperband 3)
SIGNIFICANT_DIGITS = 4  # of a random number: enough to search with, and short enough for a name
DRAWS_PER_POINT = 50  # before a space of whole numbers or names counts as exhausted


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise InputError(f"--random and --halving need Optuna: {install_command('search')}") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def random_points(
    ranges: Mapping[str, SweepRange], choices: Mapping[str, Sequence[Any]], n: int, seed: int
) -> list[SweepPoint]:
    """`n` different points, each setting drawn from its range or its list. More points begin with the same ones."""
    if not ranges and not choices:
        raise ConfigError("--random needs something to draw: add --range train.lr=1e-4..1e-2:log")
    optuna = _optuna()
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    names, points = short_keys([*ranges, *choices]), {}
    for _ in range(DRAWS_PER_POINT * n):
        trial = study.ask()
        settings: dict[str, Any] = {key: _draw(trial, key, bounds) for key, bounds in ranges.items()}
        for key, values in choices.items():
            settings[key] = values[trial.suggest_int(key, 0, len(values) - 1)]
        name = point_name(settings, names)
        points[name] = SweepPoint(name, settings)
        if len(points) == n:
            break
    return list(points.values())


def _draw(trial: Any, key: str, bounds: SweepRange) -> float:
    if bounds.is_integer:
        return int(trial.suggest_int(key, int(bounds.low), int(bounds.high), log=bounds.log))
    value = float(f"{trial.suggest_float(key, bounds.low, bounds.high, log=bounds.log):.{SIGNIFICANT_DIGITS}g}")
    return min(max(value, bounds.low), bounds.high)


class SuccessiveHalving:
    """Asynchronous successive halving (Li et al. 2020): at its 1st, 3rd, 9th, … evaluation a run stops unless it is
    among the best third of the runs that came as far."""

    def __init__(self) -> None:
        optuna = _optuna()
        pruner = optuna.pruners.SuccessiveHalvingPruner(
            min_resource=1, reduction_factor=REDUCTION_FACTOR, min_early_stopping_rate=0
        )
        self._complete = optuna.trial.TrialState.COMPLETE
        self._study = optuna.create_study(direction="minimize", pruner=pruner)

    def start(self) -> "HalvingTrial":
        """The next run, in the order of the points."""
        return HalvingTrial(self._study.ask())

    def end(self, trial: "HalvingTrial") -> None:
        """What the run has reported counts for all later ones."""
        self._study.tell(trial.trial, trial.last_loss, state=self._complete)


class HalvingTrial:
    """The evaluations of one run."""

    def __init__(self, trial: Any):
        self.trial = trial
        self.is_pruned = False
        self.last_loss = math.inf
        self._last_step = -1
        self._n_evaluations = 0

    def report(self, step: int, loss: float) -> bool:
        """Note an evaluation; True if the run should stop. One that a resumed run repeats changes nothing."""
        if step > self._last_step and not self.is_pruned:
            self._last_step, self._n_evaluations = step, self._n_evaluations + 1
            self.last_loss = loss if math.isfinite(loss) else math.inf
            self.trial.report(self.last_loss, self._n_evaluations)
            self.is_pruned = bool(self.trial.should_prune())
        return self.is_pruned

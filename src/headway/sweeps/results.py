"""What a sweep yields: a `PointResult` per point, read back from the runs on disk. report.py prints and plots them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from headway.errors import HeadwayError
from headway.run_reader import TrainingRun
from headway.runs import Run
from headway.sweeps.manifest import SweepManifest
from headway.sweeps.points import SweepPoint
from headway.sweeps.search import HalvingTrial, SuccessiveHalving

PointStatus = Literal["finished", "pruned", "failed", "interrupted", "running", "pending"]


@dataclass(frozen=True)
class PointResult:
    """One run of a sweep."""

    name: str
    settings: dict[str, Any]  # those that vary, by dotted name
    path: Path  # of the run
    status: PointStatus  # pruned: stopped early by successive halving; pending: not started
    scores: dict[str, float] = field(default_factory=dict)  # on the validation set, of the best checkpoint
    metric: str = ""  # the score that tells the most: "bits_per_byte"
    score: float = math.nan  # its value
    selection_loss: float = math.inf  # what points are sorted by: smaller is better
    steps: int = 0
    seconds: float = 0.0
    n_tokens: int = 0
    n_params: int = 0
    failure: str = ""  # why it failed

    def to_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "path": str(self.path)}


@dataclass(frozen=True, repr=False)
class SweepResult:
    """All points of a sweep, the best first, then those without a score."""

    path: Path
    recipe: str
    keys: list[str]  # the settings that vary
    points: list[PointResult]
    is_grid: bool  # every combination, rather than random points
    interrupted: bool = False

    def __repr__(self) -> str:
        scored = [point for point in self.points if point.metric]
        best = f", best {scored[0].name}: {scored[0].metric} {scored[0].score:.4f}" if scored else ""
        n_finished = sum(point.status == "finished" for point in self.points)
        return f"SweepResult({str(self.path)!r}, {n_finished} of {len(self.points)} runs finished{best})"

    @property
    def best(self) -> PointResult:
        """The point with the best validation score."""
        if not any(point.metric for point in self.points):
            raise HeadwayError(f"no run of {self.path} has a validation score yet; see its points for the reasons")
        return self.points[0]

    @property
    def columns(self) -> dict[str, list[Any]]:
        """The table by columns, ready for pandas: `pandas.DataFrame(result.columns)`."""
        scores = dict.fromkeys(name for point in self.points for name in point.scores)
        columns: dict[str, list[Any]] = {"name": [point.name for point in self.points]}
        columns |= {key: [point.settings[key] for point in self.points] for key in self.keys}
        columns |= {name: [point.scores.get(name, math.nan) for point in self.points] for name in scores}
        totals = ("steps", "seconds", "n_tokens", "n_params", "status")
        return columns | {name: [getattr(point, name) for point in self.points] for name in totals}

    def to_dict(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "recipe": self.recipe,
            "settings": self.keys,
            "interrupted": self.interrupted,
            "points": [point.to_dict() for point in self.points],
        }


def read_sweep(path: str | Path) -> SweepResult:
    """The results of a sweep as far as it has come, from its folder."""
    return collect_results(Path(path), SweepManifest.read(Path(path)))


def collect_results(
    out_dir: Path, manifest: SweepManifest, failures: Mapping[str, str] | None = None, *, interrupted: bool = False
) -> SweepResult:
    """The results on disk. `failures` are reasons by point, of runs that failed before they had a log."""
    points = manifest.points()
    pruned = set(pruned_points(out_dir, points)) if manifest.halving else set()
    results = []
    for point in points:
        result = _point_result(out_dir / point.name, point, is_pruned=point.name in pruned)
        if result.status in ("pending", "interrupted") and (reason := (failures or {}).get(point.name)):
            result = PointResult(**{**result.__dict__, "status": "failed", "failure": reason})
        results.append(result)
    results.sort(key=lambda result: (not result.metric, result.selection_loss))
    return SweepResult(out_dir, manifest.recipe, manifest.keys, results, not manifest.random, interrupted)


def _point_result(path: Path, point: SweepPoint, *, is_pruned: bool) -> PointResult:
    if not Run.exists(path):
        return PointResult(point.name, point.settings, path, "pending")
    run = TrainingRun(path)
    metric, score = run.primary_score
    return PointResult(
        name=point.name,
        settings=point.settings,
        path=path,
        status="pruned" if is_pruned and run.status == "interrupted" else run.status,
        scores=run.scores,
        metric=metric,
        score=score,
        selection_loss=run.best.selection_loss if run.checkpoints else math.inf,
        steps=run.steps,
        seconds=run.seconds,
        n_tokens=run.n_tokens,
        n_params=run.n_params,
        failure=run.failure,
    )


def first_sentence(failure: str) -> str:
    """What went wrong, without the advice on how to resume the run by itself."""
    return failure.partition(". ")[0]


def pruned_points(out_dir: Path, points: list[SweepPoint]) -> Iterator[str]:
    """The points that successive halving has stopped, from what their runs have logged."""
    halving = SuccessiveHalving()
    for point in points:
        trial = halving.start()
        report_logged(trial, out_dir / point.name)
        halving.end(trial)
        if trial.is_pruned:
            yield point.name


def report_logged(trial: HalvingTrial, path: Path) -> None:
    """Report every evaluation in the log of a run."""
    validation = TrainingRun(path).validation
    for step, loss in zip(validation["step"], validation.get("selection_loss", []), strict=False):
        trial.report(int(step), loss)

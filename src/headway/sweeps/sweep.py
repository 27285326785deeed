"""`headway.sweep`: train one recipe with many settings, and compare the runs.

    manifest = recipe, fixed settings, and the settings to vary    (manifest.py)
    for each point:  skip it if it is finished;  else train it, from its last checkpoint if it has one
    results = read back from the runs                              (results.py)

Each point is an ordinary run in the folder of the sweep, which `headway eval`, `generate` and `show curves` open. All
state is on disk, so a sweep that is killed continues where it was.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.config import Recipe
from headway.config.setting_use import unused_in_all
from headway.data.token_shards import OnPrepare
from headway.devices import parse_device
from headway.errors import CheckpointError, ConfigError
from headway.files import file_lock, free_name
from headway.run_reader import SCORE_TITLES, TrainingRun, format_score
from headway.runs import Run
from headway.sweeps.jobs import run_jobs
from headway.sweeps.manifest import BASE_FILE, SweepManifest, is_sweep, latest_sweep, make_manifest
from headway.sweeps.points import SweepRange
from headway.sweeps.results import SweepResult, collect_results, first_sentence, report_logged
from headway.sweeps.search import HalvingTrial, SuccessiveHalving
from headway.sweeps.train_point import Outcome, train_point
from headway.sweeps.worker_plugins import check_worker_plugins
from headway.training.callbacks import Callbacks, progress_callbacks
from headway.training.progress import OnMessage, OnStep, Progress
from headway.training.signals import StopTraining
from headway.training.threads import cpu_threads

LOCK_FILE = ".lock"


def sweep(
    recipe: Recipe | str | Path,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    ranges: Mapping[str, SweepRange | tuple[float, float]] | None = None,
    settings: Sequence[str] = (),
    random: int = 0,
    halving: bool = False,
    seed: int = 0,
    out: str | Path | None = None,
    jobs: int = 1,
    resume: bool = False,
    quiet: bool = False,
    on_step: OnStep | None = None,
    on_message: OnMessage | None = None,
    on_prepare: OnPrepare | None = None,
) -> SweepResult:
    """Train a recipe with every combination of the grid's values: `grid={"train.lr": [1e-3, 3e-3]}`.

    `settings` are fixed for all runs ("train.steps=200"). With `random=N`, N points are drawn instead: numbers from
    `ranges`, names from the lists of `grid`. With `halving`, runs that fall behind are stopped early. Both need Optuna.
    `jobs` runs are trained at a time, more than one in processes of their own.

    Runs go to the folder `out` (default: the next free `runs/sweep`). With `resume`, finished runs are kept, unfinished
    ones continue from their checkpoints, and failed ones are tried again; `recipe` may then be the folder of the sweep
    alone. A run that fails does not stop the others: see `failure` of its point. After Ctrl-C the result is what there
    is, and its `interrupted` is true.

    Progress is shown as by `headway.train`: unless `quiet`, or if you pass callbacks of your own.
    """
    if jobs < 1:
        raise ConfigError(f"jobs={jobs} must be at least 1")
    if halving and jobs > 1:
        raise ConfigError("successive halving compares each run with the ones before it: leave --jobs at 1")
    bounds = {
        key: value if isinstance(value, SweepRange) else SweepRange(*value) for key, value in (ranges or {}).items()
    }
    is_given = True  # whether the settings are given in this call, rather than by sweep.json
    if resume and not isinstance(recipe, Recipe) and is_sweep(recipe):
        is_given = False
        out_dir, manifest = Path(recipe), SweepManifest.read(Path(recipe))
        if grid or bounds or settings or random or halving:
            raise ConfigError(f"{recipe} is a sweep and has its own settings: name its recipe to add points")
    elif not isinstance(recipe, Recipe) and is_sweep(recipe):
        raise ConfigError(f"{recipe} is a sweep, not a recipe; to continue it, add --resume")
    else:
        out_dir = Path(out) if out is not None else _default_dir(resume)
        manifest = make_manifest(recipe, settings, grid or {}, bounds, random, seed, halving)
    manifest = _check_folder(out_dir, manifest, resume)
    recipes = manifest.recipes(imports=is_given)  # refuses what is wrong with any before anything is written
    if jobs > 1:
        check_worker_plugins(recipes.values())
    with _locked(out_dir), progress_callbacks(quiet, on_step, on_message, on_prepare) as callbacks:
        varied = [*manifest.keys, *(setting.partition("=")[0].strip() for setting in manifest.settings)]
        for note in unused_in_all(recipes.values(), varied).values():
            callbacks.on_message(f"note        {note}")
        if resume and not is_sweep(out_dir):
            callbacks.on_message(f"new sweep   there is nothing to resume in {out_dir} yet")
        threads = manifest.threads or _choose_threads(manifest, jobs, callbacks.on_message)
        manifest = replace(manifest, threads=threads)
        manifest.write(out_dir)
        runner = _Runner(out_dir, manifest, callbacks)
        return runner.run_parallel(jobs) if jobs > 1 else runner.run()


class _Runner:
    """Trains the points of a sweep."""

    def __init__(self, out_dir: Path, manifest: SweepManifest, callbacks: Callbacks):
        self.out_dir, self.manifest, self.callbacks = out_dir, manifest, callbacks
        self.recipes = manifest.recipes()
        self._messages: set[str] = set()
        self.numbers = {name: number for number, name in enumerate(self.recipes, 1)}
        self.failures: dict[str, str] = {}

    def on_message(self, line: str) -> None:
        """Pass a message on, unless an earlier run had the same: about the data, for example."""
        if line not in self._messages:
            self._messages.add(line)
            self.callbacks.on_message(line)

    def run(self) -> SweepResult:
        """One run after the other, in this process."""
        halving = SuccessiveHalving() if self.manifest.halving else None
        for name in self.recipes:
            trial = halving.start() if halving is not None else None
            outcome = self._run_point(name, trial)
            if outcome.interrupted:
                return self._results(interrupted=True)
            if halving is not None and trial is not None:
                report_logged(trial, self.out_dir / name)  # its last evaluation too
                halving.end(trial)
        return self._results()

    def _run_point(self, name: str, trial: HalvingTrial | None) -> Outcome:
        path = self.out_dir / name
        if self._is_finished(name):
            return Outcome()
        if trial is not None:
            report_logged(trial, path)
            if trial.is_pruned:
                self.on_message(f"pruned      {name}, earlier")
                return Outcome()

        def on_step(progress: Progress) -> None:
            self.callbacks.on_step(progress)
            score = progress.score
            if trial is not None and score is not None and trial.report(progress.step, score.selection_loss):
                raise StopTraining

        self._announce(name)
        outcome = train_point(self.recipes[name], path, Callbacks(on_step, self.on_message, self.callbacks.on_prepare))
        if trial is not None and trial.is_pruned:
            self.on_message(f"pruned      {name}: not among the best so far")
            return Outcome()
        self._report_end(name, outcome)
        return outcome

    def run_parallel(self, n_jobs: int) -> SweepResult:
        """Several runs at a time, in processes of their own."""
        waiting = {name: recipe for name, recipe in self.recipes.items() if not self._is_finished(name)}
        is_interrupted = False

        def on_end(name: str, outcome: Outcome) -> None:
            nonlocal is_interrupted
            is_interrupted = is_interrupted or outcome.interrupted
            self._report_end(name, outcome)

        try:
            run_jobs(
                waiting,
                self.out_dir,
                n_jobs,
                on_start=self._announce,
                on_end=on_end,
                on_message=self.on_message,
            )
        except KeyboardInterrupt as interrupt:  # all runs have been stopped, and saved unless it says otherwise
            is_interrupted = True
            if str(interrupt):
                self.on_message(str(interrupt))
        return self._results(interrupted=is_interrupted)

    def _is_finished(self, name: str) -> bool:
        path = self.out_dir / name
        is_finished = Run.exists(path) and TrainingRun(path).status == "finished"
        if is_finished:
            self.on_message(f"finished    {name}, earlier")
        return is_finished

    def _announce(self, name: str) -> None:
        self.on_message(f"\nrun {self.numbers[name]} of {len(self.recipes)}  {name}")

    def _report_end(self, name: str, outcome: Outcome) -> None:
        metric, score = TrainingRun(self.out_dir / name).primary_score
        if outcome.failure:
            self.failures[name] = outcome.failure
            self.on_message(f"failed      {name}: {first_sentence(outcome.failure)}")
        elif not outcome.interrupted:
            self.on_message(f"finished    {name}: {SCORE_TITLES.get(metric, metric)} {format_score(metric, score)}")

    def _results(self, *, interrupted: bool = False) -> SweepResult:
        return collect_results(self.out_dir, self.manifest, self.failures, interrupted=interrupted)


def _default_dir(resume: bool) -> Path:
    new = free_name(Path("runs") / "sweep")
    return (latest_sweep(new.parent) or new) if resume else new


def _choose_threads(manifest: SweepManifest, jobs: int, on_message: OnMessage) -> int:
    """The threads of every run, chosen once: sums on a CPU depend on their number, so runs compare and resume exactly
    only with the same one. 0, on a GPU or if the recipe sets it, leaves runs as they are."""
    config = next(iter(manifest.recipes().values())).train
    device = parse_device(config.device)
    if device.type != "cpu" or config.threads != "auto":
        return 0
    with cpu_threads("auto", device, on_message=on_message) as threads:
        return max(1, threads // jobs)


def _check_folder(out_dir: Path, manifest: SweepManifest, resume: bool) -> SweepManifest:
    """Refuse a folder that holds something else, or a sweep that would be mixed with this one."""
    if is_sweep(out_dir):
        if not resume:
            raise CheckpointError(
                f"{out_dir} already holds a sweep; continue it with --resume, or choose another --out"
            )
        return manifest.extend(SweepManifest.read(out_dir), out_dir)
    own_files = {LOCK_FILE, BASE_FILE}  # of a sweep that was killed before it could write its manifest
    if out_dir.exists() and (not out_dir.is_dir() or any(path.name not in own_files for path in out_dir.iterdir())):
        raise CheckpointError(f"{out_dir} already exists and is no sweep; choose another folder with --out")
    return manifest


@contextmanager
def _locked(out_dir: Path) -> Iterator[None]:
    """Lock the sweep for this process: two that train it would train the same runs."""
    out_dir.mkdir(parents=True, exist_ok=True)
    try:
        with file_lock(out_dir / LOCK_FILE, wait=False):
            yield
    except BlockingIOError:
        raise CheckpointError(f"{out_dir} is being trained by another process; wait for it, or end it") from None

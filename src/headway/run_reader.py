"""`headway.open_run`: a run on disk as Python values, for tables, plots and notebooks.

    run = headway.open_run("runs/demo")
    run.status, run.steps, run.scores["bits_per_byte"]
    pandas.DataFrame(run.history)
    model = run.model()

A run may be unfinished, still training, or damaged: what can be read is there. Nothing is read before it is asked for,
and only `model` imports torch, so that hundreds of runs are listed in a moment.
"""

import math
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headway.config import Recipe, load_recipe
from headway.entry_points import plugin_options
from headway.errors import CheckpointError, InputError, suggest
from headway.file_reading import read_utf8
from headway.runs import (
    END_EVENTS,
    LOG_FILE,
    RECIPE_FILE,
    Run,
    best_checkpoint,
    read_progress,
    selection_loss,
    suggest_run,
)

if TYPE_CHECKING:
    from headway.models import Model

Status = Literal["finished", "interrupted", "running", "failed"]
STATUS_BY_EVENT: dict[str, Status] = {"end": "finished", "interrupted": "interrupted", "failed": "failed"}
SCORE_ORDER = ("bits_per_byte", "bleu", "exact", "accuracy", "nats_per_target")  # the first one there tells the most
SCORE_TITLES = {
    "bits_per_byte": "bits per byte",
    "bleu": "BLEU",
    "exact": "exact match",
    "accuracy": "accuracy",
    "nats_per_target": "nats per target",
    "nats_per_token": "nats per token",
    "perplexity": "perplexity",
}
HIGHER_IS_BETTER = frozenset({"bleu", "exact", "accuracy"})
TRAINING_METRICS = frozenset({"loss", "lr", "grad_norm", "tokens_per_second", "mfu", "memory"})
TOTALS = ("step", "seconds", "train_tokens")  # so far
VALIDATION_SIZES = frozenset({"n_tokens", "n_bytes", "n_targets", "lost_bytes", "context"})  # beside the scores


@dataclass(frozen=True)
class RunCheckpoint:
    """A checkpoint of a run: a model directory that `headway.load` opens."""

    step: int
    path: Path
    scores: dict[str, float]  # on the validation set; empty if this step was not evaluated
    selection_loss: float  # what the best checkpoint is selected by, smaller is better; infinite if not evaluated
    is_best: bool = False


@dataclass(frozen=True)
class RunSample:
    """A text that the model wrote at an evaluation."""

    step: int
    text: str


def open_run(path: str | Path) -> "TrainingRun":
    """Open the folder of a run, whatever its state. Nothing in it is changed."""
    path = Path(path)
    if Run.exists(path) or (path / LOG_FILE).is_file():
        return TrainingRun(path)
    if not path.exists():
        hint = suggest_run(path, otherwise=" `headway runs` lists those in runs/")
        raise CheckpointError(f"no run at {path}.{hint}")
    if parent := next((folder for folder in path.absolute().parents if Run.exists(folder)), None):
        raise CheckpointError(f"{path} is a part of a run; open the run itself: {parent}")
    if inside := [str(run.path) for run in find_runs(path)]:
        raise CheckpointError(f"{path} is a folder of runs, not a run; open one of them: {_listed(inside)}")
    raise CheckpointError(f"{path} is not a run: it has neither {RECIPE_FILE} nor {LOG_FILE}")


def find_runs(folder: str | Path, depth: int = 3) -> "list[TrainingRun]":
    """The runs in a folder and in its subfolders, such as those of a sweep, by path."""
    return [TrainingRun(path) for path in sorted(_run_folders(Path(folder), depth), key=_natural_order)]


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    try:
        if Run.exists(folder):
            yield folder
            return
        children = list(folder.iterdir()) if depth > 0 and folder.is_dir() else []
    except OSError:  # a folder that we may not read
        return
    for child in children:
        if not child.name.startswith("."):
            yield from _run_folders(child, depth - 1)


class NamedValues(dict[str, Any]):
    """A dict that lists its names in the error about a missing one."""

    def __missing__(self, name: str) -> Any:
        near = suggest(str(name), self, otherwise=f" There are: {', '.join(self) or 'none'}")
        raise InputError(f"{name!r} was neither set nor logged in this run.{near}")


@dataclass(frozen=True, repr=False)
class TrainingRun:
    """A run on disk: what was trained, how it went, and what came of it."""

    path: Path

    def __repr__(self) -> str:
        name, score = self.primary_score
        scored = f", {name} {score:.4f}" if name else ""
        return f"TrainingRun({str(self.path)!r}, {self.family}, {self.status}, {self.steps:,} steps{scored})"

    # ── what was trained ──────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def recipe(self) -> Recipe:
        return load_recipe(self.path)

    @cached_property
    def family(self) -> str:
        """The model family: "gpt", "lstm", …"""
        return str(self.settings.get("model.family", "unknown"))

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings in recipe.toml by their dotted names: {"train.lr": 0.001, …}. They are not checked, so also a
        recipe of another version is read; an unset one is not there."""
        try:
            return NamedValues(_flattened(tomllib.loads(read_utf8(self.path / RECIPE_FILE))))
        except (OSError, ValueError, RecursionError):
            return {}

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """What the run logged at its start (versions, device, git revision, size of the data), and its totals."""
        start = next((record for record in self._log_ends if record.get("event") == "start"), {})
        totals = {"steps": self.steps, "seconds": self.seconds, "train_tokens": self.n_tokens}
        return {**{key: value for key, value in start.items() if key != "event"}, **totals}

    # ── how it went ───────────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def status(self) -> Status:
        """finished; failed: it met an error; running: a process trains it now; interrupted: it can be resumed."""
        events = [str(record["event"]) for record in self._log_ends if "event" in record]
        if events and events[-1] in END_EVENTS:
            return STATUS_BY_EVENT[events[-1]]
        return "running" if Run(self.path).is_locked() else "interrupted"

    @property
    def failure(self) -> str:
        """Why the run failed; empty if it did not."""
        reasons = [record.get("reason", "") for record in self._log_ends if record.get("event") == "failed"]
        return str(reasons[-1]) if reasons and self.status == "failed" else ""

    @property
    def steps(self) -> int:
        """Steps done, as far as logged or saved."""
        return int(self._latest("step"))

    @property
    def seconds(self) -> float:
        return float(self._latest("seconds"))

    @property
    def n_tokens(self) -> int:
        """Tokens trained on, repetitions included."""
        return int(self._latest("train_tokens"))

    @property
    def n_params(self) -> int:
        """Parameters of the model; 0 if the log does not tell."""
        return int(self._latest("n_params"))

    @cached_property
    def last_metrics(self) -> dict[str, float]:
        """The training metrics that were logged last: {"loss": 2.31, "lr": 0.001, …}."""
        records = [record for record in self._log_ends if "event" not in record and "loss" in record]
        last = records[-1] if records else {}
        return {name: float(last[name]) for name in sorted(TRAINING_METRICS) if _is_number(last.get(name))}

    @cached_property
    def history(self) -> dict[str, list[float]]:
        """Every logged number as columns of equal length, a row per step: `pandas.DataFrame(run.history)`.

        "step" comes first. A metric that was not logged at a step is NaN there. An n-gram, which has no steps, has
        one row.
        """
        rows: dict[int, dict[str, float]] = {}
        for record in self._log:
            step = record.get("step")
            if record.get("event") not in (None, "end") or not isinstance(step, int) or not _is_number(step):
                continue
            numbers = {key: float(value) for key, value in record.items() if _is_number(value) and key != "step"}
            row = rows.setdefault(step, {})
            if "event" in record:  # the last step again, with totals; the only record of an n-gram
                numbers = {key: value for key, value in numbers.items() if key not in {*row, "best_step", "n_params"}}
            row.update(numbers)
        names = dict.fromkeys(name for row in rows.values() for name in row)
        steps = sorted(rows)
        columns: dict[str, list[float]] = {"step": list(steps)}
        return NamedValues(columns | {name: [rows[step].get(name, math.nan) for step in steps] for name in names})

    @cached_property
    def validation(self) -> dict[str, list[float]]:
        """The rows of `history` at which the model was evaluated, with the validation scores alone."""
        history = self.history
        scores = [name for name in history if name not in {*TOTALS, *TRAINING_METRICS, *VALIDATION_SIZES}]
        evaluated = [i for i in range(len(history["step"])) if any(not math.isnan(history[name][i]) for name in scores)]
        names = [name for name in (*TOTALS, *scores) if name in history]
        return {name: [history[name][i] for i in evaluated] for name in names}

    @cached_property
    def samples(self) -> list[RunSample]:
        """Texts that the model wrote at its evaluations; none unless the recipe sets eval.sample_tokens."""
        records = [record for record in self._log if record.get("event") == "sample"]
        return [RunSample(_whole(record.get("step")), str(record.get("text", ""))) for record in records]

    # ── what came of it ───────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def checkpoints(self) -> list[RunCheckpoint]:
        """The checkpoints on disk in the order of their steps; the average of the last ones, if there is one, last."""
        folders = {folder: read_progress(folder) for folder in Run(self.path).models()}
        folders = {folder: progress for folder, progress in folders.items() if folder.is_dir()}  # not one deleted since
        best = best_checkpoint(folders) if folders else None
        return [_checkpoint(folder, progress, folder == best) for folder, progress in folders.items()]

    @property
    def best(self) -> RunCheckpoint:
        """The checkpoint with the best validation score, which `headway.load` takes."""
        if not self.checkpoints:
            raise CheckpointError(
                f"{self.path} has no checkpoint yet; train it: headway train {self.path} --resume{plugin_options()}"
            )
        return next(checkpoint for checkpoint in self.checkpoints if checkpoint.is_best)

    @property
    def scores(self) -> dict[str, float]:
        """The validation scores of the best checkpoint; empty if the model was never evaluated."""
        return self.best.scores if self.checkpoints else {}

    @property
    def primary_score(self) -> tuple[str, float]:
        """The name and value of the score that tells the most: bits per byte of text, else BLEU, exact match, accuracy
        or the loss. Without any score, ("", NaN)."""
        name = next((name for name in SCORE_ORDER if name in self.scores), "")
        return name, self.scores.get(name, math.nan)

    def model(self, *, device: str = "cpu") -> "Model":
        """Load the model of the best checkpoint, with its tokenizer."""
        from headway.models import load

        return load(self.path, device=device)

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def _log(self) -> list[dict[str, Any]]:
        try:
            return Run(self.path).read_log()
        except (OSError, CheckpointError):
            return []

    @cached_property
    def _log_ends(self) -> list[dict[str, Any]]:
        try:
            return Run(self.path).read_log_ends()
        except (OSError, CheckpointError):
            return []

    @cached_property
    def _last_progress(self) -> dict[str, Any]:
        """training.json of the last checkpoint, with the names that the log uses."""
        run = Run(self.path)
        steps = run.checkpoint_steps()
        progress = read_progress(run.checkpoint_dir(steps[-1])) if steps else {}
        return {**progress, "train_tokens": progress.get("n_tokens")}

    def _latest(self, name: str) -> float:
        """The largest value of a number that only grows, in the log or the last checkpoint; 0 if there is none."""
        values = [record.get(name) for record in [*self._log_ends, self._last_progress]]
        return max((float(value) for value in values if value is not None and _is_finite(value)), default=0.0)


def format_score(name: str, value: float | None) -> str:
    """A score as text, with the digits that matter; empty if there is none."""
    if value is None or math.isnan(value):
        return ""
    if name in ("exact", "accuracy"):
        return f"{value:.2%}"
    return f"{value:,.2f}" if name in ("bleu", "perplexity") else f"{value:.4f}"


def _checkpoint(folder: Path, progress: Mapping[str, Any], is_best: bool) -> RunCheckpoint:
    table = progress.get("score")
    table = table if isinstance(table, dict) else {}
    numbers = {name: float(x) for name, x in table.items() if _is_number(x)}
    scores = {name: x for name, x in numbers.items() if name not in {*VALIDATION_SIZES, "selection_loss"}}
    step = progress.get("step")
    if not isinstance(step, int):
        step = int(folder.name.removeprefix("step-")) if folder.name.startswith("step-") else 0
    return RunCheckpoint(step, folder, scores, selection_loss(progress), is_best)


def _flattened(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _is_number(value: Any) -> bool:
    """Whether JSON gave a number that a float can hold: an integer may have hundreds of digits."""
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and _is_finite(value))


def _is_finite(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and -sys.float_info.max <= value <= sys.float_info.max  # exact, also for integers; false for NaN


def _whole(value: Any) -> int:
    """A step; 0 if it is not a number."""
    return int(value) if _is_finite(value) else 0


def _natural_order(path: Path) -> list[tuple[float, str]]:
    """step-9 before step-10, lr=0.003 before lr=0.01: numbers compare by their value."""
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", str(path))
    return [(float(part), "") if i % 2 else (-1.0, part) for i, part in enumerate(parts)]  # the odd ones matched


def _listed(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")

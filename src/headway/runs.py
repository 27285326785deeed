"""A run on disk describes itself: `recipe.toml`, `log.jsonl`, and `checkpoints/step-N/`.

A checkpoint is a model directory that holds, beside the weights,

    training.json          progress: step, tokens and seconds so far, the best step
    training.safetensors   optimizer state, and random number generator states of every rank
    shards/                in place of model.safetensors, if the model was sharded over ranks (FSDP)
    checksums.json         SHA-256 of each of these files

It is written to a temporary folder, flushed and renamed, and renamed again before it is deleted, so a reader sees all
of it or nothing; its checksums are verified before it is used. Only the process that holds `.lock` changes a run.
"""

import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from headway.entry_points import plugin_options
from headway.errors import CheckpointError, did_you_mean, nearest
from headway.file_reading import open_regular, read_json
from headway.files import (
    append_line,
    file_lock,
    non_finite_to_null,
    remove_directory,
    verify_checksums,
    write_text,
)

RECIPE_FILE, LOG_FILE, LOCK_FILE = "recipe.toml", "log.jsonl", ".lock"
PROGRESS_FILE = "training.json"  # of a checkpoint
AVERAGED = "averaged"  # subfolder of a run: the mean of its last checkpoints
END_EVENTS = ("end", "interrupted", "failed")  # of a log: the run is complete, was stopped, or met an error
LOG_TAIL_BYTES = 2**15
MAX_LOG_BYTES = 2**29  # a line for each of a million steps has 300 MB
MAX_LOG_LINE_BYTES = 2**20  # a longer line is dropped
MAX_PROGRESS_BYTES = 2**20
RUNS_FOLDER = Path("runs")  # where `headway train` puts runs
MAX_RUNS_LISTED = 5
LOCK_SECONDS = 1.0  # to wait for a process that only asks whether the run is locked


class Run:
    """The folder of one training run."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"

    @staticmethod
    def exists(path: str | Path) -> bool:
        """Whether a run was started in this folder."""
        return (Path(path) / RECIPE_FILE).is_file()

    @property
    def recipe_file(self) -> Path:
        return self.path / RECIPE_FILE

    @staticmethod
    def check_free(path: str | Path) -> Path:
        """Refuse a folder that is not empty: a new run never overwrites anything."""
        path = Path(path)
        # A process that was killed while it created the run has left no more than these.
        leftovers = (LOCK_FILE, f".{RECIPE_FILE}.")
        is_taken = path.is_dir() and not all(child.name.startswith(leftovers) for child in path.iterdir())
        if is_taken or (path.exists() and not path.is_dir()):
            hint = f"; to resume it: headway train {path} --resume{plugin_options()}" if Run.exists(path) else ""
            raise CheckpointError(f"{path} already exists; choose another folder with --out{hint}")
        return path

    @classmethod
    @contextmanager
    def create(cls, path: str | Path, recipe: str) -> "Iterator[Run]":
        """Start a run in a new folder, and hold its lock inside the block; `recipe` is TOML. If two
        processes create the same run, one succeeds and the other writes nothing."""
        run = cls(cls.check_free(path))
        run.path.mkdir(parents=True, exist_ok=True)
        with run.lock():
            cls.check_free(path)  # again: another process may have been first
            run.remove_partial()
            write_text(run.recipe_file, recipe)
            yield run

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the run for this process: two that train it would overwrite each other's work."""
        try:
            with file_lock(self.path / LOCK_FILE, wait=False, seconds=LOCK_SECONDS):
                yield
        except BlockingIOError:
            raise CheckpointError(f"{self.path} is being trained by another process; wait for it, or end it") from None

    def is_locked(self) -> bool:
        """Whether a process is training this run now."""
        if not (self.path / LOCK_FILE).is_file():
            return False
        try:
            with file_lock(self.path / LOCK_FILE, wait=False):
                return False
        except BlockingIOError:
            return True
        except OSError:  # a folder that we may only read
            return False

    # ── the log ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def log_file(self) -> Path:
        return self.path / LOG_FILE

    def log(self, **record: Any) -> None:
        append_line(self.log_file, json.dumps(non_finite_to_null(record)))

    def read_log(self) -> list[dict[str, Any]]:
        """Every complete line; a process that was killed may have left half of one."""
        try:
            with open_regular(self.log_file) as file:
                if (n_bytes := os.fstat(file.fileno()).st_size) > MAX_LOG_BYTES:
                    raise CheckpointError(
                        f"{self.log_file} has {n_bytes:,} bytes, and at most {MAX_LOG_BYTES:,} are read: is it a log? "
                        f"Move it away, or start a new run with a larger train.log_every"
                    )
                return _parse_lines(iter(lambda: file.readline(MAX_LOG_LINE_BYTES), b""))
        except FileNotFoundError:
            return []
        except OSError as problem:
            raise CheckpointError(f"{self.log_file} cannot be read: {problem.strerror or problem}") from None

    def read_log_ends(self) -> list[dict[str, Any]]:
        """The first line and the last ones: enough for a summary, and fast however long the log is."""
        try:
            with open_regular(self.log_file) as file:
                first = file.readline(MAX_LOG_LINE_BYTES)
                start, end = file.tell(), file.seek(0, 2)
                file.seek(max(start, end - LOG_TAIL_BYTES))
                tail = file.read(LOG_TAIL_BYTES)
        except FileNotFoundError:
            return []
        except OSError as problem:
            raise CheckpointError(f"{self.log_file} cannot be read: {problem.strerror or problem}") from None
        return _parse_lines([first, *tail.splitlines()])

    def has_logged_steps(self) -> bool:
        """Whether a step was logged. If so, there was a checkpoint: the first one precedes all steps."""
        return any("step" in record for record in self.read_log())

    def rewind(self, step: int | None, recipe: str) -> None:
        """Drop the log after the checkpoint that training resumes from (None: all of it), and store the recipe, whose
        settings may have changed."""
        records = [] if step is None else [record for record in self.read_log() if _step_of(record) <= step]
        records = [record for record in records if record.get("event") not in END_EVENTS]
        write_text(self.log_file, "".join(json.dumps(non_finite_to_null(record)) + "\n" for record in records))
        write_text(self.recipe_file, recipe)

    # ── checkpoints ───────────────────────────────────────────────────────────────────────────────────────────────

    def checkpoint_dir(self, step: int) -> Path:
        return self.checkpoints / f"step-{step}"

    def checkpoint_steps(self) -> list[int]:
        """Steps that have a checkpoint, in ascending order."""
        matches = [
            re.fullmatch(r"step-(0|[1-9][0-9]*)", path.name)
            for path in self.checkpoints.glob("step-*")
            if path.is_dir()
        ]
        return sorted(int(match[1]) for match in matches if match)

    @property
    def averaged_dir(self) -> Path:
        return self.path / AVERAGED

    def models(self) -> list[Path]:
        """The model directories: the checkpoints in the order of their steps, then the average, if there is one."""
        folders = [*map(self.checkpoint_dir, self.checkpoint_steps()), self.averaged_dir]
        return [folder for folder in folders if (folder / "config.json").is_file()]

    def newest_intact(self, on_warning: Callable[[str], None] = lambda line: None) -> int:
        """The step of the last checkpoint whose checksums match. Damaged ones are renamed, with a warning."""
        for step in reversed(self.checkpoint_steps()):
            folder = self.checkpoint_dir(step)
            try:
                verify_checksums(folder)
                return step
            except CheckpointError as error:
                renamed = _rename_damaged(folder)
                on_warning(f"{error}; renamed to {renamed.name}, falling back to the previous checkpoint")
        raise CheckpointError(f"{self.path} has no intact checkpoint to resume from")

    def remove_partial(self) -> None:
        """Clean up after a process that was killed while writing or deleting: remove what is half written or half
        deleted, and put back a folder that was moved but not yet replaced."""
        for parent, name in ((self.checkpoints, "step-*"), (self.path, f"{AVERAGED}*")):
            for folder in parent.glob(f".{name}.old"):
                for moved in folder.glob(name):
                    if not (parent / moved.name).exists():
                        moved.rename(parent / moved.name)
                shutil.rmtree(folder, ignore_errors=True)
            for ending in ("partial", "removed"):
                for folder in parent.glob(f".{name}.{ending}"):
                    shutil.rmtree(folder, ignore_errors=True)
        for file_name in (RECIPE_FILE, LOG_FILE):
            for file in self.path.glob(f".{file_name}.*"):
                file.unlink(missing_ok=True)

    def has_damaged(self) -> bool:
        return any(self.checkpoints.glob("step-*.damaged*"))

    def prune(self, keep: int, best_step: int | None, save_every: int) -> None:
        """Delete old checkpoints. Keeps the best one, the last one, and the `keep − 1` most recent regular ones (every
        `save_every` steps). `keep=0` keeps all."""
        if not keep:
            return
        steps = self.checkpoint_steps()
        regular = [step for step in steps[:-1] if save_every and step % save_every == 0]
        steps_to_keep = {best_step, *steps[-1:], *(regular[-(keep - 1) :] if keep > 1 else ())}
        for step in steps:
            if step not in steps_to_keep:
                with suppress(FileNotFoundError):
                    remove_directory(self.checkpoint_dir(step))  # one that is being read is left for the next time


def read_progress(checkpoint: Path) -> dict[str, Any]:
    """training.json of a checkpoint; empty if it is missing or damaged."""
    try:
        return read_json(checkpoint / PROGRESS_FILE, max_bytes=MAX_PROGRESS_BYTES)
    except CheckpointError:
        return {}


def selection_loss(progress: Mapping[str, Any]) -> float:
    """What the best checkpoint is selected by, smaller is better; infinite if this step was not evaluated."""
    score = progress.get("score")
    loss = score.get("selection_loss") if isinstance(score, dict) else None
    if isinstance(loss, int | float) and abs(loss) <= sys.float_info.max:  # exact, also for long integers
        return float(loss)
    return math.inf


def best_checkpoint(checkpoints: Mapping[Path, Mapping[str, Any]]) -> Path:
    """The checkpoint with the lowest selection loss, of equals the latest. `checkpoints` maps each to its
    `read_progress`; only those with the same `evaluation` as the newest one compete."""

    def step_of(checkpoint: Path) -> int:
        number = checkpoint.name.removeprefix("step-")
        return int(number) if number.isdecimal() else 0  # an average comes after the step that it equals

    evaluation = checkpoints[max(checkpoints, key=step_of)].get("evaluation", "")

    def rank(checkpoint: Path) -> tuple[float, int]:
        progress = checkpoints[checkpoint]
        is_comparable = progress.get("evaluation", "") == evaluation
        return selection_loss(progress) if is_comparable else math.inf, -step_of(checkpoint)

    return min(checkpoints, key=rank)


def suggest_run(path: str | Path, *, otherwise: str = "") -> str:
    """ " Did you mean 'runs/tales'?" if a run beside a path that does not exist, or in runs/, has a similar name, else
    the runs that are there; `otherwise` if there are none."""
    path = Path(path)
    folders = [folder for folder in dict.fromkeys([path.parent, RUNS_FOLDER]) if folder.is_dir()]
    runs = {folder: sorted(child.name for child in folder.iterdir() if Run.exists(child)) for folder in folders}
    for folder, names in runs.items():
        if near := nearest(path.name, names):
            return did_you_mean([str(folder / name) for name in near])
    folder, names = next(((folder, names) for folder, names in runs.items() if names), (path.parent, []))
    if not names:
        return otherwise
    return f" Runs in {folder}: {', '.join(names[:MAX_RUNS_LISTED])}" + ", …" * (len(names) > MAX_RUNS_LISTED)


def _parse_lines(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """The JSON objects of lines; a line that is no object is left out."""
    records = []
    for line in lines:
        try:
            record = json.loads(line.decode("utf-8", errors="replace"))
        except (ValueError, RecursionError):  # half a line, or one that is nested too deeply
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def _step_of(record: Mapping[str, Any]) -> int:
    step = record.get("step", 0)
    return step if isinstance(step, int) else 0


def _rename_damaged(folder: Path) -> Path:
    n, renamed = 1, folder.with_name(f"{folder.name}.damaged")
    while renamed.exists():
        n, renamed = n + 1, folder.with_name(f"{folder.name}.damaged-{n}")
    return folder.rename(renamed)

"""A run on disk describes itself: `recipe.toml`, `log.jsonl`, and `checkpoints/step-N/`.

A checkpoint is a model directory that holds, beside the weights,

    training.json          progress: step, tokens and seconds so far, the best step
    training.safetensors   optimizer state, and random number generator states of every rank
    shards/                in place of model.safetensors, if the model was sharded over ranks (FSDP)
    checksums.json         SHA-256 of each of these files

It is written to a temporary folder, flushed and renamed, so a reader sees all of it or nothing; its checksums are
verified before it is used.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from headway.entry_points import plugin_options
from headway.errors import CheckpointError
from headway.files import file_lock, non_finite_to_null, verify_checksums, write_text

RECIPE_FILE, LOG_FILE = "recipe.toml", "log.jsonl"
END_EVENTS = ("end", "interrupted", "failed")  # of a log: the run is complete, was stopped, or met an error
LOG_TAIL_BYTES = 2**15
MAX_RUNS_LISTED = 5


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
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            hint = f"; to resume it: headway train {path} --resume{plugin_options()}" if Run.exists(path) else ""
            raise CheckpointError(f"{path} already exists; choose another folder with --out{hint}")
        return path

    @classmethod
    def create(cls, path: str | Path, recipe: str) -> "Run":
        """Start a run in a new folder; `recipe` is TOML."""
        path = cls.check_free(path)
        path.mkdir(parents=True, exist_ok=True)
        write_text(path / RECIPE_FILE, recipe)
        return cls(path)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the run for this process: two that train it would overwrite each other's work."""
        try:
            with file_lock(self.path / ".lock", wait=False):
                yield
        except BlockingIOError:
            raise CheckpointError(f"{self.path} is being trained by another process; wait for it, or end it") from None

    def is_locked(self) -> bool:
        """Whether a process is training this run now."""
        if not (self.path / ".lock").is_file():
            return False
        try:
            with file_lock(self.path / ".lock", wait=False):
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
        with open(self.log_file, "a", encoding="utf-8") as file:
            file.write(json.dumps(non_finite_to_null(record)) + "\n")

    def read_log(self) -> list[dict[str, Any]]:
        """Every complete line; a process that was killed may have left half of one."""
        try:
            return _parse_lines(self.log_file.read_text(encoding="utf-8", errors="replace"))
        except FileNotFoundError:
            return []

    def read_log_ends(self) -> list[dict[str, Any]]:
        """The first line and the last ones: enough for a summary, and fast however long the log is."""
        try:
            with open(self.log_file, "rb") as file:
                first = file.readline()
                start, end = file.tell(), file.seek(0, 2)
                file.seek(max(start, end - LOG_TAIL_BYTES))
                tail = file.read()
        except FileNotFoundError:
            return []
        return _parse_lines((first + tail).decode("utf-8", errors="replace"))

    def rewind(self, step: int | None, recipe: str) -> None:
        """Drop the log after the checkpoint that training resumes from (None: all of it), and store the recipe, whose
        settings may have changed."""
        records = [] if step is None else [record for record in self.read_log() if record.get("step", 0) <= step]
        records = [record for record in records if record.get("event") not in END_EVENTS]
        write_text(self.log_file, "".join(json.dumps(record) + "\n" for record in records))
        write_text(self.recipe_file, recipe)

    # ── checkpoints ───────────────────────────────────────────────────────────────────────────────────────────────

    def checkpoint_dir(self, step: int) -> Path:
        return self.checkpoints / f"step-{step}"

    def checkpoint_steps(self) -> list[int]:
        """Steps that have a checkpoint, in ascending order."""
        matches = [re.fullmatch(r"step-(\d+)", path.name) for path in self.checkpoints.glob("step-*")]
        return sorted(int(match[1]) for match in matches if match)

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
        raise CheckpointError(
            f"{self.path} has no intact checkpoint to resume from; start again: headway train {self.path} --out "
            f"NEW{plugin_options()}"
        )

    def remove_partial(self) -> None:
        """Clean up after a process that was killed while writing: delete partial checkpoints, and put back an old one
        that was moved but not yet replaced."""
        for folder in self.checkpoints.glob(".step-*.old"):
            for checkpoint in folder.glob("step-*"):
                if not (self.checkpoints / checkpoint.name).exists():
                    checkpoint.rename(self.checkpoints / checkpoint.name)
            shutil.rmtree(folder, ignore_errors=True)
        for folder in self.checkpoints.glob(".step-*.partial"):
            shutil.rmtree(folder, ignore_errors=True)

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
                shutil.rmtree(self.checkpoint_dir(step))


def suggest_run(path: str | Path, *, otherwise: str = "") -> str:
    """ " Did you mean 'runs/tales'?" if a run beside a path that does not exist has a similar name, else the runs that
    are there; `otherwise` if there are none."""
    path = Path(path)
    folder = path.parent
    runs = sorted(child.name for child in folder.iterdir() if Run.exists(child)) if folder.is_dir() else []
    if not runs:
        return otherwise
    if near := get_close_matches(path.name, runs, n=1):
        return f" Did you mean {str(folder / near[0])!r}?"
    return f" Runs in {folder}: {', '.join(runs[:MAX_RUNS_LISTED])}" + ", …" * (len(runs) > MAX_RUNS_LISTED)


def _parse_lines(text: str) -> list[dict[str, Any]]:
    """The JSON objects of a text that has one per line; a line that is no object is left out."""
    records = []
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):  # half a line, or one that is nested too deeply
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def _rename_damaged(folder: Path) -> Path:
    n, renamed = 1, folder.with_name(f"{folder.name}.damaged")
    while renamed.exists():
        n, renamed = n + 1, folder.with_name(f"{folder.name}.damaged-{n}")
    return folder.rename(renamed)

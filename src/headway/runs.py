"""A run on disk is its own description: `recipe.toml`, `log.jsonl`, and `checkpoints/step-N/`.

A checkpoint is a model directory with, beside the weights,

    training.json          step, tokens and seconds so far, the best so far: what the loop knows
    training.safetensors   what the optimiser remembers, the random numbers' state of every rank
    shards/                in place of model.safetensors, where ranks hold shares of the model (FSDP)
    checksums.json         SHA-256 of each of these files

It is written aside, flushed and renamed, so a reader finds all of it or none; and read back only if every byte is as it
was written.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headway.errors import CheckpointError
from headway.files import finite, locked, verify, write_text

RECIPE_FILE, LOG_FILE = "recipe.toml", "log.jsonl"


class Run:
    """The folder of one training run."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.folder = self.path / "checkpoints"

    @staticmethod
    def exists(path: str | Path) -> bool:
        """Whether a run was started in this folder."""
        return (Path(path) / RECIPE_FILE).is_file()

    @property
    def recipe_file(self) -> Path:
        return self.path / RECIPE_FILE

    @staticmethod
    def check_free(path: str | Path) -> Path:
        """A folder that holds anything already is never written to."""
        path = Path(path)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            hint = f"; to go on with it: headway train {path} --resume" if Run.exists(path) else ""
            raise CheckpointError(f"{path} is there already; choose another place with --out{hint}")
        return path

    @classmethod
    def create(cls, path: str | Path, recipe: str) -> "Run":
        """Begin a run in a new folder."""
        path = cls.check_free(path)
        path.mkdir(parents=True, exist_ok=True)
        write_text(path / RECIPE_FILE, recipe)
        return cls(path)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run: two processes that write to it would undo each other's work. Ends with the process."""
        try:
            with locked(self.path / ".lock", wait=False):
                yield
        except BlockingIOError:
            raise CheckpointError(f"{self.path} is being trained by another process; wait for it, or end it") from None

    # ── the log ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def log_file(self) -> Path:
        return self.path / LOG_FILE

    def log(self, **record: Any) -> None:
        with open(self.log_file, "a", encoding="utf-8") as file:
            file.write(json.dumps(finite(record)) + "\n")

    def read_log(self) -> list[dict[str, Any]]:
        """Every whole line; a process that was killed may have left half of one."""
        found: list[dict[str, Any]] = []
        try:
            text = self.log_file.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return found
        for line in text.splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                found.append(record)
        return found

    def rewind(self, step: int, recipe: str) -> None:
        """Drop what was logged after a step, which is about to be done again; the recipe may have new settings."""
        over = ("end", "interrupted")
        kept = [r for r in self.read_log() if r.get("step", 0) <= step and r.get("event") not in over]
        write_text(self.log_file, "".join(json.dumps(record) + "\n" for record in kept))
        write_text(self.recipe_file, recipe)

    # ── checkpoints ───────────────────────────────────────────────────────────────────────────────────────────────

    def checkpoint_dir(self, step: int) -> Path:
        return self.folder / f"step-{step}"

    def checkpoint_steps(self) -> list[int]:
        """Steps that have a checkpoint, in order."""
        names = [re.fullmatch(r"step-(\d+)", path.name) for path in self.folder.glob("step-*")]
        return sorted(int(name[1]) for name in names if name)

    def newest_intact(self, complain: Callable[[str], None] = lambda line: None) -> int:
        """The step of the last checkpoint that is as it was written. A damaged one is named, set aside, and the one
        before it is taken."""
        for step in reversed(self.checkpoint_steps()):
            folder = self.checkpoint_dir(step)
            try:
                verify(folder)
                return step
            except CheckpointError as error:
                aside = _set_aside(folder)
                complain(f"{error}; set aside as {aside.name}, going back to the one before")
        raise CheckpointError(
            f"{self.path} has no checkpoint to go on from; begin again: headway train {self.path} --out NEW"
        )

    def remove_partial(self) -> None:
        """Put right what writers that were killed have left: half a checkpoint, or an old one not yet replaced."""
        for path in self.folder.glob(".step-*.old"):
            for old in path.glob("step-*"):
                if not (self.folder / old.name).exists():
                    old.rename(self.folder / old.name)
            shutil.rmtree(path, ignore_errors=True)
        for path in self.folder.glob(".step-*.partial"):
            shutil.rmtree(path, ignore_errors=True)

    def has_damaged(self) -> bool:
        return any(self.folder.glob("step-*.damaged*"))

    def prune(self, keep: int, best: int | None, every: int) -> None:
        """Leave the best, the last, and as many regular ones, of every so many steps, as make `keep`; 0 keeps all."""
        steps = self.checkpoint_steps()
        regular = [step for step in steps[:-1] if every and step % every == 0]
        kept = {best, *steps[-1:], *(regular[-(keep - 1) :] if keep > 1 else ())}
        for step in steps if keep else ():
            if step not in kept:
                shutil.rmtree(self.checkpoint_dir(step))


def _set_aside(folder: Path) -> Path:
    n, aside = 1, folder.with_name(f"{folder.name}.damaged")
    while aside.exists():
        n, aside = n + 1, folder.with_name(f"{folder.name}.damaged-{n}")
    return folder.rename(aside)

"""A disk that fills up at a random moment: one clear error, no existing file is lost, and the work resumes.

The disk is a small tmpfs where the user may mount one. Elsewhere a limit on the size of files fills it.
"""

import ctypes
import os
import random
import resource
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import headway
from headway.config import Recipe
from tests.fuzz import tiny_runs, warm_processes
from tests.fuzz.harness import Area

DISK_BYTES = 16 * 2**20
FAILED_CLEANLY = 1
UMOUNT_DETACH = 2


def mount(folder: Path) -> bool:
    """Mount a small tmpfs; returns whether this user may."""
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, f"size={DISK_BYTES}".encode()) == 0


def unmount(folder: Path) -> None:
    ctypes.CDLL(None).umount2(os.fsencode(folder), UMOUNT_DETACH)


def train(recipe: Recipe, run: Path, cache: Path, max_file_bytes: int | None) -> None:
    _limit_files(max_file_bytes)
    tiny_runs.train(recipe, run, cache)


def save(source: Path, path: Path, max_file_bytes: int | None) -> None:
    model = headway.load(source)
    _limit_files(max_file_bytes)
    model.save(path, overwrite=True)


def _limit_files(max_bytes: int | None) -> None:
    if max_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, resource.RLIM_INFINITY))


class DiskFull(Area):
    name, full_count, ci_count = "disk_full", 80, 1
    max_seconds = 60.0

    def prepare(self) -> None:
        warm_processes.warm_up()
        self.recipes = tiny_runs.recipes(self.folder)
        self.output = self.folder / "output"
        self.undisturbed = self.folder / "undisturbed"
        self.disk = self.folder / "disk"
        self.disk.mkdir()
        self.is_mounted = mount(self.disk)

    def close(self) -> None:
        if self.is_mounted:
            unmount(self.disk)

    def case(self, rng: random.Random) -> str:
        try:
            return self._train(rng) if rng.random() < 0.8 else self._save(rng)
        finally:
            for path in self.disk.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _train(self, rng: random.Random) -> str:
        """Training that meets a full disk fails in one line, and resumes to the same end when there is space again."""
        name = rng.choice(list(self.recipes))
        recipe, reference = self.recipes[name], self._reference(name)
        run, cache = self.disk / "run", self.disk / "cache"
        outcome = "enough space"
        for _ in range(rng.choice([1, 1, 2])):
            max_file_bytes = self._fill(rng, most=600_000)
            code = self._run(train, recipe, run, cache, max_file_bytes)
            outcome = "resumed" if code else outcome
            (self.disk / "ballast").unlink(missing_ok=True)
        code = self._run(train, recipe, run, cache, None)
        assert code == 0, f"not resumed: {self._printed()}"
        tiny_runs.check_same(reference, run)
        return outcome

    def _save(self, rng: random.Random) -> str:
        """Overwriting a model on a full disk leaves the old one or the new one."""
        source = self._reference("dropout") / "checkpoints" / "step-6"
        path = self.disk / "model"
        assert self._run(save, source, path, None) == 0, self._printed()
        expected = (path / "model.safetensors").read_bytes()
        code = self._run(save, source, path, self._fill(rng, most=200_000))
        assert (path / "model.safetensors").read_bytes() == expected
        headway.load(path)
        (self.disk / "ballast").unlink(missing_ok=True)
        tiny_runs.check_clean(self.disk)
        return "saved" if code == 0 else "kept"

    def _fill(self, rng: random.Random, most: int) -> int | None:
        """Leave a random amount of space on the disk; without a disk of our own, returns a limit for each file."""
        space = int(most * rng.random() ** 2)
        if not self.is_mounted:
            return space
        stats = os.statvfs(self.disk)
        with open(self.disk / "ballast", "wb") as file, suppress(OSError):  # no space at all is fine too
            os.posix_fallocate(file.fileno(), 0, max(stats.f_bavail * stats.f_frsize - space, 1))
        return None

    def _run(self, function: Callable[..., None], *args: Any) -> int:
        self.output.unlink(missing_ok=True)
        code = warm_processes.run(function, *args, output=self.output)
        printed = self._printed()
        assert code in (0, FAILED_CLEANLY), f"exit code {code}: {printed}"
        assert "Traceback" not in printed, printed
        return code

    def _printed(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace")[-3000:] if self.output.exists() else ""

    def _reference(self, name: str) -> Path:
        run = self.undisturbed / name
        if not run.exists():
            arguments = (self.recipes[name], run, self.folder / f"cache of {name}")
            warm_processes.finished(tiny_runs.train, *arguments, output=self.folder / "reference output")
        return run

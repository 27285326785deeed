"""Several runs of a sweep at a time, each in a process of its own (worker.py)."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from headway.config import Recipe
from headway.sweeps.train_point import Outcome
from headway.sweeps.worker_plugins import declared_plugins
from headway.training.progress import OnMessage
from headway.training.signals import stop_request

WORKER = ("-P", "-m", "headway.sweeps.worker")  # -P: a file in the working directory must not hide an installed module
SECONDS_BETWEEN_POLLS = 0.1
SECONDS_TO_STOP = 300.0  # for the current step and a checkpoint


@dataclass(frozen=True)
class Job:
    name: str
    process: "subprocess.Popen[str]"
    errors: IO[str]  # its stderr

    def outcome(self) -> Outcome:
        """The answer of a process that has ended."""
        assert self.process.stdout is not None
        answer = self.process.stdout.read().strip().splitlines()
        try:
            return Outcome(**json.loads(answer[-1]))
        except (IndexError, ValueError, TypeError):
            self.errors.seek(0)
            lines = [line.strip() for line in self.errors if line.strip()]
            exit_code = f"the process ended with exit code {self.process.returncode}"
            return Outcome(failure=lines[-1] if lines else exit_code)


def run_jobs(
    recipes: Mapping[str, Recipe],
    out_dir: Path,
    n_jobs: int,
    *,
    on_start: Callable[[str], None],
    on_end: Callable[[str, Outcome], None],
    on_message: OnMessage,
) -> None:
    """Train all recipes, `n_jobs` at a time. A stop request stops the runs after their current step, and then raises
    KeyboardInterrupt."""
    waiting, running = list(recipes), list[Job]()
    with stop_request(on_message, describe_loss=lambda: "stopped at once: steps without a checkpoint are lost") as stop:
        try:
            while (waiting or running) and not stop.is_set():
                while waiting and len(running) < n_jobs:
                    name = waiting.pop(0)
                    on_start(name)
                    running.append(_start(name, recipes[name], out_dir / name))
                stop.wait(SECONDS_BETWEEN_POLLS)
                for job in [job for job in running if job.process.poll() is not None]:
                    running.remove(job)
                    on_end(job.name, job.outcome())
        finally:
            _stop(running)
        if stop.is_set():
            raise KeyboardInterrupt


def _start(name: str, recipe: Recipe, path: Path) -> Job:
    errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (a Job holds it)
    process = subprocess.Popen(
        [sys.executable, *WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        start_new_session=True,  # Ctrl-C reaches this process alone, which then stops its workers
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has already ended, and `outcome` says why
        order = {"recipe": recipe.to_toml(), "out": str(path), "declared": declared_plugins(recipe)}
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
    return Job(name, process, errors)


def _stop(jobs: list[Job]) -> None:
    for job in jobs:
        assert job.process.stdin is not None
        with suppress(BrokenPipeError):
            job.process.stdin.close()
    deadline = time.monotonic() + SECONDS_TO_STOP
    try:
        for job in jobs:
            job.process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        _kill(jobs)  # their last checkpoints are intact
    except BaseException:
        _kill(jobs)
        raise


def _kill(jobs: list[Job]) -> None:
    for job in jobs:
        job.process.kill()
        job.process.wait()

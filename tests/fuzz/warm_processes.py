"""Processes that start in milliseconds: forked from a server that has imported torch and Headway already."""

import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError

FAILED = 70  # exit code of a function that raised something else than a HeadwayError
PRELOADED = ["torch", "headway.cli", "headway.training.train", "tests.fuzz.warm_processes"]
WATCHED_EVENTS = {
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.symlink",
    "os.chmod",
    "shutil.rmtree",
}


def start(function: Callable[..., None], *args: Any, output: Path) -> BaseProcess:
    """Run a function of a module in a process of its own; what it prints goes to the file `output`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=_run, args=(function, args, str(output)), daemon=True)
    process.start()
    return process


def warm_up() -> None:
    """Start the server, so that the next process takes its own time only."""
    run(os.getpid, output=Path(os.devnull))


def run(function: Callable[..., None], *args: Any, output: Path) -> int:
    """Run a function to its end in a process of its own; returns the exit code."""
    process = start(function, *args, output=output)
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def finished(function: Callable[..., None], *args: Any, output: Path) -> None:
    """Run a function to its end in a process of its own; anything but success is an AssertionError."""
    code = run(function, *args, output=output)
    if code:
        raise AssertionError(f"exit code {code}: {output.read_text(encoding='utf-8', errors='replace')[-3000:]}")


def kill(process: BaseProcess) -> bool:
    """SIGKILL a process; returns whether it was still running."""
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


def _run(function: Callable[..., None], args: tuple[Any, ...], output: str) -> None:
    import torch

    torch.set_num_threads(1)
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115 (until the end)
    code = 0
    try:
        function(*args)
    except HeadwayError as error:
        print(f"Error: {error}", file=sys.stderr)
        code = error.exit_code
    except BaseException:
        traceback.print_exc()
        code = FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


# ── kills at chosen moments ───────────────────────────────────────────────────────────────────────────────────────


class DiskEvents:
    """Counts the changes that this process makes under a folder, and may kill it at one of them.

    Python announces each change before it happens, so a kill at event n leaves the disk as after event n − 1.
    """

    def __init__(self, folder: Path, kill_at: int | None = None):
        self.folder, self.kill_at, self.count = os.fspath(folder), kill_at, 0
        sys.addaudithook(self._on_event)

    def _on_event(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            is_change = isinstance(args[0], str) and isinstance(args[1], str) and set(args[1]) & set("wax+")
            is_change = is_change or (args[1] is None and isinstance(args[2], int) and bool(args[2] & os.O_ACCMODE))
        else:
            is_change = event in WATCHED_EVENTS
        if not is_change or not args:
            return
        path = os.fsdecode(args[0]) if isinstance(args[0], str | bytes | os.PathLike) else ""
        if path.startswith(self.folder) or not os.path.isabs(path):  # rmtree names files relative to a handle
            self.count += 1
            if self.count == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


def sleep_and_kill(process: BaseProcess, seconds: float) -> bool:
    """Kill a process after this long, unless it has ended before; returns whether it was killed."""
    process.join(seconds)
    return kill(process)


def random_moment(rng: random.Random, seconds: float) -> float:
    """A moment of a process that takes `seconds`: any, but more often one near its start or its end."""
    return seconds * rng.choice([rng.random(), rng.random() ** 3, 1 - rng.random() ** 3])


def timed(function: Callable[[], None]) -> float:
    start_time = time.monotonic()
    function()
    return time.monotonic() - start_time

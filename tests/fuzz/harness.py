"""Runs the cases of one area, in this process or in a watched one, and collects what they did.

The watcher reads the progress of a worker process from a pipe. It measures the resident memory of the worker and of its
children, and ends a worker that hangs; the cases after the one that hung are run by a new worker.
"""

import importlib
import json
import os
import random
import selectors
import subprocess
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from headway.errors import HeadwayError

MAX_CASE_SECONDS = 10.0
MAX_RESIDENT_BYTES = 10**9
HANG_FACTOR = 3  # a case that takes this many times its limit is ended
START_SECONDS = 300.0  # to import torch and prepare the area, on a busy machine
POLL_SECONDS = 0.1
CLEANUP_SECONDS = 5.0


class Area(ABC):
    """Cases of one kind. `case` returns a short label of what happened; raising a HeadwayError counts as "refused", any
    other exception is a finding."""

    name: str
    full_count: int  # cases of `make fuzz`
    ci_count: int  # cases in CI; all areas together take half a minute there
    max_seconds = MAX_CASE_SECONDS

    def __init__(self, folder: Path):
        self.folder = folder

    def prepare(self) -> None:  # noqa: B027 (optional)
        """Build the intact inputs in `self.folder`, once per process."""

    @abstractmethod
    def case(self, rng: random.Random) -> str:
        """Run one case, which depends on `rng` alone and leaves no files behind."""

    def close(self) -> None:  # noqa: B027 (optional)
        """End what `prepare` or a case left running."""

    def fail(self, message: str) -> None:
        raise AssertionError(message)


def load_area(location: str) -> type[Area]:
    """ "tests.fuzz.models:Models" → the class."""
    module, name = location.split(":")
    area: type[Area] = getattr(importlib.import_module(module), name)
    return area


@dataclass
class CaseResult:
    case: int
    outcome: str  # "refused", a label of the area, or "finding"
    seconds: float = 0.0
    finding: str = ""
    traceback: str = ""


def run_case(area: Area, seed: int, case: int) -> CaseResult:
    """Run a case. One that takes too long is run again, and counts if it takes too long twice: on a busy machine one
    may be slow by chance."""
    result = _run_once(area, seed, case)
    if not result.finding and result.seconds > area.max_seconds:
        result = _run_once(area, seed, case)
    if not result.finding and result.seconds > area.max_seconds:
        finding = f"took {result.seconds:.1f} s, twice, and {area.max_seconds:g} are allowed"
        return replace(result, outcome="finding", finding=finding)
    return result


def _run_once(area: Area, seed: int, case: int) -> CaseResult:
    start = time.monotonic()
    finding = details = ""
    try:
        outcome = area.case(random.Random(f"{seed}/{area.name}/{case}"))
    except HeadwayError as error:
        outcome = "refused" if str(error).strip() else "finding"
        finding = "" if outcome == "refused" else f"{type(error).__name__} without a message"
    except BaseException as error:  # a panic in Rust and SystemExit are no Exceptions
        if isinstance(error, KeyboardInterrupt):
            raise
        outcome, finding, details = "finding", f"{type(error).__name__}: {error}"[:2000], traceback.format_exc()
    return CaseResult(case, outcome, time.monotonic() - start, finding, details)


# ── a watched worker ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class AreaReport:
    """What the cases of an area did."""

    name: str
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    peak_bytes: int = 0
    findings: list[CaseResult] = field(default_factory=list)

    @property
    def n_cases(self) -> int:
        return self.outcomes.total()

    def add(self, result: CaseResult) -> None:
        self.outcomes[result.outcome] += 1
        self.slowest = max(self.slowest, result.seconds)
        if result.finding:
            self.findings.append(result)

    def to_dict(self) -> dict[str, Any]:
        findings = [asdict(result) for result in self.findings]
        totals = {"cases": self.n_cases, "slowest_seconds": self.slowest, "peak_bytes": self.peak_bytes}
        return {"name": self.name, **totals, "outcomes": dict(self.outcomes), "findings": findings}

    def merge(self, report: "AreaReport") -> None:
        self.outcomes += report.outcomes
        self.slowest = max(self.slowest, report.slowest)
        self.peak_bytes = max(self.peak_bytes, report.peak_bytes)
        self.findings += report.findings


def watch(
    location: str, cases: range, *, seed: int, folder: Path, deadline: float = float("inf"), log: Path | None = None
) -> AreaReport:
    """Run cases in worker processes until they are done or time.monotonic() passes the deadline."""
    area = load_area(location)
    report, start = AreaReport(area.name), cases.start
    while start < cases.stop and time.monotonic() < deadline:
        start = _watch_worker(location, range(start, cases.stop), seed, folder, deadline, report, log)
    return report


def _watch_worker(
    location: str, cases: range, seed: int, folder: Path, deadline: float, report: AreaReport, log: Path | None
) -> int:
    """Run cases in one worker; returns the first case that it did not run."""
    area = load_area(location)
    read_end, write_end = os.pipe()
    command = [sys.executable, "-m", "tests.fuzz.worker", location, str(seed), str(cases.start), str(cases.stop)]
    with open(log or os.devnull, "ab") as output:
        worker = subprocess.Popen(
            [*command, str(folder), str(write_end)],
            pass_fds=[write_end],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    os.close(write_end)
    current, began, limit = cases.start, time.monotonic(), START_SECONDS
    is_too_large, measured = False, 0.0
    try:
        for message in _messages(read_end):  # until the worker ends
            if message is not None and "begin" in message:
                current, began, limit = message["begin"], time.monotonic(), area.max_seconds * HANG_FACTOR
            elif message is not None:
                result = CaseResult(**message)
                report.add(result)
                current = result.case + 1
                if time.monotonic() > deadline:
                    return current
            if time.monotonic() - measured < POLL_SECONDS:
                continue
            resident, measured = _resident_bytes(worker.pid), time.monotonic()
            report.peak_bytes = max(report.peak_bytes, resident)
            if resident > MAX_RESIDENT_BYTES and not is_too_large:
                is_too_large = True  # one finding per worker: memory once taken is seldom given back
                report.add(CaseResult(current, "finding", 0.0, f"{resident / 1e9:.2f} GB resident"))
            if time.monotonic() - began > limit:
                report.add(CaseResult(current, "finding", limit, f"hangs: no end after {limit:.3g} s"))
                return current + 1
    finally:
        os.close(read_end)
        _end(worker)
    if current < cases.stop:
        report.add(CaseResult(current, "finding", 0.0, f"the process ended with code {worker.returncode}"))
    return max(current, cases.start) + (current < cases.stop)


def _messages(read_end: int) -> Iterator[dict[str, Any] | None]:
    """The messages of a worker until it ends; None at least every POLL_SECONDS."""
    os.set_blocking(read_end, False)
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(read_end, selectors.EVENT_READ)
        while True:
            if not selector.select(POLL_SECONDS):
                yield None
                continue
            data = os.read(read_end, 1 << 16)
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                yield json.loads(line)


def _resident_bytes(pid: int) -> int:
    """Of the largest process among a worker and its children."""
    largest = 0
    try:
        worker = psutil.Process(pid)
        for process in (worker, *worker.children(recursive=True)):
            largest = max(largest, process.memory_info().rss)
    except psutil.Error:  # it has just ended
        pass
    return largest


def _end(worker: "subprocess.Popen[bytes]") -> None:
    """End a worker and what it started: with SIGTERM, which lets it clean up, and then by force."""
    if worker.poll() is None:
        processes = [*psutil.Process(worker.pid).children(recursive=True), psutil.Process(worker.pid)]
        worker.terminate()
        with suppress(subprocess.TimeoutExpired):
            worker.wait(timeout=CLEANUP_SECONDS)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
    worker.wait()


def run_cases(
    area: Area, cases: range, seed: int, on_begin: Callable[[int], None], on_result: Callable[[CaseResult], None]
) -> None:
    """Prepare an area and run its cases in this process."""
    try:
        area.prepare()
        for case in cases:
            on_begin(case)
            on_result(run_case(area, seed, case))
    finally:
        area.close()

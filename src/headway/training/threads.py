"""How many threads a run uses on a CPU.

PyTorch's threads meet many times in a step, and spin while they wait for the last one. Two threads on two cores are
much faster than one; beside another process that uses one of the cores they are two to three times slower than one
(benchmarks/busy_machine.py). So `train.threads = "auto"` takes as many threads as there are idle cores.

The order in which numbers are summed depends on the number of threads, and so do the last bits of a result. A run logs
its number and resumes with it.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import psutil
import torch

from headway.entry_points import plugin_options
from headway.errors import count
from headway.training.progress import OnMessage

SAMPLE_SECONDS = 0.3  # over which the CPU use of other processes is measured
MAX_SAMPLES = 3  # a machine is busy if it is so in all of them: a short burst of work does not count
SECONDS_BETWEEN_CHECKS = 5.0
SLOWDOWN = 0.75  # training is slow below this fraction of its best throughput
CGROUP = Path("/sys/fs/cgroup")


@contextmanager
def cpu_threads(
    setting: int | Literal["auto"],
    device: torch.device,
    *,
    stored: int | None = None,
    on_message: OnMessage = lambda line: None,
) -> Iterator[int]:
    """Inside the block PyTorch uses the number of threads of `train.threads`; yields that number.

    "auto" takes `stored`, the number that a resumed run has used so far, or else the number of idle cores, but no more
    threads than PyTorch is set to use. OMP_NUM_THREADS wins over both. On a GPU "auto" changes nothing.
    """
    before = torch.get_num_threads()
    if setting != "auto":
        threads = setting
    elif device.type != "cpu" or "OMP_NUM_THREADS" in os.environ:
        threads = before
    elif stored is not None:
        threads = min(stored, len(_usable_cpus()))
    else:
        threads = _idle_cores(before, on_message)
    torch.set_num_threads(threads)
    try:
        yield threads
    finally:
        torch.set_num_threads(before)


def logged_threads(log: Sequence[Mapping[str, Any]]) -> int | None:
    """The number of threads that a run was last trained with, by its log; None if that was not on a CPU."""
    events = [record for record in log if record.get("event") in ("start", "resume") and "threads" in record]
    return int(events[-1]["threads"]) if events and events[-1].get("device") == "cpu" else None


def _idle_cores(most: int, on_message: OnMessage) -> int:
    """Cores that other processes leave idle, from 1 to `most`."""
    n_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if n_ranks > 1:  # they measure one another: share the cores instead
        return max(1, min(most, int(_n_cores())) // n_ranks)
    most = max(1, min(most, int(_n_cores())))
    if most == 1:
        return 1
    meter, in_use = CPUMeter(), float("inf")
    for _ in range(MAX_SAMPLES):
        time.sleep(SAMPLE_SECONDS)
        in_use = min(in_use, meter.cores_in_use())
        if (idle := _threads_beside(in_use, most)) == most:
            return most
    on_message(f"note        other processes use {_describe_use(in_use)}: using {count(idle, 'thread')}")
    return idle


def _threads_beside(in_use: float, most: int) -> int:
    """How many threads, at most `most`, find a core of their own while other processes use `in_use` cores."""
    return max(1, min(most, round(len(_usable_cpus()) - in_use)))


def _describe_use(in_use: float) -> str:
    return f"{in_use:.1f} of {count(len(_usable_cpus()), 'CPU core')}"


def _usable_cpus() -> list[int]:
    """The numbers of the CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))  # macOS


def _n_cores() -> float:
    """CPUs that this process may use: those it may run on, or the quota of its container (cgroup v2 or v1)."""
    quotas = [float(len(_usable_cpus()))]
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            limit, period = " ".join((CGROUP / file).read_text(encoding="ascii") for file in files).split()
        except (OSError, ValueError):
            continue
        if limit not in ("max", "-1"):
            quotas.append(int(limit) / int(period))
    return max(1.0, min(quotas))


class CPUMeter:
    """Measures how many CPU cores other processes use."""

    def __init__(self) -> None:
        self.cpus, self.process = _usable_cpus(), psutil.Process()
        self.last = self._read()

    def cores_in_use(self) -> float:
        """The average since the last call."""
        previous, self.last = self.last, self._read()
        seconds, idle, own = (now - before for now, before in zip(self.last, previous, strict=True))
        return max(0.0, len(self.cpus) - (idle + own) / seconds) if seconds > 0 else 0.0

    def _read(self) -> tuple[float, float, float]:
        """The clock, and the seconds that the CPUs were idle and that this process has computed."""
        times = psutil.cpu_times(percpu=True)
        idle = sum(times[cpu].idle + getattr(times[cpu], "iowait", 0.0) for cpu in self.cpus if cpu < len(times))
        own = self.process.cpu_times()
        return time.monotonic(), idle, own.user + own.system


class BusyWatch:
    """Notices while a run trains that other processes need the cores of its threads, and says so once."""

    def __init__(self, device: torch.device, run: Path, on_message: OnMessage) -> None:
        self.threads, self.run, self.on_message = torch.get_num_threads(), run, on_message
        self.is_done = device.type != "cpu" or self.threads == 1
        self.meter = None if self.is_done else CPUMeter()
        self.fastest, self.was_quiet, self.n_busy = 0.0, False, 0
        self.checked_at = time.monotonic()

    def check(self, tokens_per_second: float) -> None:
        """Call after each step. Every few seconds it measures the CPU use of other processes."""
        if self.is_done or self.meter is None or time.monotonic() - self.checked_at < SECONDS_BETWEEN_CHECKS:
            return
        self.checked_at, in_use = time.monotonic(), self.meter.cores_in_use()
        self.fastest = max(self.fastest, tokens_per_second)
        threads = _threads_beside(in_use, self.threads)
        self.n_busy = self.n_busy + 1 if threads < self.threads else 0
        self.was_quiet = self.was_quiet or not self.n_busy
        is_slow = tokens_per_second < SLOWDOWN * self.fastest or not self.was_quiet
        if self.n_busy >= 2 and is_slow:
            self.is_done = True
            self.on_message(
                f"note        other processes use {_describe_use(in_use)}, which slows {self.threads} threads down: "
                f"stop with Ctrl-C, then headway train {self.run} --resume --set train.threads={threads}"
                f"{plugin_options()}"
            )

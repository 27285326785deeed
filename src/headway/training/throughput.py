"""Throughput: tokens per second, model FLOPs utilisation (MFU) and memory in use."""

import time
from pathlib import Path

import torch

from headway.costs import peak_flops


class ThroughputMeter:
    """Targets per second, over the last few dozen steps rather than all of them: starting up is not speed."""

    def __init__(self, n_tokens: int) -> None:
        self.marks: list[tuple[float, int]] = [(time.monotonic(), n_tokens)]

    def mark(self, n_tokens: int) -> float:
        """So many targets are done in all; returns targets per second."""
        self.marks.append((time.monotonic(), n_tokens))
        self.marks = self.marks[-50:]
        (then, before), (now, after) = self.marks[0], self.marks[-1]
        return (after - before) / (now - then) if now > then else 0.0


def device_peak(device: torch.device, bytes_each: int) -> tuple[float, str]:
    """What a device can make per second, and how that is known: from its maker, or from a product tried here."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        if bytes_each == 2 and (known := peak_flops(name)):
            return known, f"datasheet of {name}"
    return _measured(device, torch.bfloat16 if bytes_each == 2 else torch.float32), "measured"


def _measured(device: torch.device, dtype: torch.dtype) -> float:
    n = 8192 if device.type == "cuda" else 768
    a = torch.full((n, n), 0.5, device=device, dtype=dtype)
    best = 0.0
    for _ in range(4):
        _wait(device)
        started = time.perf_counter()
        a @ a
        _wait(device)
        best = max(best, 2 * n**3 / (time.perf_counter() - started))
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory(device: torch.device) -> int:
    """Bytes at most so far: of the device's tensors, or of the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def free_memory(device: torch.device) -> int | None:
    """Bytes that could still be had, if that is known."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}
    return found.get("MemAvailable")

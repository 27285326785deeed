"""Throughput: tokens per second, the peak FLOP/s that MFU is measured against, and memory in use."""

import time

import torch

from headway.costs import peak_flops
from headway.device_rates import measure_flops
from headway.memory import available_bytes

WINDOW_STEPS = 50  # throughput is averaged over this many steps


class ThroughputMeter:
    """Targets per second over the last `WINDOW_STEPS` steps, so that start-up does not count for long."""

    def __init__(self, n_tokens: int) -> None:
        self.marks: list[tuple[float, int]] = [(time.monotonic(), n_tokens)]

    def mark(self, n_tokens: int) -> float:
        """Record that `n_tokens` targets are done in total; returns targets per second."""
        self.marks.append((time.monotonic(), n_tokens))
        self.marks = self.marks[-WINDOW_STEPS:]
        (start_time, start_tokens), (end_time, end_tokens) = self.marks[0], self.marks[-1]
        return (end_tokens - start_tokens) / (end_time - start_time) if end_time > start_time else 0.0


def device_peak(device: torch.device, bytes_per_element: int) -> tuple[float, str]:
    """Peak FLOP/s of a device and the source of the number: its datasheet, or a matrix product timed here."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        if bytes_per_element == 2 and (datasheet_flops := peak_flops(name)):
            return datasheet_flops, f"datasheet of {name}"
    return measure_flops(device, torch.bfloat16 if bytes_per_element == 2 else torch.float32), "measured"


def mfu(tokens_per_second: float, flops_per_token: float, peak_flops: float) -> float | None:
    """Model FLOPs utilisation (Chowdhery et al. 2022, appendix B); None for models without a FLOP count."""
    return tokens_per_second * flops_per_token / peak_flops if flops_per_token else None


def peak_memory(device: torch.device) -> int:
    """Peak bytes so far: of the device's tensors, or of the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes on macOS, KiB elsewhere


def free_memory(device: torch.device) -> int:
    """Bytes still available."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free
    return available_bytes()

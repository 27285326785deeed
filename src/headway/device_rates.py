"""Measure this machine: FLOP/s of matrix products, and bytes per second read from memory.

Other processes can only slow a measurement down, so we take the fastest of several runs.
"""

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from headway.nn.kernels.cpu_linear import banded_linear, training_linear_fn

CUDA_MATMUL_SIZE, CPU_MATMUL_SIZE = 8192, 768  # rows and columns of the product that measures FLOPS
REPEATS = 12
MIN_SECONDS = 0.2  # of a bandwidth measurement
ROW_ELEMENTS = 4096  # columns of the matrix that is read


def measure_flops(device: torch.device, dtype: torch.dtype) -> float:
    """FLOPS of a square matrix product, as training computes it."""
    n = CUDA_MATMUL_SIZE if device.type == "cuda" else CPU_MATMUL_SIZE
    a = torch.full((n, n), 0.5, device=device, dtype=dtype)
    product = training_linear_fn(device)
    with torch.no_grad():
        return 2 * n**3 / fastest(lambda: product(a, a, None), device, REPEATS)


def measure_bandwidth(device: torch.device, n_bytes: int) -> float:
    """Bytes per second at which a tensor of this size is read again and again: from the processor's cache if it fits
    there, else from memory. By the faster of a sum and a product with a vector, which is what a decode step does."""
    n_rows = max(1, n_bytes // (4 * ROW_ELEMENTS))
    matrix = torch.full((n_rows, ROW_ELEMENTS), 0.5, device=device)
    vector = torch.full((1, ROW_ELEMENTS), 0.5, device=device)
    n_threads = min(torch.get_num_threads(), n_rows)
    product: Callable[[], object]
    if device.type == "cpu":
        product = lambda: banded_linear(vector, matrix, None, n_threads)  # noqa: E731
    else:
        product = lambda: F.linear(vector, matrix)  # noqa: E731
    with torch.no_grad():
        seconds = min(_fastest_for(read, device) for read in (matrix.sum, product))
    return matrix.nbytes / seconds


def fastest(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Seconds of the fastest of several calls."""
    best = float("inf")
    for _ in range(repeats):
        synchronize(device)
        start = time.perf_counter()
        run()
        synchronize(device)
        best = min(best, time.perf_counter() - start)
    return best


def _fastest_for(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest call in `MIN_SECONDS`."""
    best, end = fastest(run, device, REPEATS), time.perf_counter() + MIN_SECONDS
    while time.perf_counter() < end:
        best = min(best, fastest(run, device, 1))
    return best


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

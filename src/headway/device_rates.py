"""Measure this machine: FLOP/s of matrix products, and bytes per second read from memory.

Lower bounds on times are computed from these rates, so a rate must be the best that the machine reaches. Other
processes can only slow a measurement down, so we take the fastest of several runs, of several kernels and, for products
on a GPU, of several sizes. Matrices hold one value throughout: a GPU that switches fewer bits stays at a higher clock.
"""

import math
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.nn.kernels.cpu_decode import product_program, why_no_library
from headway.nn.kernels.cpu_linear import banded_linear, training_linear_fn

# Rows and columns of the square products that measure FLOP/s.
CUDA_MATMUL_SIZES, CPU_MATMUL_SIZES = (4096, 6144, 8192), (768,)
REPEATS = 12
MIN_SECONDS = 0.2  # of a bandwidth measurement
ROW_ELEMENTS = 4096  # columns of the matrix that is read
BATCH_ROWS = 8  # of the vectors that it is multiplied with at once, on a GPU
LAUNCH_SECONDS, MAX_LAUNCHES = 1e-3, 100  # on a GPU, shorter calls are timed several at a time


def measure_flops(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a square matrix product, as training computes it: of the best size."""
    sizes = CUDA_MATMUL_SIZES if device.type == "cuda" else CPU_MATMUL_SIZES
    product = training_linear_fn(device)
    best = 0.0
    for n in sizes:
        a = torch.full((n, n), 0.5, device=device, dtype=dtype)
        with torch.no_grad():
            best = max(best, 2 * n**3 / fastest(lambda a=a: product(a, a, None), device, REPEATS))  # type: ignore[misc]
    return best


def measure_bandwidth(device: torch.device, n_bytes: int) -> float:
    """Bytes per second at which a tensor of this size is read again and again: from the processor's cache if it fits
    there, else from memory, with what a cache keeps of it from one time to the next. By the fastest of a sum and of
    products with vectors, which is what a decode step does."""
    n_rows = max(1, n_bytes // (4 * ROW_ELEMENTS))
    matrix = torch.full((n_rows, ROW_ELEMENTS), 0.5, device=device)
    with torch.no_grad():
        seconds = min(_fastest_for(read, device) for read in _reads(matrix))
    return matrix.nbytes / seconds


def _reads(matrix: Tensor) -> Iterator[Callable[[], object]]:
    """Calls that read every element of a float32 matrix once."""
    vector = matrix.new_full((1, matrix.shape[1]), 0.5)
    yield matrix.sum
    if matrix.device.type == "cpu":
        n_threads = min(torch.get_num_threads(), len(matrix))
        yield lambda: banded_linear(vector, matrix, None, n_threads)
        if why_no_library() is None:
            yield product_program(vector, matrix)
        return
    yield lambda: F.linear(vector, matrix)
    # The same bytes as twice as many bfloat16 numbers: a product with one vector, and one by tensor cores.
    half = matrix.view(torch.bfloat16)
    vectors = half.new_full((BATCH_ROWS, half.shape[1]), 0.5)
    yield lambda: F.linear(vectors[:1], half)
    yield lambda: F.linear(vectors, half)
    yield half.amax


def fastest(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Seconds of the fastest of several calls."""
    if device.type == "cuda":
        return _fastest_on_cuda(run, device, repeats)
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def _fastest_on_cuda(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    """By the GPU's own clock, and several calls in a row if they are short: waiting for each would add the time of a
    launch, which a step that runs as a CUDA graph does not have."""

    def timed(n_launches: int) -> float:
        with torch.cuda.device(device):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(n_launches):
                run()
            end.record()
        torch.cuda.synchronize(device)
        return 1e-3 * start.elapsed_time(end) / n_launches

    best = min(timed(1), timed(1))  # the first call may choose a kernel
    n_launches = min(MAX_LAUNCHES, max(1, math.ceil(LAUNCH_SECONDS / max(best, 1e-9))))
    return min(best, *(timed(n_launches) for _ in range(repeats)))


def _fastest_for(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest call in `MIN_SECONDS`."""
    best, end = fastest(run, device, REPEATS), time.perf_counter() + MIN_SECONDS
    while time.perf_counter() < end:
        best = min(best, fastest(run, device, 1))
    return best


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

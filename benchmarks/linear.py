"""Matrix products on the CPU: `F.linear` against the kernels of `headway.nn.kernels.cpu_linear`.

    python benchmarks/linear.py               one decode step: banded, oneDNN, and oneDNN with packed weights
    python benchmarks/linear.py --training    forward and both gradients of 4096 rows: oneDNN

A decode step rotates among copies of the weights that exceed the caches; "reading" is the sum of the same weights, a
lower bound.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F

from headway.nn.kernels.cpu_linear import PACK_FOR_ROWS, banded_linear, onednn_linear

SHAPES = {"qkv": (2304, 768), "out": (768, 768), "up": (3072, 768), "down": (768, 3072), "unembedding": (50257, 768)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--training", action="store_true")
    training() if parser.parse_args().training else decoding()


def training(rows: int = 4096) -> None:
    print(
        f"6 x 384, float32, {torch.get_num_threads()} threads, torch {torch.__version__}; milliseconds, median of 15\n"
    )
    print(f"{'product':12} {'F.linear':>9} {'oneDNN':>9} {'ratio':>6}")
    for name, (n_out, n_in) in {"qkv": (1152, 384), "out": (384, 384), "up": (1536, 384), "down": (384, 1536)}.items():
        x = torch.randn(rows, n_in, requires_grad=True)
        weight, grad = torch.randn(n_out, n_in, requires_grad=True), torch.randn(rows, n_out)
        seconds: dict[str, list[float]] = {"plain": [], "onednn": []}
        for _ in range(18):
            for kind, function in (("plain", F.linear), ("onednn", onednn_linear)):
                started = time.perf_counter()
                function(x, weight, None).backward(grad)
                seconds[kind].append(time.perf_counter() - started)
                x.grad = weight.grad = None
        plain, other = (1e3 * statistics.median(times[3:]) for times in seconds.values())
        print(f"{name:12} {plain:9.2f} {other:9.2f} {plain / other:5.2f}×")


def decoding() -> None:
    threads = torch.get_num_threads()
    print(f"GPT-2 small, float32, {threads} threads, torch {torch.__version__}; microseconds, median of 30\n")
    names = ("F.linear", "banded", "oneDNN", "packed", "reading")
    print(f"{'product':12} {'rows':>4} " + " ".join(f"{name:>9}" for name in names))
    for name, shape in SHAPES.items():
        copies = [torch.randn(shape) for _ in range(max(2, 4 * 10**8 // (4 * shape[0] * shape[1])))]
        packed_copies = [torch.ops.mkldnn._reorder_linear_weight(w, PACK_FOR_ROWS) for w in copies]
        for rows in (1, 2, 4, 8):
            x = torch.randn(rows, shape[1])
            torch.testing.assert_close(
                banded_linear(x, copies[0], None, threads), F.linear(x, copies[0]), rtol=1e-4, atol=1e-3
            )
            plain = timed(lambda w, x=x: F.linear(x, w), copies)
            banded = timed(lambda w, x=x: banded_linear(x, w, None, threads), copies)
            onednn = timed(lambda w, x=x: onednn_linear(x, w), copies)
            packed = timed(lambda w, x=x: packed_linear(x, w), packed_copies)
            reading = timed(lambda w: w.sum(), copies)
            times = (plain, banded, onednn, packed, reading)
            print(f"{name:12} {rows:4} " + " ".join(f"{time:9.0f}" for time in times))


def packed_linear(x: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


def timed(function, copies: list[torch.Tensor]) -> float:
    """Median microseconds per call, each on another copy of the weights."""
    seconds = []
    with torch.inference_mode():
        for i in range(33):
            started = time.perf_counter()
            function(copies[i % len(copies)])
            seconds.append(time.perf_counter() - started)
    return 1e6 * statistics.median(seconds[3:])


if __name__ == "__main__":
    main()

"""Matrix products on the CPU: `F.linear` against the forms of `headway.nn.linear`.

    python benchmarks/linear.py               one decoding step: banded, by oneDNN, and with packed weights
    python benchmarks/linear.py --learning    forward and both gradients of 4096 rows: oneDNN

For a step, weights rotate among copies larger than the caches; "reading" is the sum of the same weights, the least that
can be.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F

from headway.nn.linear import PackedWeights, few_rows_linear, onednn_linear

SHAPES = {"qkv": (2304, 768), "out": (768, 768), "up": (3072, 768), "down": (768, 3072), "unembedding": (50257, 768)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learning", action="store_true")
    learning() if parser.parse_args().learning else deciding()


def learning(rows: int = 4096) -> None:
    print(
        f"6 x 384, float32, {torch.get_num_threads()} threads, torch {torch.__version__}; milliseconds, median of 15\n"
    )
    print(f"{'product':12} {'F.linear':>9} {'oneDNN':>9} {'ratio':>6}")
    for name, (n_out, n_in) in {"qkv": (1152, 384), "out": (384, 384), "up": (1536, 384), "down": (384, 1536)}.items():
        x = torch.randn(rows, n_in, requires_grad=True)
        weight, grad = torch.randn(n_out, n_in, requires_grad=True), torch.randn(rows, n_out)
        seconds: dict[str, list[float]] = {"plain": [], "onednn": []}
        for _ in range(18):
            for kind, form in (("plain", F.linear), ("onednn", onednn_linear)):
                began = time.perf_counter()
                form(x, weight, None).backward(grad)
                seconds[kind].append(time.perf_counter() - began)
                x.grad = weight.grad = None
        plain, other = (1e3 * statistics.median(found[3:]) for found in seconds.values())
        print(f"{name:12} {plain:9.2f} {other:9.2f} {plain / other:5.2f}×")


def deciding() -> None:
    threads = torch.get_num_threads()
    print(f"GPT-2 small, float32, {threads} threads, torch {torch.__version__}; microseconds, median of 30\n")
    names = ("F.linear", "banded", "oneDNN", "packed", "reading")
    print(f"{'product':12} {'rows':>4} " + " ".join(f"{name:>9}" for name in names))
    for name, shape in SHAPES.items():
        copies = [torch.randn(shape) for _ in range(max(2, 4 * 10**8 // (4 * shape[0] * shape[1])))]
        packs = PackedWeights()
        for rows in (1, 2, 4, 8):
            x = torch.randn(rows, shape[1])
            torch.testing.assert_close(
                few_rows_linear(x, copies[0], None, threads), F.linear(x, copies[0]), rtol=1e-4, atol=1e-3
            )
            plain = timed(lambda w, x=x: F.linear(x, w), copies)
            banded = timed(lambda w, x=x: few_rows_linear(x, w, None, threads), copies)
            by_onednn = timed(lambda w, x=x: onednn_linear(x, w), copies)
            packed = timed(lambda w, x=x: onednn_linear(x, w), [packs.of(w) for w in copies])
            reading = timed(lambda w: w.sum(), copies)
            times = (plain, banded, by_onednn, packed, reading)
            print(f"{name:12} {rows:4} " + " ".join(f"{time:9.0f}" for time in times))


def timed(function, copies: list[torch.Tensor]) -> float:
    """Median microseconds of a call, each on another copy."""
    seconds = []
    with torch.inference_mode():
        for i in range(33):
            began = time.perf_counter()
            function(copies[i % len(copies)])
            seconds.append(time.perf_counter() - began)
    return 1e6 * statistics.median(seconds[3:])


if __name__ == "__main__":
    main()

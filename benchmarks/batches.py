"""Batches: tokens per second on one core, from prepared shards, shuffled, as GPT-2 small takes them.

taskset -c 0 python benchmarks/batches.py
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator

import numpy as np
import torch

from headway import tokenizers
from headway.data import BatchLoader, CausalDataset, MixtureDataset, MLMDataset, PackedDataset, prefetch, prepare


def rate(items: Iterator, tokens_of, seconds: float) -> float:
    next(items)
    n, started = 0, time.perf_counter()
    for batch in items:
        n += tokens_of(batch)
        if time.perf_counter() - started > seconds:
            break
    return n / (time.perf_counter() - started)


def nanogpt_batches(stream: np.ndarray, context: int, batch_size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """What small training scripts do: random places, a slice and a conversion for each row, twice."""
    while True:
        begins = torch.randint(len(stream) - context - 1, (batch_size,))
        x = torch.stack([torch.from_numpy(stream[b : b + context].astype(np.int64)) for b in begins])
        y = torch.stack([torch.from_numpy(stream[b + 1 : b + 1 + context].astype(np.int64)) for b in begins])
        yield x, y


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    context, batch_size = options.context, options.batch_size
    with tempfile.TemporaryDirectory() as cache:
        bpe = tokenizers.train("bpe", ["The cat sat on the mat."] * 9, 300)
        tokens = prepare("stdlib", bpe, cache=cache).train
        print(f"{len(tokens):,} tokens in {len(tokens.files)} shards; cores: {len(os.sched_getaffinity(0))}")
        print(f"batches of {batch_size} × {context}\n")
        wordpiece = tokenizers.train("wordpiece", ["The cat sat on the mat."] * 9, 300)
        windows = CausalDataset(tokens, context)
        collections = {
            "windows, shuffled": BatchLoader(windows, batch_size),
            "windows, with documents": BatchLoader(CausalDataset(tokens, context, documents=True), batch_size),
            "packed documents": BatchLoader(PackedDataset(tokens, context, shares_boundary=True), batch_size),
            "a mix of two": BatchLoader(MixtureDataset([(windows, 1.0), (windows, 3.0)]), batch_size, shuffle=False),
            "masked": BatchLoader(MLMDataset(tokens, context, wordpiece), batch_size),
        }
        for name, batches in collections.items():
            count = lambda batch: (batch.inputs if hasattr(batch, "inputs") else batch.ids).numel()  # noqa: E731
            speed = rate(batches.iterate(), count, options.seconds)
            print(f"  {name:28} {speed / 1e6:8.1f} million tokens/s")
        speed = rate(prefetch(collections["windows, shuffled"].iterate()), lambda b: b.inputs.numel(), options.seconds)
        print(f"  {'windows, prefetched':28} {speed / 1e6:8.1f} million tokens/s")
        stream = np.memmap(os.path.join(cache, "stream.bin"), dtype=np.uint16, mode="w+", shape=(len(tokens),))
        stream[:] = tokens.read(0, len(tokens))
        speed = rate(nanogpt_batches(stream, context, batch_size), lambda b: b[0].numel(), options.seconds)
        print(f"  {'as small scripts do it':28} {speed / 1e6:8.1f} million tokens/s")


if __name__ == "__main__":
    main()

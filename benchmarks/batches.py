"""Data loading: tokens per second on one core, from shuffled token shards, in GPT-2 small's batch shape.

taskset -c 0 python benchmarks/batches.py
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from headway import tokenizers
from headway.data import BatchLoader, CausalDataset, MixtureDataset, MLMDataset, PackedDataset, prefetch, prepare


def tokens_per_second(batches: Iterator[Any], count_tokens: Callable[[Any], int], seconds: float) -> float:
    next(batches)  # warm up
    n_tokens, started = 0, time.perf_counter()
    for batch in batches:
        n_tokens += count_tokens(batch)
        if time.perf_counter() - started > seconds:
            break
    return n_tokens / (time.perf_counter() - started)


def nanogpt_batches(stream: np.ndarray, context: int, batch_size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """nanoGPT's get_batch: random windows, sliced and converted row by row, once for inputs and once for targets."""
    while True:
        starts = torch.randint(len(stream) - context - 1, (batch_size,))
        x = torch.stack([torch.from_numpy(stream[i : i + context].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(stream[i + 1 : i + 1 + context].astype(np.int64)) for i in starts])
        yield x, y


def count_tokens(batch: Any) -> int:
    return (batch.inputs if hasattr(batch, "inputs") else batch.ids).numel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    context, batch_size = options.context, options.batch_size

    def measure(name: str, batches: Iterator[Any], count: Callable[[Any], int] = count_tokens) -> None:
        speed = tokens_per_second(batches, count, options.seconds)
        print(f"  {name:28} {speed / 1e6:8.1f} million tokens/s")

    with tempfile.TemporaryDirectory() as cache:
        bpe = tokenizers.train("bpe", ["The cat sat on the mat."] * 9, 300)
        tokens = prepare("stdlib", bpe, cache=cache).train
        print(f"{len(tokens):,} tokens in {len(tokens.files)} shards; cores: {len(os.sched_getaffinity(0))}")
        print(f"batches of {batch_size} × {context}\n")
        wordpiece = tokenizers.train("wordpiece", ["The cat sat on the mat."] * 9, 300)
        windows = CausalDataset(tokens, context)
        loaders = {
            "windows, shuffled": BatchLoader(windows, batch_size),
            "windows, with documents": BatchLoader(CausalDataset(tokens, context, documents=True), batch_size),
            "packed documents": BatchLoader(PackedDataset(tokens, context, bos_is_eos=True), batch_size),
            "mixture of two": BatchLoader(MixtureDataset([(windows, 1.0), (windows, 3.0)]), batch_size, shuffle=False),
            "masked LM": BatchLoader(MLMDataset(tokens, context, wordpiece), batch_size),
        }
        for name, loader in loaders.items():
            measure(name, loader.iterate())
        measure("windows, prefetched", prefetch(loaders["windows, shuffled"].iterate()))
        stream = np.memmap(os.path.join(cache, "stream.bin"), dtype=np.uint16, mode="w+", shape=(len(tokens),))
        stream[:] = tokens.read(0, len(tokens))
        measure("nanoGPT's get_batch", nanogpt_batches(stream, context, batch_size), lambda batch: batch[0].numel())


if __name__ == "__main__":
    main()

"""Benchmark: encoding a corpus and training byte-level BPE, compared with the `tokenizers` library on one core.

    taskset -c 0 python benchmarks/encoding.py --vocabulary FOLDER_WITH_GPT2_FILES

The corpus is CPython's standard library. Without GPT-2's encoder.json and vocab.bpe, a vocabulary of 32,000 is trained
first. Implementations take turns for `--rounds` rounds, the best round of each counts, and their ids are compared.
"""

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core for the peer too
os.environ["RAYON_NUM_THREADS"] = "1"

import tokenizers as rust

from headway import tokenizers
from headway.data import load_documents


def first_bytes(documents: list[str], n_bytes: float) -> list[str]:
    """The first documents that together reach `n_bytes` of UTF-8."""
    selected, size = [], 0
    for document in documents:
        if size >= n_bytes:
            break
        selected.append(document)
        size += len(document.encode())
    return selected


def best_of(rounds: int, functions: dict[str, Callable[[], Any]]) -> tuple[dict[str, float], dict[str, Any]]:
    """The shortest time in seconds and the last result of each function, called in turns."""
    seconds, results = dict.fromkeys(functions, float("inf")), {}
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            results[name] = function()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds, results


def train_with_library(documents: list[str], vocab_size: int) -> rust.Tokenizer:
    backend = rust.Tokenizer(rust.models.BPE())
    backend.pre_tokenizer = rust.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = rust.pre_tokenizers.ByteLevel.alphabet()
    trainer = rust.trainers.BpeTrainer(vocab_size=vocab_size - 1, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(documents, trainer)
    return backend


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", help="tokenizer to encode with, such as GPT-2's files")
    parser.add_argument("--megabytes", type=float, default=5.0, help="size of the corpus")
    parser.add_argument("--rounds", type=int, default=5, help="times that each implementation runs")
    parser.add_argument("--vocab-size", type=int, default=32_000, help="vocabulary size for the training benchmark")
    options = parser.parse_args()

    documents = first_bytes(load_documents("stdlib"), options.megabytes * 1e6)
    megabytes = sum(len(document.encode()) for document in documents) / 1e6
    print(f"{megabytes:.2f} MB of Python in {len(documents)} documents; cores: {len(os.sched_getaffinity(0))}")

    ours = (
        tokenizers.load_tokenizer(options.vocabulary)
        if options.vocabulary
        else tokenizers.train("bpe", documents, options.vocab_size)
    )
    theirs = rust.Tokenizer.from_str(ours.backend.to_str())
    theirs.encode_special_tokens = True
    encoders = {
        "tokenizers encode_batch": lambda: [e.ids for e in theirs.encode_batch(documents, add_special_tokens=False)],
        "tokenizers encode_batch_fast": lambda: [
            e.ids for e in theirs.encode_batch_fast(documents, add_special_tokens=False)
        ],
        "headway encode_batch": lambda: ours.encode_batch(documents),
    }
    seconds, ids = best_of(options.rounds, encoders)
    baseline = seconds["tokenizers encode_batch"]
    print(f"\nencoding, {ours.vocab_size:,} tokens")
    for name in encoders:
        print(f"  {name:30} {megabytes / seconds[name]:7.2f} MB/s  {baseline / seconds[name]:5.2f}×")
    assert all(result == ids["headway encode_batch"] for result in ids.values())
    print("  ids: equal")

    print(f"\ntraining byte-level BPE, {options.vocab_size:,} tokens")
    trainers = {
        "tokenizers": lambda: train_with_library(documents, options.vocab_size),
        "headway": lambda: tokenizers.train("bpe", documents, options.vocab_size),
    }
    seconds, trained = best_of(options.rounds, trainers)
    for name in trainers:
        print(f"  {name:30} {seconds[name]:7.2f} s     {seconds[name] / seconds['tokenizers']:5.2f}×")
    vocab = trained["headway"].vocab
    del vocab["<|endoftext|>"]
    assert vocab == trained["tokenizers"].get_vocab()
    print("  vocabularies: equal")


if __name__ == "__main__":
    main()

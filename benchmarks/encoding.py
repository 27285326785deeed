"""Tokenizers: encoding a corpus and training byte-level BPE, beside the `tokenizers` library, on one core.

    taskset -c 0 python benchmarks/encoding.py --vocabulary FOLDER_WITH_GPT2S_FILES

The text is CPython's own sources. Without GPT-2's encoder.json and vocab.bpe, a vocabulary of 32,000 is trained first.
Each is timed `--rounds` times in turns, and the best round counts; the ids are compared.
"""

import argparse
import os
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core for the peer too
os.environ["RAYON_NUM_THREADS"] = "1"

import tokenizers as rust

from headway import tokenizers
from headway.data import load_documents


def some(documents: list[str], n_bytes: float) -> list[str]:
    found, size = [], 0
    for document in documents:
        if size >= n_bytes:
            break
        found.append(document)
        size += len(document.encode())
    return found


def timed(work) -> tuple[float, object]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def train_by_the_library(documents: list[str], vocab_size: int) -> rust.Tokenizer:
    backend = rust.Tokenizer(rust.models.BPE())
    backend.pre_tokenizer = rust.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = rust.pre_tokenizers.ByteLevel.alphabet()
    trainer = rust.trainers.BpeTrainer(vocab_size=vocab_size - 1, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(documents, trainer)
    return backend


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", help="a tokenizer to encode with, such as GPT-2's files")
    parser.add_argument("--megabytes", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vocab-size", type=int, default=32_000, help="of the training that is timed")
    options = parser.parse_args()

    documents = some(load_documents("stdlib"), options.megabytes * 1e6)
    size = sum(len(d.encode()) for d in documents) / 1e6
    print(f"{size:.2f} MB of Python in {len(documents)} documents; cores: {len(os.sched_getaffinity(0))}")

    ours = (
        tokenizers.load_tokenizer(options.vocabulary)
        if options.vocabulary
        else tokenizers.train("bpe", documents, options.vocab_size)
    )
    theirs = rust.Tokenizer.from_str(ours.backend.to_str())
    theirs.encode_special_tokens = True
    ways = {
        "tokenizers encode_batch": lambda: [e.ids for e in theirs.encode_batch(documents, add_special_tokens=False)],
        "tokenizers encode_batch_fast": lambda: [
            e.ids for e in theirs.encode_batch_fast(documents, add_special_tokens=False)
        ],
        "headway encode_batch": lambda: ours.encode_batch(documents),
    }
    best = dict.fromkeys(ways, float("inf"))
    results = {}
    for _ in range(options.rounds):
        for name, work in ways.items():
            seconds, results[name] = timed(work)
            best[name] = min(best[name], seconds)
    slow = best["tokenizers encode_batch"]
    print(f"\nencoding, {ours.vocab_size:,} tokens")
    for name, seconds in best.items():
        print(f"  {name:30} {size / seconds:7.2f} MB/s  {slow / seconds:5.2f}×")
    first, *rest = results.values()
    assert all(result == first for result in rest)
    print("  ids: equal")

    print(f"\ntraining byte-level BPE, {options.vocab_size:,} tokens")
    trainings = {
        "tokenizers": lambda: train_by_the_library(documents, options.vocab_size),
        "headway": lambda: tokenizers.train("bpe", documents, options.vocab_size),
    }
    best = dict.fromkeys(trainings, float("inf"))
    for _ in range(options.rounds):
        for name, work in trainings.items():
            seconds, results[name] = timed(work)
            best[name] = min(best[name], seconds)
    for name, seconds in best.items():
        print(f"  {name:30} {seconds:7.2f} s     {seconds / best['tokenizers']:5.2f}×")
    merges = [results["tokenizers"].get_vocab(), results["headway"].backend.get_vocab()]
    merges[1].pop("<|endoftext|>")
    assert merges[0] == merges[1]
    print("  vocabularies: equal")


if __name__ == "__main__":
    main()

"""N-grams: counting and smoothing beside KenLM's lmplz, scoring beside the kenlm package, on one core.

    taskset -c 0 python benchmarks/ngram.py ptb/ptb.train.txt ptb/ptb.test.txt --lmplz PATH --build-binary PATH

One sentence a line. Without the peers (lmplz and build_binary are C++ programs, `pip install kenlm` the Python package)
only our numbers are shown. From a text: words to ids, count, smooth, and save the model, or write an ARPA file, as
lmplz does. From ids: counting and smoothing alone. Scoring is of every token of the second text, ends of sentences
included; kenlm's is `Model.score`, sentence by sentence.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch

import headway
from headway.models.ngram.arpa import write_arpa

torch.set_num_threads(1)


def best(work, rounds: int) -> tuple[float, object]:
    times, result = [], None
    for _ in range(rounds):
        started = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - started)
    return min(times), result


def counted(lines: list[str], order: int) -> tuple[headway.models.NGram, np.ndarray, float]:
    tokenizer = headway.tokenizers.train("word", lines, pre_tokenizer="whitespace")
    ids = np.concatenate(tokenizer.framed_arrays(lines))
    model = headway.create(
        "ngram", vocab_size=tokenizer.vocab_size, order=order, bos_id=tokenizer.bos_id, eos_id=tokenizer.eos_id
    )
    model.tokenizer = tokenizer
    started = time.perf_counter()
    model.fit(ids)
    return model, ids, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lmplz", help="KenLM's program that makes models")
    parser.add_argument("--build-binary", help="KenLM's program that makes binary ones")
    options = parser.parse_args()
    # KenLM refuses words spelled like its own
    text = options.train.read_text().replace("<unk>", "UNK").replace("<s>", "S").replace("</s>", "S")
    lines = text.split("\n")[: -1 if text.endswith("\n") else None]
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = f"{folder}/ours.arpa", f"{folder}/theirs.arpa"

        def saved() -> headway.models.NGram:
            model, _, _ = counted(text.split("\n")[: -1 if text.endswith("\n") else None], options.order)
            model.save(f"{folder}/model", overwrite=True)
            return model

        def whole() -> headway.models.NGram:
            model, _, _ = counted(text.split("\n")[: -1 if text.endswith("\n") else None], options.order)
            write_arpa(model, ours)
            return model

        kept, _ = best(saved, options.rounds)
        seconds, model = best(whole, options.rounds)
        assert isinstance(model, headway.models.NGram)
        n_words = sum(len(line.split()) for line in lines)
        fitted = min(counted(lines, options.order)[2] for _ in range(options.rounds))
        print(f"{n_words:,} words, {model.n_params:,} n-grams of up to {options.order}")
        print(f"headway   from ids to a model {n_words / fitted:9,.0f} words/s")
        print(f"headway   from text to a saved model {n_words / kept:9,.0f} words/s")
        print(f"headway   from text to ARPA {n_words / seconds:11,.0f} words/s")
        if options.lmplz:
            command = [options.lmplz, "-o", str(options.order), "-S", "1G", "-T", folder, "--discount_fallback"]
            (Path(folder) / "text").write_text(text)

            def peer() -> None:
                with open(f"{folder}/text") as source, open(theirs, "w") as target:
                    subprocess.run(command, stdin=source, stdout=target, stderr=subprocess.DEVNULL, check=True)

            took, _ = best(peer, options.rounds)
            ratios = f"headway {took / seconds:.2f}x, to a saved model {took / kept:.2f}x"
            print(f"lmplz     from text to ARPA {n_words / took:11,.0f} words/s; {ratios}")
        test = options.test.read_text().replace("<unk>", "UNK").split("\n")[:-1]
        ids = np.concatenate(model.tokenizer.framed_arrays(test))
        n_asked = int((ids != model.tokenizer.bos_id).sum())
        model.log_probability(ids)  # makes the tables
        took, found = best(lambda: model.log_probability(ids), 5 * options.rounds)
        perplexity = float(np.exp(-np.asarray(found, dtype=float).sum() / n_asked))
        print(f"headway   scoring {n_asked / took / 1e6:.2f} million/s, perplexity {perplexity:.2f}")
        print(f"headway   {model.nbytes / 1e6:.1f} MB in memory")
        try:
            import kenlm
        except ImportError:
            print("kenlm     not installed", file=sys.stderr)
        else:
            peer_model = kenlm.Model(ours)
            took, log10 = best(lambda: sum(peer_model.score(line) for line in test), options.rounds)
            print(f"kenlm     scoring {n_asked / took / 1e6:.2f} million/s, perplexity {10 ** (-log10 / n_asked):.2f}")
        if options.build_binary:
            binary = f"{folder}/probing"
            subprocess.run([options.build_binary, "probing", ours, binary], check=True, capture_output=True)
            size = os.path.getsize(binary)
            print(f"kenlm     {size / 1e6:.1f} MB as a probing model; headway {model.nbytes / size:.2f}x")


if __name__ == "__main__":
    main()

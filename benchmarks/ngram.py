"""n-grams: estimation against KenLM's lmplz and scoring against the kenlm package, on one core.

    taskset -c 0 python benchmarks/ngram.py ptb/ptb.train.txt ptb/ptb.test.txt --lmplz PATH --build-binary PATH

Texts have one sentence per line. Without the peers (lmplz and build_binary are C++ programs, `pip install kenlm` gives
the Python package) only Headway's numbers are printed. "From text" covers tokenizing, counting, smoothing and either
saving the model or writing an ARPA file, as lmplz does; "from ids" covers counting and smoothing alone. Scoring covers
every token of the second text, EOS included; kenlm's is `Model.score`, sentence by sentence.
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
from headway.models.ngram import write_arpa

torch.set_num_threads(1)


def best_time(function, rounds: int) -> tuple[float, object]:
    """The shortest of several runs in seconds, and the function's result."""
    times, result = [], None
    for _ in range(rounds):
        start = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - start)
    return min(times), result


def fit_ngram(lines: list[str], order: int) -> tuple[headway.models.NGram, np.ndarray, float]:
    """A model of the lines, their token ids, and the seconds that counting and smoothing took."""
    tokenizer = headway.tokenizers.train("word", lines, pre_tokenizer="whitespace")
    ids = np.concatenate(tokenizer.encode_documents(lines))
    model = headway.create(
        "ngram", vocab_size=tokenizer.vocab_size, order=order, bos_id=tokenizer.bos_id, eos_id=tokenizer.eos_id
    )
    model.tokenizer = tokenizer
    start = time.perf_counter()
    model.fit(ids)
    return model, ids, time.perf_counter() - start


def benchmark_estimation(text: str, options: argparse.Namespace, folder: str) -> headway.models.NGram:
    """Print the speed of estimation, of Headway and of lmplz, and leave Headway's model at folder/headway.arpa."""
    lines = text.split("\n")[: -1 if text.endswith("\n") else None]

    def fit_and_save() -> headway.models.NGram:
        model, _, _ = fit_ngram(text.split("\n")[: -1 if text.endswith("\n") else None], options.order)
        model.save(f"{folder}/model", overwrite=True)
        return model

    def fit_and_write_arpa() -> headway.models.NGram:
        model, _, _ = fit_ngram(text.split("\n")[: -1 if text.endswith("\n") else None], options.order)
        write_arpa(model, f"{folder}/headway.arpa")
        return model

    save_seconds, _ = best_time(fit_and_save, options.rounds)
    arpa_seconds, model = best_time(fit_and_write_arpa, options.rounds)
    assert isinstance(model, headway.models.NGram)
    n_words = sum(len(line.split()) for line in lines)
    fit_seconds = min(fit_ngram(lines, options.order)[2] for _ in range(options.rounds))
    print(f"{n_words:,} words, {model.n_params:,} n-grams of up to {options.order} tokens")
    print(f"headway   from ids to a model {n_words / fit_seconds:9,.0f} words/s")
    print(f"headway   from text to a saved model {n_words / save_seconds:9,.0f} words/s")
    print(f"headway   from text to ARPA {n_words / arpa_seconds:11,.0f} words/s")
    if options.lmplz:
        command = [options.lmplz, "-o", str(options.order), "-S", "1G", "-T", folder, "--discount_fallback"]
        (Path(folder) / "text").write_text(text)

        def run_lmplz() -> None:
            with open(f"{folder}/text") as source, open(f"{folder}/lmplz.arpa", "w") as target:
                subprocess.run(command, stdin=source, stdout=target, stderr=subprocess.DEVNULL, check=True)

        lmplz_seconds, _ = best_time(run_lmplz, options.rounds)
        ratios = f"headway {lmplz_seconds / arpa_seconds:.2f}x, to a saved model {lmplz_seconds / save_seconds:.2f}x"
        print(f"lmplz     from text to ARPA {n_words / lmplz_seconds:11,.0f} words/s; {ratios}")
    return model


def benchmark_scoring(model: headway.models.NGram, options: argparse.Namespace, folder: str) -> None:
    """Print the speed, perplexity and memory of scoring the test text, in Headway and in kenlm."""
    lines = options.test.read_text().replace("<unk>", "UNK").split("\n")[:-1]
    ids = np.concatenate(model.tokenizer.encode_documents(lines))
    n_predicted = int((ids != model.tokenizer.bos_id).sum())
    model.log_probability(ids)  # builds the hash tables
    seconds, log_p = best_time(lambda: model.log_probability(ids), 5 * options.rounds)
    perplexity = float(np.exp(-np.asarray(log_p, dtype=float).sum() / n_predicted))
    print(f"headway   scoring {n_predicted / seconds / 1e6:.2f} million/s, perplexity {perplexity:.2f}")
    print(f"headway   {model.nbytes / 1e6:.1f} MB in memory")
    try:
        import kenlm
    except ImportError:
        print("kenlm     not installed", file=sys.stderr)
    else:
        kenlm_model = kenlm.Model(f"{folder}/headway.arpa")
        seconds, log10_p = best_time(lambda: sum(kenlm_model.score(line) for line in lines), options.rounds)
        perplexity = 10 ** (-log10_p / n_predicted)
        print(f"kenlm     scoring {n_predicted / seconds / 1e6:.2f} million/s, perplexity {perplexity:.2f}")
    if options.build_binary:
        binary = f"{folder}/probing"
        command = [options.build_binary, "probing", f"{folder}/headway.arpa", binary]
        subprocess.run(command, check=True, capture_output=True)
        n_bytes = os.path.getsize(binary)
        print(f"kenlm     {n_bytes / 1e6:.1f} MB as a probing model; headway {model.nbytes / n_bytes:.2f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lmplz", help="KenLM's program that estimates models")
    parser.add_argument("--build-binary", help="KenLM's program that builds binary models")
    options = parser.parse_args()
    # KenLM refuses texts that contain its special tokens.
    text = options.train.read_text().replace("<unk>", "UNK").replace("<s>", "S").replace("</s>", "S")
    with tempfile.TemporaryDirectory() as folder:
        model = benchmark_estimation(text, options, folder)
        benchmark_scoring(model, options, folder)


if __name__ == "__main__":
    main()

"""Beam search against `transformers.generate`: the same weights, sources and options, in one run.

    python benchmarks/translate.py                     the 2017 base shape, 16 sources of 20 tokens, 5 beams, 40 tokens
    python benchmarks/translate.py --beams 1 --batch 1

There is no EOS token, so every translation has exactly 40 tokens and both libraries do the same work. Weights are
packed once for all rounds, as `headway.translate` does for all sentences of a file. Rounds are interleaved, so that
other load on the machine affects both; medians are reported.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
import transformers

import headway
from headway.generation.beam_search import beam_search
from headway.nn.kernels.cpu_linear import CPUKernels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--source", type=int, default=20, help="tokens in a source")
    parser.add_argument("--new", type=int, default=40, help="tokens to generate")
    parser.add_argument("--beams", type=int, default=5)
    parser.add_argument("--vocabulary", type=int, default=10_000)
    parser.add_argument("--layers", type=int, default=6, help="of each side")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    shape = {"vocab_size": options.vocabulary, "n_layers": options.layers, "d_model": options.width}
    ours = headway.create("transformer-base", **shape, norm_eps=1e-5, bos_id=1, eos_id=2).eval()
    with tempfile.TemporaryDirectory() as folder:
        ours.save(f"{folder}/model")
        theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(f"{folder}/model").eval()
    theirs.generation_config.eos_token_id = None
    ours, theirs = ours.to(options.device), theirs.to(options.device)
    source = torch.randint(3, options.vocabulary, (options.batch, options.source), device=options.device)

    def run_headway() -> list[list[int]]:
        hypotheses = beam_search(
            ours,
            [[1]] * options.batch,
            num_beams=options.beams,
            max_new_tokens=options.new,
            state=ours.start(source=source, capacity=options.new + 1),
        )
        return [row[0].tokens for row in hypotheses]

    def run_transformers() -> list[list[int]]:
        out = theirs.generate(
            input_ids=source,
            attention_mask=torch.ones_like(source),
            num_beams=options.beams,
            max_new_tokens=options.new,
            do_sample=False,
        )
        return out[:, 1:].tolist()

    peers: dict[str, Callable[[], list[list[int]]]] = {"headway": run_headway, "transformers": run_transformers}
    seconds: dict[str, list[float]] = {name: [] for name in peers}
    with CPUKernels(ours), torch.inference_mode():
        translations = {name: run() for name, run in peers.items()}  # warm-up
        for _ in range(options.rounds):
            for name, run in peers.items():
                start = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - start)
    equal = sum(a == b for a, b in zip(*translations.values(), strict=True)) / options.batch
    n_tokens = options.batch * options.new
    rates = {name: n_tokens / statistics.median(times) for name, times in seconds.items()}
    ratio = rates["headway"] / rates["transformers"]
    for name, rate in rates.items():
        rounds = ", ".join(f"{time:.2f}" for time in seconds[name])
        print(f"{name:<14} {rate:8.1f} tokens/s   (rounds: {rounds} s)")
    print(f"{'ratio':<14} {ratio:8.2f}×          equal translations: {equal:.1%}")
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    conditions = {**vars(options), **versions, "threads": torch.get_num_threads()}
    print(json.dumps({**conditions, "tokens_per_second": rates, "ratio": ratio, "equal": equal}))


if __name__ == "__main__":
    main()

"""Generation against `transformers.generate`: the same random weights, prompts and number of tokens, in one run.

    python benchmarks/generate.py                      GPT-2 small, float32, CPU, 64 + 128 tokens, batch 1
    python benchmarks/generate.py --batch 8 --new 64

Rounds are interleaved, so that other load on the machine affects both; medians are reported.
"""

import argparse
import json
import statistics
import tempfile
import time

import torch
import transformers

import headway
from headway.generation.decode_loop import DecodeLoop
from headway.sampling import Pipeline


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt2", help="a preset whose architecture transformers has")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=64, help="tokens in the prompt")
    parser.add_argument("--new", type=int, default=128, help="tokens to generate")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()

    torch.manual_seed(0)
    ours = headway.create(options.model, device=options.device, dtype=options.dtype).eval()
    with tempfile.TemporaryDirectory() as folder:
        ours.save(f"{folder}/model")
        theirs = transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/model", dtype=ours.dtype)
    theirs = theirs.to(options.device).eval()
    prompt = torch.randint(ours.config.vocab_size, (options.batch, options.prompt))

    def run_headway() -> torch.Tensor:
        rows = prompt.tolist()
        loop, tokens = DecodeLoop(ours, rows, Pipeline().greedy(), options.new, seeds=range(len(rows))), []
        for _ in range(options.new):
            loop.step()
            tokens.append(loop.last_tokens.clone())
        return torch.cat(tokens, dim=1)

    def run_transformers() -> torch.Tensor:
        ids = prompt.to(options.device)
        sequences = theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=options.new,
            min_new_tokens=options.new,
            pad_token_id=0,
        )
        return sequences[:, options.prompt :]

    peers = {"headway": run_headway, "transformers": run_transformers}
    tokens = {name: run() for name, run in peers.items()}  # warm-up
    agreement = (tokens["headway"] == tokens["transformers"]).float().mean().item()
    seconds: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(options.rounds):
        for name, run in peers.items():
            if options.device != "cpu":
                torch.cuda.synchronize()
            start = time.perf_counter()
            run()
            if options.device != "cpu":
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - start)
    speed = {name: options.batch * options.new / statistics.median(times) for name, times in seconds.items()}
    ratio = speed["headway"] / speed["transformers"]
    for name, value in speed.items():
        print(f"{name:14} {value:8.1f} tokens/s   (rounds: {', '.join(f'{t:.2f}' for t in seconds[name])} s)")
    print(f"ratio          {ratio:8.2f}×          equal tokens: {100 * agreement:.1f} %")
    versions = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
    }
    print(json.dumps({**vars(options), **versions, "tokens_per_second": speed, "ratio": ratio, "equal": agreement}))


if __name__ == "__main__":
    main()

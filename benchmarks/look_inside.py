"""What it costs to look at one head of one layer: GPT-2 small, against the plain forward pass.

    python benchmarks/look_inside.py [--tokens 1024] [--layer 5] [--head 3] [--rounds 7] [--reference]

Both run in turn, and the ratios are those of the medians; CPU seconds count on a machine that others use too. The
weights are random: the cost does not depend on them. --reference adds a pass that computes every head of every layer
by the definition.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

import headway
from headway.analysis.layer_attention import model_attention_steps
from headway.nn.attention import use_attention


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt2", help="a preset of a GPT")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--layer", type=int, default=5)
    parser.add_argument("--head", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--reference", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = headway.create(options.model).eval()
    ids = torch.randint(model.config.vocab_size, (options.tokens,)).tolist()

    def plain() -> None:
        with torch.inference_mode():
            model(torch.tensor([ids], device=model.device))

    def look() -> None:
        model_attention_steps(model, ids, layer=options.layer, head=options.head)

    def reference() -> None:
        use_attention(model, "reference")
        plain()
        use_attention(model, "fast")

    functions = {"plain forward pass": plain, "with the steps of one head": look}
    if options.reference:
        functions["every head by the definition"] = reference
    seconds = measure(functions, options.rounds)
    base = seconds["plain forward pass"]
    where = f"{options.tokens} tokens, layer {options.layer}, head {options.head}"
    machine = f"float32, {model.device}, {torch.get_num_threads()} threads"
    print(f"{options.model}, {where}, {machine}; medians of {options.rounds} rounds\n")
    print(f"{'':30} {'elapsed':>9} {'ratio':>7} {'CPU':>9} {'ratio':>7}")
    for name, times in seconds.items():
        columns = [
            f"{statistics.median(clock):8.3f}s {statistics.median(clock) / statistics.median(plain_clock):6.3f}×"
            for clock, plain_clock in zip(zip(*times, strict=True), zip(*base, strict=True), strict=True)
        ]
        print(f"{name:30} {' '.join(columns)}")


def measure(functions: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Elapsed and CPU seconds of each function, run in turn; a first round is not counted."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in functions}
    for _ in range(rounds + 1):
        for name, function in functions.items():
            started, cpu_started = time.perf_counter(), time.process_time()
            function()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds[name].append((time.perf_counter() - started, time.process_time() - cpu_started))
    return {name: times[1:] for name, times in seconds.items()}


if __name__ == "__main__":
    main()

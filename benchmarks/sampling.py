"""A pipeline of samplers against transformers' LogitsProcessorList: the same samplers on the same rows, in one run.

    python benchmarks/sampling.py                  64 rows of 50,257 on the CPU: temperature, top-k, top-p, min-p, typ.
    python benchmarks/sampling.py --device cuda    256 rows of 128,256, with a repetition penalty first and a draw last
    python benchmarks/sampling.py --no-top-k       the same without top-k

Rounds are interleaved, so that other load on the machine affects both; medians are reported. On a GPU, "graph" is the
same pipeline captured as a CUDA graph, as in the decode loop.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
import transformers
from torch import Tensor

from headway.sampling import Pipeline

WARM_UP_ROUNDS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, help="default: 64, on a GPU 256")
    parser.add_argument("--vocabulary", type=int, help="default: 50257, on a GPU 128256")
    parser.add_argument("--no-top-k", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    is_cuda = options.device != "cpu"
    rows, V = options.rows or (256 if is_cuda else 64), options.vocabulary or (128_256 if is_cuda else 50_257)

    torch.manual_seed(0)
    logits = 3 * torch.randn(rows, V, device=options.device)
    history = torch.randint(V, (rows, 256), device=options.device)
    lengths = torch.full((rows,), 256, device=options.device)

    stages = [{"stage": "repetition_penalty", "penalty": 1.1}] if is_cuda else []
    stages += [{"stage": "temperature", "temperature": 0.8}]
    stages += [] if options.no_top_k else [{"stage": "top_k", "k": 50}]
    stages += [{"stage": "top_p", "p": 0.95}, {"stage": "min_p", "p": 0.02}, {"stage": "typical", "p": 0.9}]
    pipe = Pipeline(stages)
    state = pipe.start(rows, 0, options.device)

    processors = transformers.LogitsProcessorList()
    if is_cuda:
        processors.append(transformers.RepetitionPenaltyLogitsProcessor(1.1))
    processors.append(transformers.TemperatureLogitsWarper(0.8))
    if not options.no_top_k:
        processors.append(transformers.TopKLogitsWarper(50))
    processors += [
        transformers.TopPLogitsWarper(0.95),
        transformers.MinPLogitsWarper(0.02),
        transformers.TypicalLogitsWarper(0.9),
    ]

    def run_headway() -> Tensor:
        if is_cuda:
            return pipe.draw(logits, history=(history, lengths), state=state)[0]
        return pipe.apply(logits)

    def run_transformers() -> Tensor:
        filtered = processors(history, logits)
        return torch.multinomial(filtered.softmax(-1), 1) if is_cuda else filtered

    peers: dict[str, Callable[[], Tensor]] = {"headway": run_headway, "transformers": run_transformers}
    if is_cuda:
        peers["graph"] = captured(run_headway)
    equal_rows = None
    if not is_cuda:
        ours, theirs = run_headway().isfinite(), run_transformers().isfinite()
        equal_rows = (ours == theirs).all(dim=-1).float().mean().item()
    times: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(options.rounds + WARM_UP_ROUNDS):
        for name, run in peers.items():
            if is_cuda:
                torch.cuda.synchronize()
            started = time.perf_counter()
            run()
            if is_cuda:
                torch.cuda.synchronize()
            times[name].append(1e3 * (time.perf_counter() - started))
    medians = {name: round(statistics.median(rounds[WARM_UP_ROUNDS:]), 3) for name, rounds in times.items()}
    ratios = {name: round(medians["transformers"] / medians[name], 2) for name in medians}
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    setup = {"device": options.device, "rows": rows, "vocabulary": V, "top_k": not options.no_top_k}
    print(json.dumps({**setup, **versions, "milliseconds": medians, "ratio": ratios, "equal_rows": equal_rows}))


def captured(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The same call as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


if __name__ == "__main__":
    main()

"""Where the time of a decode step on a GPU goes: random weights, greedy, 192 keys.

    python benchmarks/decode_kernels.py                                    GPT-2 small, bfloat16
    python benchmarks/decode_kernels.py --model llama-2-7b --batch 1 8 64

For every batch size: kernels and time of a step as a CUDA graph, plain and fused, with the sampler; the bytes per
second of weights and keys; the seconds until it is captured (the first time, with compilation); the memory it adds to
weights and cache; and the error of its logits, as a multiple of the plain path's, both against float32. Then the mean
time of each fused kernel.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

import headway
from headway.generation.cuda_graph import DecodeGraph
from headway.generation.decode_loop import DecodeLoop
from headway.models.fused_rule import why_not_fused
from headway.models.gpt import GPT
from headway.sampling import Pipeline

N_KEYS, ROUNDS, REPLAYS = 192, 15, 20
ONE_ROW_KERNELS = ("Q/K/V", "attention", "output", "up", "down")  # the kernels of a layer, in their order …
MANY_ROWS_KERNELS = ("norm", "Q/K/V", "attention", "output", "norm", "up", "down")  # … and for several rows
OUR_KERNELS = ("_one_row_kernel", "_rows_kernel", "_norm_kernel", "_attend_kernel")


class Step(NamedTuple):
    seconds: float
    kernels: list[tuple[str, float]]  # names and seconds, in the order they run
    capture_seconds: float
    added_bytes: int
    logits: torch.Tensor  # (B, V), float32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 64, 256])
    options = parser.parse_args()
    torch.manual_seed(0)
    model = headway.create(options.model, device="cuda", dtype=options.dtype).eval()
    assert isinstance(model, GPT)
    assert why_not_fused(model) is None, why_not_fused(model)
    n_bytes = sum(parameter.nbytes for parameter in model.parameters())
    print(f"{options.model}, {options.dtype}, {1e-6 * n_bytes:,.0f} MB of weights, {torch.cuda.get_device_name()}\n")
    titles = ("plain: kernels", "ms", "fused: kernels", "ms", "TB/s", "capture s", "added MB", "added %", "error ratio")
    print(f"{'batch':>5} " + " ".join(f"{title:>14}" for title in titles))
    fused_steps = {}
    for n_rows in options.batch:
        prompts = torch.randint(model.config.vocab_size, (n_rows, N_KEYS - 1)).tolist()
        plain, fused = (measure(model, prompts, is_fused=is_fused) for is_fused in (False, True))
        fused_steps[n_rows] = fused
        cache = model.start(n_rows, N_KEYS).nbytes
        reference = reference_logits(model, prompts)
        error, plain_error = ((step.logits - reference).norm().item() for step in (fused, plain))
        columns = (
            f"{len(plain.kernels)}", f"{1e3 * plain.seconds:.3f}",
            f"{len(fused.kernels)}", f"{1e3 * fused.seconds:.3f}",
            f"{1e-12 * (n_bytes + cache) / fused.seconds:.2f}", f"{fused.capture_seconds:.2f}",
            f"{1e-6 * fused.added_bytes:.1f}", f"{fused.added_bytes / (n_bytes + cache):.1%}",
            f"{error / plain_error:.2f}" if plain_error else "exact",
        )  # fmt: skip
        print(f"{n_rows:5} " + " ".join(f"{column:>14}" for column in columns), flush=True)
    print("\nmicroseconds of each kernel, the mean of all layers")
    for n_rows, step in fused_steps.items():
        print(f"{n_rows:5}  " + ", ".join(f"{name} {1e6 * t:.1f}" for name, t in by_operation(step, model).items()))


@torch.inference_mode()
def measure(model: GPT, prompts: list[list[int]], *, is_fused: bool) -> Step:
    """One decode step after the prompts, captured and replayed."""
    loop = DecodeLoop(model, prompts, Pipeline().greedy(), 2, seeds=[0] * len(prompts), use_cuda_graph=False)
    loop.step()  # prefill and the first token
    torch.cuda.synchronize()
    before, started = torch.cuda.memory_allocated(), time.perf_counter()
    graph = DecodeGraph(model, loop.pipe, len(prompts), N_KEYS + 1, model.config.vocab_size)
    graph.fused_step = graph.fused_step if is_fused else None
    graph.load(loop)
    torch.cuda.synchronize()
    capture_seconds = time.perf_counter() - started
    added_bytes = torch.cuda.memory_allocated() - before - graph.cache.nbytes
    assert graph.graph is not None
    lengths = graph.cache.length.clone()
    graph.graph.replay()
    logits = graph.logits.clone()
    times = []
    for _ in range(ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(REPLAYS):
            graph.graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e-3 * start.elapsed_time(end) / REPLAYS)
        graph.cache.length.copy_(lengths)
    return Step(statistics.median(times), profiled(graph), capture_seconds, added_bytes, logits)


def profiled(graph: DecodeGraph) -> list[tuple[str, float]]:
    assert graph.graph is not None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        graph.graph.replay()
        torch.cuda.synchronize()
    events = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    events.sort(key=lambda event: event.time_range.start)
    return [(event.name, 1e-6 * event.time_range.elapsed_us()) for event in events]


@torch.inference_mode()
def reference_logits(model: GPT, prompts: list[list[int]]) -> torch.Tensor:
    """Of the same step in float32, after the same first token as the model's own."""
    loop = DecodeLoop(model, prompts, Pipeline().greedy(), 2, seeds=[0] * len(prompts), use_cuda_graph=False)
    loop.step()
    exact = copy.deepcopy(model).float()
    ids = torch.cat([torch.tensor(prompts, device=model.device), loop.last_tokens], dim=1)
    rows = [exact.step(row[None], exact.start(1, N_KEYS), last=True)[0][0, -1] for row in ids]
    return torch.stack(rows).float()


def by_operation(step: Step, model: GPT) -> dict[str, float]:
    """Mean seconds of the kernels of each operation."""
    ours = [seconds for name, seconds in step.kernels if name.startswith(OUR_KERNELS)]
    of_layer: Sequence[str] = ONE_ROW_KERNELS if len(step.logits) == 1 else MANY_ROWS_KERNELS
    names = [*of_layer * model.config.n_layers, *(() if len(step.logits) == 1 else ("norm",)), "unembedding"]
    times: dict[str, list[float]] = {}
    for name, seconds in zip(names, ours, strict=True):
        times.setdefault(name, []).append(seconds)
    others = sum(seconds for _, seconds in step.kernels) - sum(ours)
    return {**{name: statistics.mean(values) for name, values in times.items()}, "everything else": others}


if __name__ == "__main__":
    main()

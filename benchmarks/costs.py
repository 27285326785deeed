"""Predicted least times and memory against measured ones, over models, batch sizes and lengths.

    python benchmarks/costs.py                         on a GPU, GPT-2 and Llama 2 7B in bfloat16: three minutes
    python benchmarks/costs.py --device cpu            GPT-2 in float32: some minutes
    python benchmarks/costs.py --models gpt-mini --batches 1 4 --lengths 64 256 --plot costs.png

Times: a prefill, and a decode step through the loop that `headway.generate` uses, beside the roofline lower bound
(costs/roofline.py) at rates measured here. A bound must never exceed the time measured. Models have random weights, and
the largest context that is needed. Memory: the KV cache, and a training step, as the increase over the process before
it. Run it on an idle machine: where other processes lower the measured rates, a time can seem shorter than its bound.
"""

import argparse
import gc
import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import headway
from headway.analysis.cost_measurement import (
    GENERATED_TOKENS,
    GenerationPoint,
    RateMeter,
    measure_product_flops,
    time_generation,
)
from headway.config import GPTConfig, TrainConfig, model_config
from headway.costs import CostReport, cost_report, count_parameters, training_memory
from headway.costs.rendering import format_bytes, format_seconds
from headway.devices import parse_device
from headway.memory import available_bytes
from headway.tables import Column, render_table
from headway.training.memory_measurement import MeasuredMemory, measure_cache_memory, measure_training_memory

GRIDS: dict[str, dict[str, Any]] = {
    "cuda": {"models": ["gpt2", "llama-2-7b"], "batches": [1, 8, 64], "lengths": [128, 512, 2048, 8192]},
    "cpu": {"models": ["gpt2"], "batches": [1, 8], "lengths": [128, 512, 2048]},
}
DTYPES = {"cuda": "bfloat16", "cpu": "float32"}
PARTS = ("memory", "times")


@dataclass(frozen=True)
class MemoryCase:
    """Training of a model; without `train`, its KV cache."""

    label: str
    model: str
    batch_size: int
    seq_len: int
    settings: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] | None = field(default_factory=dict)


def cache(model: str, batch_size: int, seq_len: int, **settings: Any) -> MemoryCase:
    return MemoryCase(f"{model}, KV cache", model, batch_size, seq_len, settings, None)


LONG: dict[str, Any] = {"context": 512}
WIDE: dict[str, Any] = {"context": 512, "d_model": 384}
ALIBI_RELU: dict[str, Any] = {**LONG, "positions": "alibi", "feed_forward": "relu"}
MEMORY_CASES = {
    "cuda": [
        cache("gpt2", 8, 1024),
        cache("llama-2-7b", 4, 4096),
        cache("llama-3-8b", 8, 8192),
        MemoryCase("gpt2", "gpt2", 8, 1024),
        MemoryCase("gpt2, dropout 0", "gpt2", 8, 1024, {"dropout": 0.0}),
        MemoryCase("gpt2, dropout 0", "gpt2", 32, 1024, {"dropout": 0.0}),
        MemoryCase("gpt2, dropout 0", "gpt2", 1, 256, {"dropout": 0.0}),
        MemoryCase("gpt2, dropout 0, SGD", "gpt2", 8, 1024, {"dropout": 0.0}, {"optimizer": "sgd"}),
        MemoryCase("gpt2, checkpointed", "gpt2", 8, 1024, {}, {"checkpoint_activations": True}),
        MemoryCase("gpt2, checkpointed", "gpt2", 64, 1024, {}, {"checkpoint_activations": True}),
        MemoryCase("gpt2-medium, dropout 0", "gpt2-medium", 8, 1024, {"dropout": 0.0}),
        MemoryCase("gpt-mini", "gpt-mini", 64, 512, LONG),
        MemoryCase("gpt-mini, ALiBi, ReLU", "gpt-mini", 64, 512, ALIBI_RELU),
        MemoryCase("llama-mini, 384 wide", "llama-mini", 64, 512, WIDE),
        MemoryCase("llama-2-7b, 4 layers", "llama-2-7b", 4, 2048, {"n_layers": 4}),
    ],
    "cpu": [
        cache("gpt2", 8, 1024),
        cache("llama-mini", 64, 512, **LONG),
        MemoryCase("gpt2, dropout 0", "gpt2", 1, 256, {"dropout": 0.0}),
        MemoryCase("gpt2, dropout 0, SGD", "gpt2", 1, 512, {"dropout": 0.0}, {"optimizer": "sgd"}),
        MemoryCase("gpt-mini", "gpt-mini", 8, 512, LONG),
        MemoryCase("gpt-mini, dropout 0.1", "gpt-mini", 8, 512, {**LONG, "dropout": 0.1}),
        MemoryCase(
            "gpt-mini, 384 wide, 6 layers, checkpointed", "gpt-mini", 8, 512, {**WIDE, "n_layers": 6},
            {"checkpoint_activations": True},
        ),
        MemoryCase("llama-mini, 384 wide", "llama-mini", 8, 512, WIDE),
        MemoryCase("gpt-mini, ALiBi, ReLU", "gpt-mini", 8, 512, ALIBI_RELU),
    ],
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--models", nargs="+", help="presets of the family gpt")
    parser.add_argument("--batches", type=int, nargs="+")
    parser.add_argument("--lengths", type=int, nargs="+")
    parser.add_argument("--dtype", help="default: bfloat16 on a GPU, else float32")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--json", metavar="FILE", type=Path)
    parser.add_argument("--plot", metavar="FILE", type=Path, help="a .png, .svg or .pdf file")
    options = parser.parse_args()

    device = parse_device(options.device)
    kind = "cuda" if device.type == "cuda" else "cpu"
    grid = {name: getattr(options, name) or values for name, values in GRIDS[kind].items()}
    dtype = options.dtype or DTYPES[kind]
    torch.manual_seed(0)
    name = torch.cuda.get_device_name(device) if kind == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    conditions = {"device": name, "dtype": dtype, "torch": torch.__version__, "cores": os.cpu_count()}
    print(f"{name}, {dtype}, torch {torch.__version__}")
    result: dict[str, Any] = {"conditions": conditions}
    if "memory" in options.parts:  # first: later, the process has memory to spare
        cases = MEMORY_CASES[kind]
        memory = [measure_case(case, device) for case in cases]
        print(f"\n{render_memory(cases, memory)}")
        result["memory"] = [
            {**case.__dict__, "predicted": row.predicted, "measured": row.measured}
            for case, row in zip(cases, memory, strict=True)
            if row is not None
        ]
    if "times" in options.parts:
        points = measure_times(grid, dtype, device)
        print(f"\n{render_times(points)}\n\n{summary(points)}")
        result["times"] = [point.to_dict() for point in points]
        if options.plot is not None:
            from headway.analysis.cost_plots import plot_generation

            plot_generation(points, options.plot, title=f"{name}, {dtype}: measured times and lower bounds")
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1), encoding="utf-8")


# ── times ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def measure_times(grid: dict[str, Any], dtype: str, device: torch.device) -> list[GenerationPoint]:
    """Every model at every batch size and length. Each model is built once."""
    log("matrix products")
    flops = measure_product_flops(device, dtype)
    log(f"{1e-12 * flops:,.2f} TFLOP/s")
    points = []
    for name in grid["models"]:
        config = model_config(name, {"context": max(grid["lengths"]) + GENERATED_TOKENS})
        log(f"{name}: weights")
        model = headway.create(config, device=device, dtype=dtype).eval()
        for batch_size in grid["batches"]:
            for length in grid["lengths"]:
                report = cost_report(config, name, batch_size=batch_size, seq_len=length, dtype=dtype)
                point = measure_point(report, model, device, flops)
                log(f"{name}, {batch_size} × {length:,}: {describe(point)}")
                points.append(point)
        del model
        free(device)
    return points


def measure_point(report: CostReport, model: Any, device: torch.device, flops: float) -> GenerationPoint:
    """One batch size and length; without times if weights, cache and activations do not fit."""
    state = report.state_after(report.seq_len + GENERATED_TOKENS)
    assert state is not None
    assert report.weight_bytes is not None
    needed = report.weight_bytes + state.nbytes
    sizes = f"weights {format_bytes(report.weight_bytes)}, KV cache {format_bytes(state.nbytes)}"
    point = GenerationPoint(report.name, report.batch_size, report.seq_len, needed)
    n_free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_bytes()
    if state.nbytes > n_free:
        beside = f"{format_bytes(n_free)} are free beside the weights"
        return point.failed(f"needs {format_bytes(needed)} ({sizes}), and {beside}")
    try:
        meter = RateMeter(report, device, flops_per_second=flops)
        passes = time_generation(report, model, meter)
        point = point.measured([timed.row(report, meter.rates) for timed in passes], meter.rates)
    except torch.cuda.OutOfMemoryError:
        point = point.failed(f"out of memory: needs {format_bytes(needed)} ({sizes}), and space for activations")
    except RuntimeError as error:  # the other settings are still worth measuring
        point = point.failed(f"{type(error).__name__}: {str(error).splitlines()[0]}")
    free(device)
    return point


def free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def describe(point: GenerationPoint) -> str:
    if point.error:
        return point.error
    return ", ".join(f"{row.name} {format_seconds(row.measured)} ({row.ratio:.2f} × bound)" for row in point.rows)


def render_times(points: list[GenerationPoint]) -> str:
    measured = [point for point in points if not point.error]
    columns = [
        Column("model", [point.name for point in measured], is_text=True),
        Column("batch", [f"{point.batch_size:,}" for point in measured]),
        Column("length", [f"{point.seq_len:,}" for point in measured]),
    ]
    for kind in ("prefill", "decode step"):
        rows = [point.row(kind) for point in measured]
        columns += [
            Column(f"{kind}: bound", ["–" if row is None else format_seconds(row.predicted) for row in rows]),
            Column("measured", ["–" if row is None else format_seconds(row.measured) for row in rows]),
            Column("ratio", ["–" if row is None else f"{row.ratio:.2f}" for row in rows]),
        ]
    failures = [
        f"{point.name}, {point.batch_size} × {point.seq_len:,}: {point.error}" for point in points if point.error
    ]
    return "\n".join([render_table(columns), *failures])


def summary(points: list[GenerationPoint]) -> str:
    rows = [(row.ratio, row.name, point) for point in points for row in point.rows]
    if not rows:
        return "nothing was measured"
    ratio, kind, point = min(rows, key=lambda row: row[0])
    is_above = "yes" if ratio >= 1 else "no"
    smallest = f"{ratio:.2f} ({kind}, {point.name}, {point.batch_size} × {point.seq_len:,})"
    return f"every measured time is above its bound: {is_above}, smallest ratio {smallest}"


# ── memory ────────────────────────────────────────────────────────────────────────────────────────────────────────


def measure_case(case: MemoryCase, device: torch.device) -> MeasuredMemory | None:
    """On a CPU in a new process: what this one has freed would hide the increase."""
    log(f"memory: {case.label}, {case.batch_size} × {case.seq_len:,}")
    if device.type == "cuda":
        try:
            row = compare_memory(case, device)
        except RuntimeError as error:  # out of memory, for one; the other cases are still worth measuring
            log(f"{type(error).__name__}: {str(error).splitlines()[0]}")
            row = None
        free(device)
        return row
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        return executor.submit(compare_memory, case, device).result()


def compare_memory(case: MemoryCase, device: torch.device) -> MeasuredMemory | None:
    config = model_config(case.model, case.settings)
    assert isinstance(config, GPTConfig)
    kind = "cuda" if device.type == "cuda" else "cpu"
    sizes = {"batch_size": case.batch_size, "seq_len": case.seq_len}
    if case.train is None:
        state = cost_report(config, dtype=DTYPES[kind], **sizes).state
        assert state is not None
        predicted: float = state.nbytes
        measured = measure_cache_memory(config, dtype=DTYPES[kind], device=device, **sizes)
    else:
        train, n_params = TrainConfig(**case.train), count_parameters(config)
        assert n_params is not None
        bytes_per_element = 2 if kind == "cuda" else 4
        predicted = training_memory(
            config, n_params, train, bytes_per_element=bytes_per_element, device_type=kind, **sizes
        ).total
        measured = measure_training_memory(config, train, device=device, is_bfloat16=kind == "cuda", **sizes)
    return None if measured is None else MeasuredMemory(case.label, predicted, measured)


def render_memory(cases: list[MemoryCase], rows: list[MeasuredMemory | None]) -> str:
    labels = [f"{case.label}, {case.batch_size} × {case.seq_len:,}" for case in cases]
    columns = [
        Column("memory", labels, is_text=True),
        Column("predicted", ["–" if row is None else f"{1e-6 * row.predicted:,.0f} MB" for row in rows]),
        Column("measured", ["–" if row is None else f"{1e-6 * row.measured:,.0f} MB" for row in rows]),
        Column("measured/predicted", ["–" if row is None else f"{row.ratio:.2f}" for row in rows]),
    ]
    return render_table(columns)


START = time.perf_counter()


def log(line: str) -> None:
    print(f"{time.perf_counter() - START:6.1f} s  {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

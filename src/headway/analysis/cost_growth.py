"""Two benchmarks over increasing sequence lengths.

generation    with a KV cache, a new token takes one decode step; without, a pass over all tokens before it
one pass      a Transformer processes all tokens in parallel, an LSTM of equal size one after the other
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from headway.analysis.cost_measurement import RateMeter, check_context
from headway.config import GPTConfig, LSTMConfig
from headway.costs.operations import Phase
from headway.costs.parameters import count_parameters
from headway.costs.rendering import format_seconds
from headway.costs.report import CostReport, cost_report
from headway.costs.roofline import Rates, lower_bound_seconds
from headway.device_rates import synchronize
from headway.devices import DTYPES
from headway.errors import InputError
from headway.models.base import Model
from headway.models.registry import create
from headway.nn.kernels.cpu_linear import CPUKernels
from headway.tables import Column, render_table

FIRST_LENGTH = 16
ROUNDS = 3
MAX_SECONDS = 20.0  # of one measurement; longer lengths are left out


@dataclass(frozen=True)
class GrowthLine:
    """Seconds against sequence length, measured and as a lower bound."""

    name: str
    lengths: list[int]
    seconds: list[float]
    predicted: list[float]


@dataclass(frozen=True)
class Growth:
    name: str
    lstm: LSTMConfig
    rates: Rates
    generation: list[GrowthLine]
    one_pass: list[GrowthLine]

    def render(self) -> str:
        """A table per question: seconds by length, and the least seconds of the longest."""
        tables = []
        for question, lines in (("generating n tokens", self.generation), ("one pass over n tokens", self.one_pass)):
            lengths = max((line.lengths for line in lines), key=len)
            columns = [Column(question, [f"{n:,}" for n in lengths])]
            for line in lines:
                cells = [format_seconds(seconds) for seconds in line.seconds]
                columns.append(Column(line.name, cells + ["skipped"] * (len(lengths) - len(cells))))
                bounds = [format_seconds(seconds) for seconds in line.predicted]
                columns.append(Column("lower bound", bounds + [""] * (len(lengths) - len(bounds))))
            tables.append(render_table(columns))
        n_params = count_parameters(self.lstm)
        sizes = f"LSTM: {self.lstm.n_layers} layers of width {self.lstm.d_model}, {n_params:,} parameters"
        return "\n\n".join([*tables, sizes])

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "lstm_parameters": count_parameters(self.lstm),
            "flops_per_second": self.rates.flops_per_second,
            "bandwidth": self.rates.bandwidth,
            "generation": [line.__dict__ for line in self.generation],
            "one_pass": [line.__dict__ for line in self.one_pass],
        }


def measure_growth(
    report: CostReport, *, device: torch.device, on_progress: Callable[[str], None] = lambda line: None
) -> Growth:
    """Time a GPT of the report's config, with random weights, at lengths that double up to `report.seq_len`."""
    if not isinstance(report.config, GPTConfig):
        raise InputError(
            f"growth compares a GPT with an LSTM of as many parameters, and {report.name} is of the family "
            f"{report.config.family!r}: name a GPT, such as gpt-mini"
        )
    lengths = [FIRST_LENGTH * 2**i for i in range(32) if FIRST_LENGTH * 2**i < report.seq_len] + [report.seq_len]
    config = report.config
    check_context(report)
    lstm = equal_lstm(config)
    meter = RateMeter(report, device)
    lstm_report = replace(cost_report(lstm, "lstm", dtype=report.dtype), batch_size=report.batch_size)
    dtype = DTYPES[report.dtype]
    models = {
        "gpt": (create(config, device=device, dtype=dtype).eval(), report),
        "LSTM": (create(lstm, device=device, dtype=dtype).eval(), lstm_report),
    }

    def time_lengths(name: str, model_name: str, run: Callable[[Model, int], object]) -> list[float]:
        """The first lengths only where longer ones take too long."""
        model, _ = models[model_name]
        seconds: list[float] = []
        for length in lengths:
            on_progress(f"{name}: {length:,} tokens")
            with torch.inference_mode(), CPUKernels(model):
                seconds.append(_seconds(lambda length=length: run(model, length), device))  # type: ignore[misc]
            if 4 * seconds[-1] > MAX_SECONDS:
                break
        meter.measure_again()
        return seconds

    def ids(length: int) -> torch.Tensor:
        return torch.randint(config.vocab_size, (report.batch_size, length), device=device)

    runs: list[tuple[str, str, Callable[[Any, int], object], str]] = [
        ("with KV cache", "gpt", lambda model, n: _generate_cached(model, ids(n)), "cached"),
        ("without KV cache", "gpt", lambda model, n: _generate_uncached(model, ids(n)), "uncached"),
        ("Transformer, in parallel", "gpt", lambda model, n: model(ids(n)), "forward"),
        ("LSTM, step by step", "LSTM", lambda model, n: model(ids(n)), "forward"),
    ]
    times = [time_lengths(name, model_name, run) for name, model_name, run, _ in runs]
    lines = []
    for (name, model_name, _, kind), seconds in zip(runs, times, strict=True):
        measured, counts = lengths[: len(seconds)], models[model_name][1]
        bounds = [_lower_bound(counts, kind, length, meter.rates) for length in measured]
        lines.append(GrowthLine(name, measured, seconds, bounds))
    return Growth(report.name, lstm, meter.rates, generation=lines[:2], one_pass=lines[2:])


def equal_lstm(config: GPTConfig) -> LSTMConfig:
    """An LSTM with the vocabulary, and about as many parameters, as a GPT."""
    wanted = count_parameters(config) or 0

    def of_width(width: int) -> LSTMConfig:
        return LSTMConfig(vocab_size=config.vocab_size, d_model=width, n_layers=2, tie_embeddings=True, dropout=0.0)

    low, high = 1, 2**20
    while low < high:
        width = (low + high + 1) // 2
        low, high = (width, high) if (count_parameters(of_width(width)) or 0) <= wanted else (low, width - 1)
    return of_width(low)


def _generate_cached(model: Any, ids: torch.Tensor) -> None:
    """Steps of one token each; which tokens they are does not matter for the time."""
    state = model.start(batch_size=ids.shape[0], capacity=ids.shape[1])
    for t in range(ids.shape[1]):
        _, state = model.step(ids[:, t : t + 1], state)


def _generate_uncached(model: Any, ids: torch.Tensor) -> None:
    for t in range(ids.shape[1]):
        model.unembed(model.hidden_states(ids[:, : t + 1])[:, -1:])


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    times = []
    for _ in range(1 + ROUNDS):
        synchronize(device)
        start = time.perf_counter()
        run()
        synchronize(device)
        times.append(time.perf_counter() - start)
        if times[-1] > MAX_SECONDS / 4:
            break
    return statistics.median(times[1:] or times)  # the first is a warm-up


def _lower_bound(report: CostReport, kind: str, length: int, rates: Rates) -> float:
    def bound(phase: Phase, n_tokens: int) -> float:
        counted = replace(report, seq_len=n_tokens).count(phase, n_tokens)
        return lower_bound_seconds(counted, report.bytes_per_element, rates)

    if kind == "forward":
        return bound("forward", length)
    return sum(_every(lambda n: bound("decode" if kind == "cached" else "prefill", n), length))


def _every(bound: Callable[[int], float], length: int, n_points: int = 64) -> Sequence[float]:
    """A bound at all lengths up to `length`, computed at `n_points` of them: it grows smoothly."""
    step = max(1, length // n_points)
    return [step * bound(n) for n in range(step, length + 1, step)]

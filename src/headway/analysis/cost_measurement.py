"""Compare measured times with roofline lower bounds (costs/roofline.py).

Two rates are measured: FLOP/s of large matrix products, and the bandwidth at which a tensor as large as the weights and
the KV cache is read. The bound of a model that fits in the processor's cache uses the bandwidth of that cache. The
bandwidth is measured before and after the passes, and bounds use the higher one: on a virtual machine it may rise by
half from one second to the next.

A pass is timed for a second, at least `MIN_ROUNDS` times. Passes of several seconds are timed less often, down to once.

Rows inside a layer are timed by hooks in a second run, so their sum exceeds the time of the pass a little.
"""

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.config import ModelConfig, NGramConfig
from headway.costs.operations import Pass, has_source
from headway.costs.rendering import format_bytes, format_seconds
from headway.costs.report import CostReport
from headway.costs.roofline import Rates, lower_bound_seconds
from headway.device_rates import fastest, measure_bandwidth, measure_flops, synchronize
from headway.devices import DTYPES
from headway.errors import InputError
from headway.generation.decode_loop import DecodeLoop
from headway.generation.limits import position_limit
from headway.memory import check_fits
from headway.models.base import Model
from headway.models.bert import BERT, MaskedLM
from headway.models.registry import create
from headway.nn.attention import CrossAttention, SelfAttention
from headway.nn.cross_entropy import fused_cross_entropy
from headway.nn.feedforward import FeedForward, GatedFeedForward
from headway.nn.kernels.cpu_linear import CPUKernels, can_pack, use_cpu_training_kernels
from headway.sampling import Pipeline
from headway.tables import Column, render_table

MIN_ROUNDS, MAX_ROUNDS, ROUND_SECONDS = 3, 50, 1.0  # of a pass: until it has run for a second
SLOW_SECONDS = 4.0  # of all rounds; a pass that takes longer is timed once, without a warm-up
DECODE_WARMUP_STEPS, DECODE_STEPS = 2, 20  # on a GPU, the first captures a CUDA graph
GENERATED_TOKENS = 1 + DECODE_WARMUP_STEPS + DECODE_STEPS  # the prefill gives one
MAX_BANDWIDTH_BYTES = 2**30  # a larger tensor is read no faster
# Shapes of feed-forward layers: tokens, width, hidden width.
WIDE_PRODUCTS = {"cpu": [(2048, 768, 3072)], "cuda": [(8192, 768, 3072), (8192, 3072, 768), (16384, 4096, 11008)]}


@dataclass(frozen=True)
class MeasuredRow:
    """A pass, or an operation of all layers, predicted and measured."""

    name: str
    predicted: float  # seconds, at least
    measured: float  # seconds: the median
    flops: int

    @property
    def ratio(self) -> float:
        """How many times as long as the bound it takes."""
        return self.measured / self.predicted if self.predicted else float("inf")


@dataclass(frozen=True)
class TimedPass:
    name: str
    counted: Pass
    seconds: float  # the median

    def row(self, report: CostReport, rates: Rates) -> MeasuredRow:
        predicted = lower_bound_seconds(self.counted, report.bytes_per_element, rates)
        return MeasuredRow(self.name, predicted, self.seconds, self.counted.total_flops)


@dataclass(frozen=True)
class GenerationPoint:
    """A model at one batch size and length: prefill and decode step, or why there are none."""

    name: str
    batch_size: int
    seq_len: int
    nbytes: int  # of weights and KV cache
    rows: Sequence[MeasuredRow] = ()
    rates: Rates | None = None
    error: str = ""

    def measured(self, rows: Sequence[MeasuredRow], rates: Rates) -> "GenerationPoint":
        return replace(self, rows=rows, rates=rates)

    def failed(self, error: str) -> "GenerationPoint":
        return replace(self, error=error)

    def row(self, name: str) -> MeasuredRow | None:
        return next((row for row in self.rows if row.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.name,
            "batch_size": self.batch_size,
            "seq_len": self.seq_len,
            "bytes": self.nbytes,
            "rates": None if self.rates is None else self.rates.__dict__,
            "rows": [row.__dict__ | {"ratio": row.ratio} for row in self.rows],
            "error": self.error or None,
        }


class MemoryComparison(Protocol):
    """Bytes, predicted and measured (training/memory_measurement.py)."""

    @property
    def name(self) -> str: ...
    @property
    def predicted(self) -> float: ...
    @property
    def measured(self) -> int: ...
    @property
    def ratio(self) -> float: ...


@dataclass(frozen=True)
class CostMeasurement:
    report: CostReport
    rates: Rates
    rows: list[MeasuredRow]
    memory: Sequence[MemoryComparison] = ()

    def render(self) -> str:
        """A table of the rows, under the two rates."""
        columns = [
            Column(self.report.name, [row.name for row in self.rows], is_text=True),
            Column("lower bound", [format_seconds(row.predicted) for row in self.rows]),
            Column("measured", [format_seconds(row.measured) for row in self.rows]),
            Column("measured/bound", [f"{row.ratio:.2f}" for row in self.rows]),
            Column("GFLOP/s", [f"{1e-9 * row.flops / row.measured:,.1f}" for row in self.rows]),
        ]
        speed = f"{1e-9 * self.rates.flops_per_second:,.0f} GFLOP/s of matrix products"
        reads = f"{1e-9 * self.rates.bandwidth:,.1f} GB/s read from as much memory as a pass needs"
        tables = [f"This machine ({self.rates.name}, {self.report.dtype}): {speed}, {reads}.", render_table(columns)]
        if self.memory:
            columns = [
                Column("memory", [row.name for row in self.memory], is_text=True),
                Column("predicted", [format_bytes(row.predicted) for row in self.memory]),
                Column("measured", [format_bytes(row.measured) for row in self.memory]),
                Column("measured/predicted", [f"{row.ratio:.2f}" for row in self.memory]),
            ]
            tables.append(render_table(columns))
        return "\n\n".join(tables)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.report.name,
            "flops_per_second": self.rates.flops_per_second,
            "bandwidth": self.rates.bandwidth,
            "rows": [
                {
                    "name": row.name.strip(),
                    "predicted_seconds": row.predicted,
                    "measured_seconds": row.measured,
                    "ratio": row.ratio,
                    "flops_per_second": row.flops / row.measured,
                }
                for row in self.rows
            ],
            "memory": [
                {"name": row.name, "predicted_bytes": row.predicted, "measured_bytes": row.measured}
                for row in self.memory
            ],
        }


def measure_costs(
    report: CostReport, *, device: torch.device, on_progress: Callable[[str], None] = lambda line: None
) -> CostMeasurement:
    """Run a model of the report's config, with random weights, and time its passes beside their lower bounds."""
    config, dtype = report.config, DTYPES[report.dtype]
    check_measurable(report, device)
    on_progress("measuring matrix products and bandwidth")
    meter = RateMeter(report, device)
    model = _build(config, device, dtype)
    ids = torch.randint(config.vocab_size, (report.batch_size, report.seq_len), device=device)
    source = {}
    if has_source(config):
        shape = (report.batch_size, report.source_len or report.seq_len)
        source = {"source": torch.randint(config.vocab_size, shape, device=device)}
    with torch.inference_mode(), CPUKernels(model):
        on_progress(f"forward pass, at least {format_seconds(meter.lower_bound(report.forward))}")
        forward = partial(model, ids, **source)
        passes = [TimedPass("forward pass", report.forward, median_seconds(forward, device))]
        passes += _inner_passes(report.forward, forward, model, device)
    passes += time_generation(report, model, meter, ids=ids, source=source, on_progress=on_progress)
    report = replace(report, rates_=meter.rates)
    least = report.training_lower_bound_seconds
    assert least is not None
    on_progress(f"forward and backward pass, at least {format_seconds(least)}")
    seconds = median_seconds(_training_pass(model, ids, source), device)
    rows = [timed.row(report, meter.rates) for timed in passes]
    rows.append(MeasuredRow("forward and backward", least, seconds, report.training_flops))
    return CostMeasurement(report, meter.rates, rows)


class RateMeter:
    """The best rates measured so far: FLOP/s in the report's dtype, and the bandwidth of reading as many bytes as a
    decode step reads."""

    def __init__(self, report: CostReport, device: torch.device, *, flops_per_second: float | None = None) -> None:
        if flops_per_second is None:
            flops_per_second = measure_product_flops(device, report.dtype)
        reading = report.decode or report.forward
        n_bytes = report.bytes_per_element * (reading.weight_elements + reading.cache_elements)
        self.n_bytes, self.device = min(n_bytes, MAX_BANDWIDTH_BYTES), device
        self.bytes_per_element = report.bytes_per_element
        self.rates = Rates(flops_per_second, measure_bandwidth(device, self.n_bytes), name=str(device))

    def measure_again(self) -> None:
        if self.device.type == "cuda":  # not shared with other machines
            return
        bandwidth = max(self.rates.bandwidth, measure_bandwidth(self.device, self.n_bytes))
        self.rates = replace(self.rates, bandwidth=bandwidth)

    def lower_bound(self, counted: Pass) -> float:
        return lower_bound_seconds(counted, self.bytes_per_element, self.rates)


def measure_product_flops(device: torch.device, dtype: str) -> float:
    """FLOP/s of the best of several matrix products."""
    return max(measure_flops(device, DTYPES[dtype]), *_wide_product_flops(device, DTYPES[dtype]))


def _wide_product_flops(device: torch.device, dtype: torch.dtype) -> Iterator[float]:
    """Of the kernels that inference uses: F.linear, and on some CPUs oneDNN with packed weights."""
    for n, m, k in WIDE_PRODUCTS["cuda" if device.type == "cuda" else "cpu"]:
        x, w = (torch.full(shape, 0.5, device=device, dtype=dtype) for shape in ((n, m), (k, m)))
        with torch.inference_mode():
            yield 2 * n * m * k / fastest(partial(F.linear, x, w), device, MIN_ROUNDS)
            if device.type == "cpu" and dtype == torch.float32 and can_pack():
                packed = torch.ops.mkldnn._reorder_linear_weight(w, n)
                run = partial(torch.ops.mkldnn._linear_pointwise, x, packed, None, "none", [], "")
                yield 2 * n * m * k / fastest(run, device, MIN_ROUNDS)


def check_measurable(report: CostReport, device: torch.device) -> None:
    """Refuse what cannot be measured, before anything is built."""
    if isinstance(report.config, NGramConfig) or not report.forward.total_flops:
        raise InputError(f"{report.name} has no matrix products to measure: it looks rows up and adds them")
    check_context(report)
    _check_memory(report, device)


def check_context(report: CostReport) -> None:
    """Refuse what is longer than the model's table of positions, if it has one."""
    limit = position_limit(create(report.config, device="meta"))
    lengths = {
        "--seq-len": report.seq_len,
        "--source-len": (report.source_len or 0) if has_source(report.config) else 0,
    }
    option, longest = max(lengths.items(), key=lambda item: item[1])
    if limit is not None and longest > limit:
        raise InputError(
            f"{report.name}: {longest:,} tokens exceed the context of {limit:,}, where the table of positions ends: "
            f"lower {option}, or add --set context={longest}"
        )


def _check_memory(report: CostReport, device: torch.device) -> None:
    state = 0 if report.state is None else report.state.nbytes
    logits = report.bytes_per_element * report.batch_size * report.seq_len * report.config.vocab_size
    memory = report.training_memory(device_type="cpu" if device.type == "cpu" else "cuda")
    activations = 0 if memory is None else memory.activations
    sizes = {
        "its weights and their gradients": 2 * (report.weight_bytes or 0),
        "its KV cache": state,
        "its logits": 2 * logits,
        "its activations": activations,
    }
    available = None
    if device.type == "cuda":
        available, _ = torch.cuda.mem_get_info(device)
    subject = f"{report.name} with batch {report.batch_size:,} and {report.seq_len:,} tokens"
    largest = max(sizes, key=lambda name: sizes[name])
    advice = f"{sizes[largest] / 1e9:,.1f} GB are {largest}; lower --batch-size or --seq-len"
    check_fits(sum(sizes.values()), subject, advice=advice, available=available)


def _build(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Model:
    model = create(config, device=device, dtype=dtype)
    return (MaskedLM(model) if isinstance(model, BERT) and not model.config.labels else model).eval()


# ── passes ────────────────────────────────────────────────────────────────────────────────────────────────────────


def time_generation(
    report: CostReport,
    model: Any,
    meter: RateMeter,
    *,
    ids: Tensor | None = None,
    source: Mapping[str, Tensor] | None = None,
    on_progress: Callable[[str], None] = lambda line: None,
) -> list[TimedPass]:
    """Prefill and decode step, through the loop that `headway.generate` uses: on a GPU, steps are a CUDA graph. The
    bandwidth is measured right before and after the decode steps.

    The model may have a larger context than the report's config, so that one model serves many lengths. A prompt that
    leaves no space for `GENERATED_TOKENS` is shortened, and so are the bounds. The prompts are `ids` (B, T), by default
    random ones. `source` is what `model.start` takes: then the prefill includes the encoder. Empty for models that do
    not generate, and without space for a prompt.
    """
    if report.decode is None:
        return []
    if ids is None:
        ids = torch.randint(report.config.vocab_size, (report.batch_size, report.seq_len))
    context = model.config.context
    n_new = GENERATED_TOKENS
    if context is not None:
        n_new = min(n_new, max(context - report.seq_len, context // 2))
    n_steps = n_new - 1 - DECODE_WARMUP_STEPS
    n_prompt = report.seq_len if context is None else min(report.seq_len, context - n_new)
    if n_prompt < 1 or n_steps < 1:
        return []
    sized = replace(report, seq_len=n_prompt)
    assert sized.decode is not None
    device = meter.device
    prompts = ids[:, :n_prompt].tolist()
    loops: list[DecodeLoop] = []

    def prefill() -> None:
        if source:
            restart()  # encodes it
        loops[0].step()

    @torch.inference_mode()
    def restart() -> None:
        loops.clear()  # first: two KV caches may not fit
        state = model.start(**source) if source else None
        pipe = Pipeline(preset="default", temperature=0.0)
        loops.append(DecodeLoop(model, prompts, pipe, n_new, seeds=[0] * len(prompts), state=state))

    try:
        on_progress(f"prefill, at least {format_seconds(meter.lower_bound(sized.prefill))}")
        prefill_seconds = median_seconds(prefill, device, before=(lambda: None) if source else restart)
        on_progress(f"decode steps, at least {format_seconds(meter.lower_bound(sized.decode))} each")
        meter.measure_again()
        for _ in range(DECODE_WARMUP_STEPS):
            loops[0].step()
        times: list[float] = []
        while len(times) < n_steps and (len(times) < MIN_ROUNDS or sum(times) < SLOW_SECONDS):
            start = time.perf_counter()
            loops[0].step()  # it returns tokens, so it waits for the device
            times.append(time.perf_counter() - start)
        meter.measure_again()
    finally:
        loops.clear()
        gc.collect()  # a CUDA graph and its loop refer to each other
    return [
        TimedPass("prefill", sized.prefill, prefill_seconds),
        TimedPass("decode step", sized.decode, statistics.median(times)),
    ]


def _training_pass(model: Any, ids: Tensor, source: dict[str, Tensor]) -> Callable[[], None]:
    use_cpu_training_kernels(model)

    def run() -> None:
        model.zero_grad()
        if hasattr(model, "output_layer"):
            hidden = model.hidden_states(ids, **source)
            weight, bias = model.output_layer
            fused_cross_entropy(hidden.flatten(0, 1), weight, ids.flatten(), bias).backward()
        else:
            model(ids).float().square().mean().backward()

    return run


def median_seconds(
    run: Callable[[], object], device: torch.device, *, before: Callable[[], object] = lambda: None
) -> float:
    """Seconds of a call, after a warm-up: the median of several calls, or of one if it is slow. `before` is called
    before each and not timed."""
    first = _seconds(run, device, before)
    times: list[float] = []
    while first + sum(times) < SLOW_SECONDS and len(times) < MAX_ROUNDS:
        if len(times) >= MIN_ROUNDS and sum(times) >= ROUND_SECONDS:
            break
        times.append(_seconds(run, device, before))
    return statistics.median(times or [first])


def _seconds(run: Callable[[], object], device: torch.device, before: Callable[[], object]) -> float:
    before()
    synchronize(device)
    start = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - start


# ── rows inside the layers ────────────────────────────────────────────────────────────────────────────────────────


def _inner_passes(counted: Pass, run: Callable[[], object], model: nn.Module, device: torch.device) -> list[TimedPass]:
    """The operations of all layers together, as far as a module computes them alone."""
    with _timed_modules(model, device) as seconds:
        run()
    if not seconds:
        return []
    passes = []
    for name, parts in MODULE_ROWS.items():
        operations = [o for o in counted.operations if o.name in parts]
        if operations and name in seconds:
            passes.append(TimedPass(f"  {name}", replace(counted, operations=operations), seconds[name]))
    return passes


# Row → the operations that it is made of. Scores, softmax and weighted sum are one kernel.
MODULE_ROWS = {
    "Q/K/V projections": ("Q/K/V projections",),
    "attention": ("scores", "softmax", "weighted sum"),
    "output projection": ("output projection",),
    "cross-attention": (
        "cross Q projection", "cross scores", "cross softmax", "cross weighted sum", "cross output projection",
    ),
    "feed-forward": ("feed-forward",),
}  # fmt: skip


@contextmanager
def _timed_modules(model: nn.Module, device: torch.device) -> Iterator[dict[str, float]]:
    """Seconds of each row, summed over the layers, when the block has ended."""
    spent: dict[str, float] = {}
    starts: dict[int, float] = {}
    hooks = []

    def watch(module: nn.Module, name: str, sign: int = 1) -> None:
        def before(module: nn.Module, args: Any) -> None:
            synchronize(device)
            starts[id(module)] = time.perf_counter()

        def after(module: nn.Module, args: Any, output: Any) -> None:
            synchronize(device)
            elapsed = time.perf_counter() - starts[id(module)]
            spent[name] = spent.get(name, 0.0) + elapsed
            if sign < 0:  # its time is part of the attention around it
                spent["attention"] = spent.get("attention", 0.0) - elapsed

        hooks.append(module.register_forward_pre_hook(before))
        hooks.append(module.register_forward_hook(after))

    for module in model.modules():
        match module:
            case SelfAttention():
                watch(module, "attention")
                watch(module.qkv, "Q/K/V projections", sign=-1)
                watch(module.out, "output projection", sign=-1)
            case CrossAttention():
                watch(module, "cross-attention")
            case FeedForward() | GatedFeedForward():
                watch(module, "feed-forward")
    try:
        yield spent
    finally:
        for hook in hooks:
            hook.remove()

"""Cost reports as text: the tables of `headway cost`, and the formulas of `--explain`."""

from collections.abc import Mapping, Sequence

from headway.costs.budget import DEFAULT_MFU, TOKENS_PER_PARAMETER
from headway.costs.formula import Formula
from headway.costs.operations import Operation, Pass, has_source
from headway.costs.parameters import Parameters
from headway.costs.report import CostReport
from headway.costs.roofline import intensity, is_memory_bound
from headway.costs.state import DecodeState
from headway.tables import Column, render_table

SYMBOLS = {
    "b": "batch size",
    "n": "tokens per sequence",
    "s": "source tokens",
    "d": "d_model",
    "h": "heads",
    "g": "key/value heads",
    "k": "d_head",
    "f": "d_ff",
    "V": "vocabulary",
    "L": "layers",
    "c": "context length",
    "r": "recurrent or hidden width",
    "a": "alignment width",
    "o": "maxout width",
    "w": "tokens of the window",
    "C": "labels",
    "e": "segments or buckets",
}
PRODUCT_RULE = "A product of (n × m) and (m × k) takes 2 n m k FLOPs, and reads and writes n m + m k + n k elements."
HIDDEN_RULE = "The feed-forward network also writes its hidden layer and reads it again."
SOFTMAX_RULE = "(…): not a matrix product, and not in the totals."
BYTES_RULE = "Bytes: as if each operation were a separate kernel."
RECURRENT_RULE = "The steps of a recurrent layer run one after another, and each reads the weights again."
BOUND_RULE = (
    "Lower bounds: each matrix product at peak FLOP/s, or reading its weights and KV cache at full bandwidth;\n"
    "activations stay on the chip, masked scores are skipped."
)


def render_report(report: CostReport) -> str:
    """All tables of one model."""
    parts = [_title(report), _parameters(report), _pass(report, report.forward, _forward_title(report))]
    if report.decode is not None and (report.window is not None or report.new_tokens is not None):
        parts.append(_pass(report, report.prefill, f"Prefill, {_batch(report)}"))
    if report.decode is not None:
        parts.append(_pass(report, report.decode, _decode_title(report)))
    has_softmax = any(o.flops and not o.is_product for o in report.forward.operations)
    rules = [*([SOFTMAX_RULE] if has_softmax else []), BYTES_RULE, *_rules(report), _legend(report)]
    parts += ["\n".join(rules), _summary(report), *(f"note: {note}" for note in report.notes())]
    return "\n\n".join(parts)


def _rules(report: CostReport) -> list[str]:
    """Rules that a table and an explanation both need."""
    is_recurrent = bool(report.sequential_steps.names)
    return [*([RECURRENT_RULE] if is_recurrent else []), *([BOUND_RULE] if report.rates is not None else [])]


def render_comparison(reports: Sequence[CostReport]) -> str:
    """Several models side by side: a line per quantity, a column per model."""
    by_model = [_short_quantities(report) for report in reports]
    names = [name for name in by_model[0] if any(quantities[name] for quantities in by_model)]
    columns = [Column(" ", names, is_text=True)]
    columns += [
        Column(report.name, [quantities[name] or "–" for name in names])
        for report, quantities in zip(reports, by_model, strict=True)
    ]
    notes = [f"note: {report.name}: {note}" for report in reports for note in report.notes()]
    sizes = f"batch {reports[0].batch_size:,}, {reports[0].dtype}"
    on = "" if reports[0].device is None else f", on {_devices(reports[0])}"
    return "\n".join([f"{sizes}{on}", "", render_table(columns), *([""] if notes else []), *notes])


def _short_quantities(report: CostReport) -> dict[str, str]:
    """What is compared between models: name → value, empty where it does not apply. The same names for every model."""
    memory = report.training_memory()
    bound = report.lower_bound_seconds(report.forward)
    return {
        "parameters": format_count(report.n_params),
        "tokens per sequence": f"{report.seq_len:,}",
        "source tokens": f"{report.source_len:,}" if has_source(report.config) else "",
        "weights": format_bytes(report.weight_bytes),
        "FLOPs, forward pass": format_flops(report.forward.total_flops),
        "FLOPs, training step": format_flops(report.training_flops),
        "FLOPs, decode step": "" if report.decode is None else format_flops(report.decode.total_flops),
        "FLOPs, generation": format_flops(report.generation_flops),
        "  without KV cache": format_flops(report.uncached_generation_flops),
        "KV cache or state": "" if report.state is None else format_bytes(report.state.nbytes),
        "sequential steps": str(report.sequential_steps or ""),
        "training memory": "" if memory is None else format_bytes(memory.total),
        "  of it activations": "" if memory is None else format_bytes(memory.activations),
        "forward pass ≥": "" if bound is None else format_seconds(bound),
        "decode tokens/s ≤": "" if report.max_tokens_per_second is None else f"{report.max_tokens_per_second:,.0f}",
        "max batch size": "" if report.max_sequences is None else f"{report.max_sequences:,}",
        "compute-optimal training": "" if report.budget_seconds is None else format_seconds(report.budget_seconds),
    }


def render_explanation(report: CostReport) -> str:
    """Every formula with its numbers, as a student would write it."""
    sections = [_title(report)]
    sections.append(_parameters(report) if report.parameters is None else _explain_parameters(report.parameters))
    sections.append(_explain_pass(report, report.forward, "Forward pass"))
    if report.decode is not None:
        sections.append(_explain_pass(report, report.prefill, "Prefill"))
        sections.append(_explain_pass(report, report.decode, "One decode step"))
    if report.state is not None:
        sections.append(_explain_state(report, report.state))
    sections += filter(None, [_explain_generation(report), _explain_training(report)])
    has_hidden = any(o.name == "feed-forward" for o in report.forward.operations)
    rules = [PRODUCT_RULE, *([HIDDEN_RULE] if has_hidden else []), *_rules(report)]
    sections += ["\n".join([_legend(report), *rules]), _summary(report)]
    sections += [f"note: {note}" for note in report.notes()]
    return "\n\n".join(sections)


def _explain_parameters(table: Parameters) -> str:
    lines = ["Parameters"]
    for group, components in table.groups().items():
        lines.append(f"  {group}")
        for part in components:
            times = f", × {part.repeats}" if part.repeats > 1 else ""
            lines.append(f"    {part.name}: {_worked(part.parameters, table.sizes)}{times}")
        formula, estimate = table.estimate(components)
        exact = sum(map(table.count, components))
        if estimate != exact:
            lines.append(f"    estimate (matrices only): {formula} = {estimate:,}; exact: {exact:,}")
    return "\n".join([*lines, f"  total {table.total:,}"])


def _explain_pass(report: CostReport, counted: Pass, title: str) -> str:
    has_backward = counted.phase == "forward"
    what = "FLOPs, those of the backward pass," if has_backward else "FLOPs,"
    lines = [f"{title}: {what} elements read and written, FLOPs per byte"]
    for stage, repeats, operations in counted.stages():
        lines.append(f"  {stage}{f', × {repeats}' if repeats > 1 else ''}")
        for o in operations:
            lines.append(f"    {o.name}")
            if o.flops:
                excluded = "" if o.is_product else "; not a matrix product, and not in the totals"
                lines.append(f"      FLOPs      {_worked(o.flops, counted.sizes)}{excluded}")
            if has_backward and o.is_product:
                lines.append(f"      backward   {_worked(o.backward, counted.sizes)}")
            lines.append(f"      elements   {_worked(o.elements, counted.sizes)}")
            if o.flops:
                lines.append(f"      intensity  {_worked_intensity(report, counted, o)}")
        products = [o.flops for o in operations if o.is_product]
        if len(products) > 1:
            lines.append(f"    sum, {stage}: {_worked(sum(products, Formula()), counted.sizes)}")
    backward = f", backward {counted.backward_flops:,}" if has_backward else ""
    lines.append(f"  total {counted.total_flops:,} FLOPs{backward}")
    if (seconds := report.lower_bound_seconds(counted)) is not None:
        lines.append(f"  lower bound {format_seconds(seconds)}")
    return "\n".join(lines)


def _worked_intensity(report: CostReport, counted: Pass, o: Operation) -> str:
    """ "1,610,612,736 / (2 bytes · 14,155,776) = 56.9 FLOPs per byte: memory-bound, below 206" """
    moved, ratio = o.elements.evaluate(counted.sizes), intensity(o, counted, report.bytes_per_element)
    worked = f"{counted.flops(o):,} / ({report.bytes_per_element} bytes · {moved:,}) = {ratio:,.4g} FLOPs per byte"
    if report.rates is None:
        return worked
    side = "memory-bound, below" if ratio < report.rates.ridge else "compute-bound, above"
    return f"{worked}: {side} {report.rates.ridge:,.4g}"


def _explain_generation(report: CostReport) -> str:
    if report.generation_flops is None or report.new_tokens is None:
        return ""
    steps = report.generation_flops - report.prefill.total_flops
    first, last = report.seq_len + 1, report.seq_len + report.new_tokens - 1
    lengths = f"steps at {first:,} to {last:,} tokens" if last > first else f"step at {first:,} tokens"
    after = f" + {steps:,} (decode {lengths})" if report.new_tokens > 1 else ""
    return (
        f"Generating {_tokens(report.new_tokens)}\n"
        f"  {report.prefill.total_flops:,} (prefill){after} = {report.generation_flops:,} FLOPs"
    )


def _explain_training(report: CostReport) -> str:
    """Bytes of the weights and of what goes with them, and the compute-optimal budget."""
    lines, memory, budget = [], report.training_memory(), report.budget
    if memory is not None and report.n_params is not None:
        per_parameter = {"weights": memory.weights, "Adam moments": memory.optimizer_state}
        lines += [
            f"  {name}: {n_bytes / report.n_params:g} P = {n_bytes / report.n_params:g} · {report.n_params:,} = "
            f"{n_bytes:,.0f} bytes"
            for name, n_bytes in per_parameter.items()
        ]
        others = {
            "gradients at the peak": memory.gradients,
            f"copies of the matrices in {report.dtype}": memory.weight_copies,
            "activations": memory.activations,
            "logits": memory.logits,
        }
        lines += [f"  {name}: {n_bytes:,.0f} bytes" for name, n_bytes in others.items() if n_bytes]
        lines.append(f"  total {memory.total:,.0f} bytes")
    if budget is not None:
        lines += [
            f"  compute-optimal tokens: {TOKENS_PER_PARAMETER} P = {TOKENS_PER_PARAMETER} · {budget.n_params:,} = "
            f"{budget.n_tokens:,}",
            f"  FLOPs: 6 P · tokens = 6 · {budget.n_params:,} · {budget.n_tokens:,} = {budget.flops:.3g}",
        ]
        if report.rates is not None and report.budget_seconds is not None:
            peak = f"{report.rates.flops_per_second:.4g} FLOP/s"
            lines.append(
                f"  time: {budget.flops:.3g} / ({report.n_devices:,} · {peak} · {DEFAULT_MFU:g} MFU) = "
                f"{format_seconds(report.budget_seconds)}"
            )
    return "\n".join(["Training, of P parameters", *lines]) if lines else ""


def _explain_state(report: CostReport, state: DecodeState) -> str:
    size = f"× {state.bytes_per_element} bytes = {state.nbytes:,} bytes"
    return f"{_state_name(report)}\n  {_worked(state.elements, state.sizes)} elements, {size}"


def _legend(report: CostReport) -> str:
    """What the symbols of an explanation mean, and their values."""
    passes = [report.forward, *([] if report.decode is None else [report.decode])]
    formulas = [(o.flops + o.elements, counted.sizes) for counted in passes for o in counted.operations]
    if report.parameters is not None:
        formulas += [(part.parameters, report.parameters.sizes) for part in report.parameters.components]
    if report.state is not None:
        formulas.append((report.state.elements, report.state.sizes))
    values = {name: sizes[name] for formula, sizes in reversed(formulas) for name in formula.names}
    return ", ".join(f"{name} = {values[name]:,} ({SYMBOLS[name]})" for name in SYMBOLS if name in values)


# ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _title(report: CostReport) -> str:
    n_params = "" if report.n_params is None else f", {report.n_params:,} parameters"
    source = f", source of {_tokens(report.source_len or 0)}" if has_source(report.config) else ""
    device = "" if report.device is None else f", on {_devices(report)}"
    family = f" ({report.config.family})" if report.name != report.config.family else ""
    sizes = f"batch of {_batch(report)}" + (" each" if report.n_devices > 1 else "")
    return f"{report.name}{family}{n_params}; {sizes}{source}, {report.dtype}{device}"


def _devices(report: CostReport) -> str:
    assert report.device is not None
    return report.device.name if report.n_devices == 1 else f"{report.n_devices:,} × {report.device.name}"


def _parameters(report: CostReport) -> str:
    table = report.parameters
    if table is None:
        return "Parameters: one probability and one backoff weight per distinct n-gram of the text"
    rows: list[tuple[str, str, str, str]] = []
    for group, components in table.groups().items():
        total = sum(map(table.count, components))
        rows.append((group, "", f"{total:,}", ""))
        rows += [
            (
                f"  {part.name}" + (f" (× {part.repeats})" if part.repeats > 1 else ""),
                f"{part.parameters.evaluate(table.sizes):,}",
                f"{table.count(part):,}",
                str(part.parameters),
            )
            for part in components
        ]
        formula, estimate = table.estimate(components)
        if estimate and estimate != total:
            rows.append(("  estimate: matrices only", "", f"{estimate:,}", formula))
            rows.append(("  the rest: biases, norms", "", f"{total - estimate:,}", ""))
    rows.append(("total", "", f"{table.total:,}", ""))
    names, each, totals, formulas = zip(*rows, strict=True)
    columns = [
        Column("Parameters", names, is_text=True),
        Column("each", each),
        Column("all", totals),
        Column("formula", formulas, is_text=True),
    ]
    return render_table(columns)


def _forward_title(report: CostReport) -> str:
    return f"Forward pass, {_batch(report)}"


def _batch(report: CostReport) -> str:
    return f"{report.batch_size:,} × {_tokens(report.seq_len)}"


def _tokens(number: int) -> str:
    return f"{number:,} token{'s' if number != 1 else ''}"


def _decode_title(report: CostReport) -> str:
    if not hasattr(report.config, "n_heads"):
        return f"Decode step after {_tokens(report.seq_len)}"
    n_keys = report.seq_len if report.window is None else min(report.seq_len, report.window)
    return f"Decode step, attending to {_tokens(n_keys)}"


def _pass(report: CostReport, counted: Pass, title: str) -> str:
    rows: list[tuple[str, str, str, str, str, str]] = []
    for stage, repeats, operations in counted.stages():
        rows.append((f"per {stage} (× {repeats})" if repeats > 1 else stage, "", "", "", "", ""))
        rows += [_row(report, counted, o) for o in operations]
        products = [o.flops for o in operations if o.is_product]
        if len(products) > 1:
            formula = sum(products, Formula())
            flops = formula.evaluate(counted.sizes)
            rows.append(("  sum, one" if repeats > 1 else "  sum", f"{flops:,}", "", "", "", str(formula)))
            if repeats > 1:
                rows.append((f"  sum, all {repeats}", f"{repeats * flops:,}", "", "", "", ""))
    rows.append(("total", f"{counted.total_flops:,}", "", "", "", ""))
    if (seconds := report.lower_bound_seconds(counted)) is not None:
        rows.append(("lower bound", format_seconds(seconds), "", "", "", ""))
    name, flops_cells, moved, intensities, bounds, formulas = zip(*rows, strict=True)
    columns = [
        Column(title, name, is_text=True),
        Column("FLOPs", flops_cells),
        Column("bytes", moved),
        Column("FLOPs/byte", intensities),
        *([Column("bound by", bounds, is_text=True)] if report.rates is not None else []),
        Column("FLOPs formula", formulas, is_text=True),
    ]
    return render_table(columns)


def _row(report: CostReport, counted: Pass, o: Operation) -> tuple[str, str, str, str, str, str]:
    moved = report.bytes_per_element * o.elements.evaluate(counted.sizes)
    ratio = intensity(o, counted, report.bytes_per_element)
    bound = ""
    if report.rates is not None:
        bound = "memory" if is_memory_bound(o, counted, report.bytes_per_element, report.rates) else "compute"
    flops = f"{counted.flops(o):,}" if o.is_product or not o.flops else f"({counted.flops(o):,})"
    return f"  {o.name}", flops, f"{moved:,}", f"{ratio:,.2f}" if ratio < 100 else f"{ratio:,.0f}", bound, str(o.flops)


def _state_name(report: CostReport) -> str:
    return "KV cache" if hasattr(report.config, "n_heads") else "decoding state"


def _summary(report: CostReport) -> str:
    rows = [*_inference_rows(report), *_training_rows(report)]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}}  {value}" for name, value in rows)


def _inference_rows(report: CostReport) -> list[tuple[str, str]]:
    rows = []
    if report.weight_bytes is not None:
        rows.append(("weights", format_bytes(report.weight_bytes)))
    if report.state is not None:
        elements = f"{report.state.elements} elements of {report.state.bytes_per_element} bytes"
        rows.append((_state_name(report), f"{report.state.nbytes:,} bytes: {elements}"))
    if report.generation_flops is not None:
        rows.append((f"generating {_tokens(report.new_tokens or 0)}", f"{report.generation_flops:,} FLOPs"))
    if report.uncached_generation_flops is not None:
        rows.append(("  without a KV cache", f"{report.uncached_generation_flops:,} FLOPs"))
    if report.forward.total_flops:
        rows += [("sequential steps", _sequential_steps(report)), ("longest path", report.longest_path)]
    if report.max_tokens_per_second is not None:
        total, each = report.max_tokens_per_second, report.max_tokens_per_second / report.batch_size
        rows.append(("decode throughput", f"at most {_rate(total)} tokens/s, {_rate(each)} per sequence"))
    if report.device is not None and report.max_sequences is not None:
        rows.append(("max batch size", f"{report.max_sequences:,} sequences of {_tokens(report.total_tokens)}"))
        total_state = report.state_after(report.total_tokens)
        state = 0 if total_state is None else total_state.nbytes
        needed = (report.weight_bytes or 0) + state
        if needed > report.device.memory:
            sizes = f"{format_bytes(report.weight_bytes)} of weights + {format_bytes(state)} of {_state_name(report)}"
            memory = format_bytes(report.device.memory)
            rows.append(("  this batch", f"does not fit: {sizes}, and {report.device.name} has {memory}"))
    return rows


def _sequential_steps(report: CostReport) -> str:
    if not report.has_layers:
        return "none: there are no layers"
    if has_source(report.config) and report.sequential_steps.names:
        return f"{report.sequential_steps}: s in each layer of the encoder, then n in each of the decoder"
    return f"{report.sequential_steps} per layer in a forward pass (Vaswani et al. 2017, Table 1)"


def _training_rows(report: CostReport) -> list[tuple[str, str]]:
    if not report.forward.total_flops:  # look-ups and sums only
        return []
    rows = [("training step", f"{report.training_flops:,} FLOPs, forward and backward")]
    if report.training_lower_bound_seconds is not None:
        rows.append(("  lower bound", f"{format_seconds(report.training_lower_bound_seconds)} on one device"))
    memory, small = report.training_memory(), report.training_memory(checkpoint_activations=True)
    if memory is not None and small is not None:
        state = memory.weights + memory.weight_copies + memory.gradients + memory.optimizer_state
        on = "one device" if report.n_devices == 1 else f"each of {report.n_devices:,} devices by DDP"
        rows.append(("training memory", f"{format_bytes(memory.total)} with AdamW on {on}"))
        copies = f", with {report.dtype} copies of the matrices" if memory.weight_copies else ""
        rows.append(("  weights, gradients, moments", f"{format_bytes(state)} at the peak{copies}"))
        with_checkpointing = f"{format_bytes(small.activations)} with activation checkpointing"
        rows.append(("  activations", f"{format_bytes(memory.activations)}; {with_checkpointing}"))
        rows.append(("  logits", format_bytes(memory.logits)))
    elif report.n_params is not None:
        fixed = format_bytes(16 * report.n_params)
        rows.append(("training memory", f"{fixed} of weights, gradients and moments with AdamW; activations are not"))
        rows.append(("", "estimated for this family"))
    if report.parallelism is not None:
        rows.append(("  advice", report.parallelism))
    if report.budget is not None:
        tokens = f"{format_count(report.budget.n_tokens)} tokens = {TOKENS_PER_PARAMETER} per parameter"
        flops = f"{report.budget.flops:.2e} FLOPs = 6 × parameters × tokens"
        rows.append(("compute-optimal training", f"{tokens}; {flops}"))
        if report.device is not None and report.budget_seconds is not None:
            seconds = format_seconds(report.budget_seconds)
            devices = f"{report.n_devices:,} × {report.device.name} in {report.dtype}"
            rows.append(("  estimated time", f"{seconds} on {devices} at {100 * DEFAULT_MFU:.0f} % MFU"))
    return rows


def _worked(formula: Formula, sizes: Mapping[str, int]) -> str:
    """ "2 b n² d = 2 · 1 · 1,024² · 768 = 1,610,612,736" """
    value, filled = formula.evaluate(sizes), formula.filled(sizes)
    return f"{formula} = {filled} = {value:,}" if filled != f"{value:,}" else f"{formula} = {value:,}"


def _rate(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def format_count(number: int | None) -> str:
    """ "124.4M"; empty for None."""
    return "" if number is None else _with_unit(number, "TBMk")


def format_flops(number: int | None) -> str:
    """ "136.2 G"; empty for None."""
    return "" if number is None else _with_unit(number, "PTGMk")


def _with_unit(number: int, units: str) -> str:
    """`units` are the letters for the powers of 1000, the largest first."""
    for unit, power in zip(units, range(len(units), 0, -1), strict=True):
        if number >= 1000**power:
            return f"{number / 1000**power:,.1f}{unit}"
    return str(number)


def format_bytes(n_bytes: float | None) -> str:
    """ "497.8 MB", decimal as on datasheets; empty for None."""
    if n_bytes is None:
        return ""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:,.1f} {unit}"
    return f"{n_bytes:,.0f} bytes"


def format_seconds(seconds: float) -> str:
    """ "26.2 ms", "3.4 days"."""
    for unit, size in (("years", 31_557_600.0), ("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:,.3g} {unit}" if seconds / size < 1000 else f"{seconds / size:,.0f} {unit}"
    return f"{seconds * 1e9:.3g} ns"

"""Cost reports as text: the tables of `headway cost`, and the formulas of `--explain`."""

from collections.abc import Mapping, Sequence

from headway.costs.budget import DEFAULT_MFU
from headway.costs.formula import Formula
from headway.costs.operations import Operation, Pass, has_source
from headway.costs.parameters import Parameters
from headway.costs.report import CostReport
from headway.costs.roofline import intensity, is_memory_bound
from headway.costs.state import DecodeState
from headway.tables import Column, render_table

SYMBOLS = {
    "b": "batch size",
    "n": "tokens",
    "s": "source tokens",
    "d": "width",
    "h": "heads",
    "g": "key/value heads",
    "k": "head width",
    "f": "feed-forward width",
    "V": "vocabulary",
    "L": "layers",
    "c": "context",
    "r": "recurrent or hidden width",
    "a": "alignment width",
    "o": "maxout width",
    "w": "tokens of the window",
    "C": "segments, buckets or labels",
}
PRODUCT_RULE = "a product of (n × m) and (m × k) takes 2 n m k FLOPs, and moves n m + m k + n k elements"


def render_report(report: CostReport) -> str:
    """All tables of one model."""
    parts = [_title(report), _parameters(report), _pass(report, report.forward, _forward_title(report))]
    if report.decode is not None:
        parts.append(_pass(report, report.decode, _decode_title(report)))
    parts.append(_summary(report))
    parts += [f"note: {note}" for note in report.notes()]
    return "\n\n".join(part for part in parts if part)


def render_comparison(reports: Sequence[CostReport]) -> str:
    """Several models side by side: a line per quantity, a column per model."""
    by_model = [dict(_quantities(report)) for report in reports]
    names = list(dict.fromkeys(name for quantities in by_model for name in quantities))
    columns = [Column(" ", names, is_text=True)]
    columns += [
        Column(report.name, [quantities.get(name, "–") for name in names])
        for report, quantities in zip(reports, by_model, strict=True)
    ]
    return render_table(columns)


def render_explanation(report: CostReport) -> str:
    """Every formula with its numbers, as a student would write it."""
    sections = [_title(report)]
    if report.parameters is not None:
        sections.append(_explain_parameters(report.parameters))
    sections.append(_explain_pass("Forward pass", report.forward))
    if report.decode is not None:
        sections.append(_explain_pass("One decode step", report.decode))
    if report.state is not None:
        sections.append(_explain_state(report, report.state))
    sections.append("\n".join([_legend(report), PRODUCT_RULE, *(f"note: {note}" for note in report.notes())]))
    return "\n\n".join(sections)


def _explain_parameters(table: Parameters) -> str:
    lines = ["Parameters"]
    for group, components in table.groups().items():
        lines.append(f"  {group}")
        for part in components:
            times = f", × {part.repeats}" if part.repeats > 1 else ""
            lines.append(f"    {part.name}: {_worked(part.parameters, table.sizes)}{times}")
        formula, layers, estimate = table.estimate(components)
        if layers > 1 and formula:
            exact = sum(map(table.count, components))
            lines.append(
                f"    as the lectures count: {_bracketed(formula)} × {layers} = {estimate:,}; exact: {exact:,}"
            )
    return "\n".join([*lines, f"  total {table.total:,}"])


def _explain_pass(title: str, counted: Pass) -> str:
    lines = [f"{title}: FLOPs, then elements read and written"]
    for stage, repeats, operations in counted.stages():
        lines.append(f"  {stage}{f', × {repeats}' if repeats > 1 else ''}")
        for o in operations:
            lines.append(f"    {o.name}")
            if o.flops:
                lines.append(f"      FLOPs     {_worked(o.flops, counted.sizes)}")
            lines.append(f"      elements  {_worked(o.elements, counted.sizes)}")
        products = [o.flops for o in operations if o.is_product]
        if len(products) > 1:
            lines.append(f"    one {stage}: {_worked(sum(products, Formula()), counted.sizes)}")
    return "\n".join([*lines, f"  total {counted.total_flops:,} FLOPs"])


def _explain_state(report: CostReport, state: DecodeState) -> str:
    size = f"× {state.bytes_per_element} bytes = {state.nbytes:,} bytes"
    return f"{_state_name(report)}\n  {_worked(state.elements, state.sizes)} elements, {size}"


def _legend(report: CostReport) -> str:
    """What the symbols of an explanation mean, and their values."""
    formulas = [(o.flops + o.elements, report.forward.sizes) for o in report.forward.operations]
    if report.parameters is not None:
        formulas += [(part.parameters, report.parameters.sizes) for part in report.parameters.components]
    if report.state is not None:
        formulas.append((report.state.elements, report.state.sizes))
    values = {name: sizes[name] for formula, sizes in formulas for name in formula.names}
    return "with " + ", ".join(f"{name} = {values[name]:,} ({SYMBOLS[name]})" for name in SYMBOLS if name in values)


# ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _title(report: CostReport) -> str:
    n_params = "" if report.n_params is None else f" of {report.n_params:,} parameters"
    source = f", source of {report.source_len:,} tokens" if has_source(report.config) else ""
    device = f", on {report.device.name}" if report.device is not None else ""
    return (
        f"{report.name}: {report.config.family}{n_params}; batch {report.batch_size:,}, {report.seq_len:,} tokens"
        f"{source}, {report.dtype}{device}"
    )


def _parameters(report: CostReport) -> str:
    table = report.parameters
    if table is None:
        return "Parameters: as many as the text has different n-grams"
    names, each, totals, formulas = [], [], [], []
    lectures: list[str] = []
    for group, components in table.groups().items():
        total = sum(map(table.count, components))
        names.append(group)
        each.append("")
        totals.append(f"{total:,}")
        formula, layers, estimate = table.estimate(components)
        is_estimated = layers > 1 and bool(formula)
        formulas.append(f"≈ {_bracketed(formula)} × {layers} = {estimate:,}" if is_estimated else "")
        if is_estimated and total != estimate:
            lectures.append(f"{group}: biases, norms and positions add {total - estimate:,} to {estimate:,}")
        for part in components:
            names.append(f"  {part.name}" + (f" (× {part.repeats})" if part.repeats > 1 else ""))
            each.append(f"{part.parameters.evaluate(table.sizes):,}")
            totals.append(f"{table.count(part):,}")
            formulas.append(str(part.parameters))
    columns = [
        Column("Parameters", [*names, "total"], is_text=True),
        Column("each", [*each, ""]),
        Column("all", [*totals, f"{table.total:,}"]),
        Column("formula", [*formulas, ""], is_text=True),
    ]
    return "\n".join([render_table(columns), *lectures])


def _forward_title(report: CostReport) -> str:
    return f"Forward pass, {report.batch_size * report.seq_len:,} tokens"


def _decode_title(report: CostReport) -> str:
    counted = report.decode
    assert counted is not None
    return f"One decode step after {counted.sizes['n']:,} tokens"


def _pass(report: CostReport, counted: Pass, title: str) -> str:
    rows: list[tuple[str, str, str, str, str]] = []
    for stage, repeats, operations in counted.stages():
        rows.append((f"{stage}{f', × {repeats}' if repeats > 1 else ''}", "", "", "", ""))
        rows += [_row(report, counted, o) for o in operations]
        products = [o for o in operations if o.is_product]
        if repeats > 1 and len(products) > 1:
            formula = sum((o.flops for o in products), Formula())
            rows.append((f"  one {stage}", f"{formula.evaluate(counted.sizes):,}", "", "", f"= {formula}"))
    rows.append(("total", f"{counted.total_flops:,}", "", "", _least(report, counted)))
    name, flops, moved, intensities, bounds = zip(*rows, strict=True)
    columns = [
        Column(title, name, is_text=True),
        Column("FLOPs", flops),
        Column("bytes moved", moved),
        Column("FLOPs/byte", intensities),
        Column("bound by" if report.rates is not None else " ", bounds, is_text=True),
    ]
    return render_table(columns)


def _row(report: CostReport, counted: Pass, o: Operation) -> tuple[str, str, str, str, str]:
    moved = report.bytes_per_element * o.elements.evaluate(counted.sizes)
    ratio = intensity(o, counted, report.bytes_per_element)
    bound = ""
    if report.rates is not None:
        bound = "memory" if is_memory_bound(o, counted, report.bytes_per_element, report.rates) else "compute"
    flops = f"{counted.flops(o):,}" if o.is_product else f"({counted.flops(o):,})"
    return f"  {o.name}", flops, f"{moved:,}", f"{ratio:,.2f}" if ratio < 100 else f"{ratio:,.0f}", bound


def _least(report: CostReport, counted: Pass) -> str:
    seconds = report.least_seconds(counted)
    return "" if seconds is None else f"at least {format_seconds(seconds)}"


def _summary(report: CostReport) -> str:
    quantities = [(name, value) for name, value in _quantities(report) if name not in ("parameters", "forward FLOPs")]
    width = max(len(name) for name, _ in quantities)
    return "\n".join(f"{name:{width}}  {value}" for name, value in quantities)


def _state_name(report: CostReport) -> str:
    return "KV cache" if hasattr(report.config, "n_heads") else "decoding state"


def _quantities(report: CostReport) -> list[tuple[str, str]]:
    """What is compared between models: name and value."""
    steps, path = report.sequential_steps
    rows = [("parameters", "–" if report.n_params is None else f"{report.n_params:,}")]
    if report.weight_bytes is not None:
        rows.append(("weights", format_bytes(report.weight_bytes)))
    rows.append(("forward FLOPs", f"{report.forward.total_flops:,}"))
    rows.append(("training FLOPs", f"{report.training_flops:,}"))
    if report.decode is not None:
        rows.append(("decode FLOPs", f"{report.decode.total_flops:,}"))
    if report.generation_flops is not None:
        rows.append((f"generating {report.new_tokens:,}", f"{report.generation_flops:,} FLOPs"))
    if report.uncached_generation_flops is not None:
        rows.append(("  without a cache", f"{report.uncached_generation_flops:,} FLOPs"))
    if report.state is not None:
        rows.append((_state_name(report), f"{report.state.nbytes:,} bytes = {report.state.elements} numbers"))
    rows += [("sequential steps", f"{steps} per layer"), ("longest path", str(path))]
    if report.rates is not None:
        rows.append(("forward pass", f"at least {format_seconds(report.least_seconds(report.forward) or 0)}"))
        rows.append(("training step", f"at least {format_seconds(report.least_training_seconds or 0)}"))
        if report.max_tokens_per_second is not None:
            rows.append(("decoding", f"at most {report.max_tokens_per_second:,.0f} tokens/s"))
    if report.device is not None:
        rows += _device_quantities(report)
    if (memory := report.training_memory()) is not None:
        small = report.training_memory(checkpoint_activations=True)
        assert small is not None
        activations = format_bytes(memory.activations)
        rows.append(("training memory", f"{format_bytes(memory.total)}, of which activations {activations}"))
        rows.append(("  checkpointed", format_bytes(small.total)))
    if report.budget is not None:
        rows.append(("token budget", f"{report.budget.n_tokens:,} (20 N), {report.budget.flops:.2e} FLOPs (6 N D)"))
        if report.device is not None:
            days = report.budget.seconds(report.device, report.n_devices) / 86_400
            devices = f"{report.n_devices} × {report.device.name}"
            rows.append(("  training time", f"{days:,.1f} days on {devices} at {100 * DEFAULT_MFU:.0f} % MFU"))
    return rows


def _device_quantities(report: CostReport) -> list[tuple[str, str]]:
    assert report.device is not None
    rows = []
    if report.max_sequences is not None:
        needed = (report.weight_bytes or 0) + (report.state.nbytes if report.state is not None else 0)
        fits = "" if needed <= report.device.memory else f"; this batch needs {format_bytes(needed)}: too much"
        rows.append(("sequences that fit", f"{report.max_sequences:,} of {report.total_tokens:,} tokens{fits}"))
    if report.parallelism is not None:
        rows.append(("to train", report.parallelism))
    return rows


def _worked(formula: Formula, sizes: Mapping[str, int]) -> str:
    """ "2 b n² d = 2 · 1 · 1,024² · 768 = 1,610,612,736" """
    value, filled = formula.evaluate(sizes), formula.filled(sizes)
    return f"{formula} = {filled} = {value:,}" if filled != f"{value:,}" else f"{formula} = {value:,}"


def _bracketed(formula: Formula) -> str:
    return f"({formula})" if len(formula.terms) > 1 else str(formula)


def format_bytes(n_bytes: float) -> str:
    """ "497.8 MB", decimal as on datasheets."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:,.1f} {unit}"
    return f"{n_bytes:,.0f} bytes"


def format_seconds(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:,.3g} {unit}" if seconds / size < 1000 else f"{seconds / size:,.0f} {unit}"
    return f"{seconds * 1e9:.3g} ns"

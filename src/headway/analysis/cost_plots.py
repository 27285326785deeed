"""Pictures of costs: the roofline with every operation on it, FLOPs against sequence length, measured growth, and times
of generation beside their lower bounds."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2
from pathlib import Path
from typing import Any

from headway.analysis.cost_growth import Growth
from headway.analysis.cost_measurement import GenerationPoint
from headway.analysis.plotting import MARKERS, label_points, log_ticks, open_figure, set_title, theme
from headway.costs.formula import Formula
from headway.costs.operations import Operation, Pass, has_source
from headway.costs.report import CostReport
from headway.costs.roofline import Rates, intensity
from headway.errors import InputError

WIDTH, HEIGHT = 8.5, 4.5  # inches
MIN_LENGTH = 16
FORWARD = "forward pass"
BOUND: dict[str, Any] = {"linestyle": "--", "linewidth": 1.0}  # of lower bounds
LABEL_CHARACTERS = 30  # of a line
N_ROOF_POINTS = 100  # of the roofline, which labels avoid
MAX_TICKS, MAX_TICK_LENGTH = 6, 10**6  # powers of two that are written out below an axis
ALIKE = 2.0  # operations whose intensities differ by less share a marker


def plot_costs(report: CostReport, rates: Rates, file: str | Path) -> Path:
    """The roofline of a device with the operations of a model on it, and FLOPs per layer against sequence length."""
    _by_power(report.forward)  # raises if there is nothing to plot
    source = f", source of {report.source_len:,}" if has_source(report.config) else ""
    with open_figure(file, width=WIDTH, height=HEIGHT) as figure:
        roofline, growth = figure.subplots(1, 2, gridspec_kw={"width_ratios": (1.15, 1)})
        _draw_roofline(roofline, report, rates)
        _draw_length(growth, report)
        sizes = f"batch {report.batch_size:,}, {report.seq_len:,} tokens{source}"
        set_title(figure, f"{report.name}, {report.dtype}, {sizes}")
        figure.draw_without_rendering()
        _label_operations(roofline, report, rates)
    return Path(file)


def _passes(report: CostReport) -> list[tuple[str, Pass, str, str]]:
    """Title, operations, marker and colour of each pass on the roofline."""
    passes = [(FORWARD, report.forward, "o", theme().colour(0))]
    if report.decode is not None:
        passes.append(("one decode step", report.decode, "D", theme().colour(1)))
    return passes


def _draw_roofline(axes: Any, report: CostReport, rates: Rates) -> None:
    """Operations whose intensities are alike share a marker."""
    drawn = [
        (title, marker, colour, _clusters(counted, report.bytes_per_element, rates.ridge))
        for title, counted, marker, colour in _passes(report)
    ]
    intensities = [cluster.intensity for *_, clusters in drawn for cluster in clusters]
    low, high = min(0.2, *intensities) / 6, max(rates.ridge, *intensities) * 30
    axes.plot(
        [low, rates.ridge, high],
        [low * rates.bandwidth, rates.flops_per_second, rates.flops_per_second],
        color=theme().text,
        linewidth=1.2,
    )
    axes.axvline(rates.ridge, color=theme().grey, linewidth=0.8, linestyle=":")
    for title, marker, colour, clusters in drawn:
        x = [cluster.intensity for cluster in clusters]
        y = [rates.attainable_flops(value) for value in x]
        axes.plot(x, y, marker=marker, color=colour, markersize=7, linestyle="none", label=title)
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(low, high),
        xlabel="arithmetic intensity (FLOPs per byte)",
        ylabel="attainable FLOP/s",
        title=f"{rates.name or 'device'}: memory-bound left of {rates.ridge:,.0f} FLOPs per byte",
    )
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom / 3, top * 4)
    log_ticks(axes.xaxis)
    log_ticks(axes.yaxis)
    axes.grid(which="major")
    axes.legend(loc="upper left")


def _label_operations(axes: Any, report: CostReport, rates: Rates) -> None:
    """The names of each marker's operations, beside it."""
    points, labels, colours = [], [], []
    for _, counted, _, colour in _passes(report):
        for cluster in _clusters(counted, report.bytes_per_element, rates.ridge):
            points.append((cluster.intensity, rates.attainable_flops(cluster.intensity)))
            labels.append(textwrap.fill(", ".join(cluster.names), LABEL_CHARACTERS))
            colours.append(colour)
    low, high = axes.get_xlim()
    roof = [low * (high / low) ** (i / N_ROOF_POINTS) for i in range(N_ROOF_POINTS + 1)]
    label_points(axes, points, labels, size=7.5, colours=colours, avoid=[(x, rates.attainable_flops(x)) for x in roof])


@dataclass(frozen=True)
class _Cluster:
    intensity: float  # FLOPs per byte: the mean
    names: list[str]


def _clusters(counted: Pass, bytes_per_element: int, ridge: float) -> list[_Cluster]:
    """The operations of a pass, grouped where the next intensity is less than `ALIKE` times larger. No group lies on
    both sides of the ridge. A name with several intensities gets its stage in front."""
    operations = [o for o in counted.operations if o.flops]
    points = sorted(((intensity(o, counted, bytes_per_element), o) for o in operations), key=lambda point: point[0])
    groups: list[list[tuple[float, Operation]]] = []
    for point in points:
        start = groups[-1][0][0] if groups else 0.0
        if groups and point[0] < ALIKE * start and not start < ridge <= point[0]:
            groups[-1].append(point)
        else:
            groups.append([point])
    n_groups = Counter(name for group in groups for name in {o.name for _, o in group})
    clusters = []
    for group in groups:
        names = [o.name if n_groups[o.name] == 1 else f"{_prefix(o.stage)} {o.name}" for _, o in group]
        clusters.append(_Cluster(sum(value for value, _ in group) / len(group), list(dict.fromkeys(names))))
    return clusters


def _prefix(stage: str) -> str:
    """ "first encoder layer, each direction" → "first encoder" """
    return stage.partition(",")[0].removesuffix(" layer")


def _draw_length(axes: Any, report: CostReport) -> None:
    """FLOPs of all layers that grow with n, and with n²; where the lines cross, attention begins to dominate."""
    linear, quadratic = _by_power(report.forward)
    longest = max(4 * report.seq_len, 4096)
    crossing = linear / quadratic if quadratic else None
    if crossing is not None:
        longest = max(longest, int(4 * crossing))
    lengths = [2**power for power in range(int(log2(MIN_LENGTH)), int(log2(longest)) + 1)]
    lines = [("products with weights: ∝ n", [linear * n for n in lengths])]
    if quadratic:
        lines.append(("products of tokens with tokens: ∝ n²", [quadratic * n * n for n in lengths]))
    for number, (name, values) in enumerate(lines):
        style = {"color": theme().colour(number), "linestyle": ("-", "--")[number]}
        axes.plot(lengths, values, marker=MARKERS[number], label=name, **style)
    if crossing is not None:
        label = f"equal at n = {crossing:,.0f}"
        axes.axvline(crossing, label=label, color=theme().grey, linewidth=0.8, linestyle=":")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="n (tokens of source and target)" if has_source(report.config) else "sequence length n (tokens)",
        ylabel="FLOPs of all layers",
        title="cost against length",
    )
    if longest > MAX_TICK_LENGTH:
        log_ticks(axes.xaxis)
    else:
        _length_ticks(axes, lengths[:: ceil(len(lengths) / MAX_TICKS)])
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, top * 30)  # space for the legend
    log_ticks(axes.yaxis)
    axes.grid(which="major")
    axes.legend(loc="upper left")


def _length_ticks(axes: Any, lengths: Sequence[int]) -> None:
    """Label the lengths themselves on a logarithmic x axis."""
    axes.set_xticks(lengths, labels=[f"{length:,}" for length in lengths])
    axes.set_xticks([], minor=True)


def _by_power(counted: Pass) -> tuple[float, float]:
    """FLOPs of the layers per token, and per squared token. A source has the length of the target."""
    totals = {1: 0, 2: 0}
    one_token = {**counted.sizes, "n": 1, "s": 1}
    for operation in counted.operations:
        if operation.is_product and operation.stage not in ("output", "head"):
            for powers, coefficient in operation.flops:
                power = sum(exponent for name, exponent in powers if name in "ns")
                term = Formula(((powers, coefficient),)).evaluate(one_token)
                if power in totals:
                    totals[power] += operation.repeats * term
    if not totals[1]:
        raise InputError("this model has no layers whose cost grows with the sequence: there is nothing to plot")
    return float(totals[1]), float(totals[2])


def plot_growth(growth: Growth, file: str | Path) -> Path:
    """Two panels: generation with and without a cache, and one pass of a Transformer and of an LSTM. The least times
    are dashed, in the colour of what was measured."""
    panels = {"generating n tokens": growth.generation, "one pass over n tokens": growth.one_pass}
    with open_figure(file, width=WIDTH, height=HEIGHT) as figure:
        for axes, (question, lines) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
            for number, line in enumerate(lines):
                colour = theme().colour(number)
                axes.plot(line.lengths, line.seconds, color=colour, marker=MARKERS[number], label=line.name)
                axes.plot(
                    line.lengths, line.predicted, color=colour, linestyle="--", linewidth=1.0, label="  lower bound"
                )
            axes.set(xscale="log", yscale="log", xlabel="n (tokens)", ylabel="seconds", title=question)
            bottom, top = axes.get_ylim()
            axes.set_ylim(bottom, top * 8)  # space for the legend
            _length_ticks(axes, max((line.lengths for line in lines), key=len))
            log_ticks(axes.yaxis)
            axes.grid(which="major")
            axes.legend(loc="upper left", ncols=2)
        set_title(figure, f"{growth.name}: time against length, measured and lower bounds")
    return Path(file)


def plot_generation(points: Sequence[GenerationPoint], file: str | Path, *, title: str) -> Path:
    """A panel per model: prefill and decode step against length, a colour per batch size. Lower bounds are dashed."""
    measured = [point for point in points if point.rows]
    if not measured:
        raise InputError("no times have been measured: there is nothing to plot")
    names = list(dict.fromkeys(point.name for point in measured))
    batch_sizes = sorted({point.batch_size for point in measured})
    lengths = sorted({point.seq_len for point in measured})
    kinds = {"prefill": MARKERS[0], "decode step": MARKERS[1]}
    with open_figure(file, width=max(WIDTH, 4.2 * len(names)), height=HEIGHT) as figure:
        for axes, name in zip(figure.subplots(1, len(names), squeeze=False, sharey=True)[0], names, strict=True):
            for number, batch_size in enumerate(batch_sizes):
                style = {"color": theme().colour(number)}
                for kind, marker in kinds.items():
                    line = [
                        (point.seq_len, row.measured, row.predicted)
                        for point in measured
                        if (point.name, point.batch_size) == (name, batch_size) and (row := point.row(kind))
                    ]
                    x, seconds, bounds = zip(*line, strict=True) if line else ((), (), ())
                    axes.plot(x, seconds, marker=marker, **style)
                    axes.plot(x, bounds, marker=marker, markerfacecolor=theme().background, **BOUND, **style)
            axes.set(xscale="log", yscale="log", xlabel="length (tokens)", title=name)
            _length_ticks(axes, lengths)
            axes.grid(which="major")
        first = figure.axes[0]
        first.set_ylabel("seconds")
        log_ticks(first.yaxis)
        grey: dict[str, Any] = {"color": theme().grey}
        lines: list[tuple[str, dict[str, Any]]] = [
            (f"batch {size}", {"color": theme().colour(i)}) for i, size in enumerate(batch_sizes)
        ]
        lines += [(kind, {**grey, "marker": marker}) for kind, marker in kinds.items()]
        lines.append(("lower bound", {**grey, **BOUND}))
        handles = [first.plot([], [], label=label, **style)[0] for label, style in lines]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
        set_title(figure, title)
    return Path(file)

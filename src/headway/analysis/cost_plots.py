"""Pictures of costs: the roofline with every operation on it, FLOPs against sequence length, measured growth, and times
of generation beside their lower bounds."""

import string
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, log2
from pathlib import Path
from typing import Any

from headway.analysis.cost_growth import Growth
from headway.analysis.cost_measurement import GenerationPoint
from headway.analysis.plotting import MARKERS, legend_entry, log_ticks, open_figure, set_title, theme
from headway.costs.formula import Formula
from headway.costs.operations import Operation, Pass, has_source
from headway.costs.report import CostReport
from headway.costs.roofline import Rates, intensity
from headway.errors import InputError

WIDTH, HEIGHT = 8.5, 4.5  # inches
LINE_HEIGHT = 0.19  # inches, of a line of the key below a roofline
MIN_LENGTH = 16
BOUND: dict[str, Any] = {"linestyle": "--", "linewidth": 1.0}  # of lower bounds
KEY_CHARACTERS = 58  # of a line of the key
MAX_TICKS, MAX_TICK_LENGTH = 6, 10**6  # powers of two that are written out below an axis
ALIKE = 2.0  # operations whose intensities differ by less share a marker


def plot_costs(report: CostReport, rates: Rates, file: str | Path) -> Path:
    """The roofline of a device with the operations of a model on it, and FLOPs per layer against sequence length."""
    _by_power(report.forward)  # raises if there is nothing to plot
    source = f", source of {report.source_len:,}" if has_source(report.config) else ""
    passes = _drawn_passes(report, rates)
    height = HEIGHT + LINE_HEIGHT * (1 + max(drawn.n_key_lines for drawn in passes))
    with open_figure(file, width=WIDTH, height=height) as figure:
        roofline, growth = figure.subplots(1, 2, gridspec_kw={"width_ratios": (1.15, 1)})
        _draw_roofline(roofline, passes, rates)
        _draw_length(growth, report)
        _draw_key(figure, passes)
        sizes = f"batch of {report.batch_size:,} × {report.seq_len:,} tokens{source}"
        set_title(figure, f"{report.name}, {report.dtype}, {sizes}")
    return Path(file)


@dataclass(frozen=True)
class _Cluster:
    letter: str
    intensity: float  # FLOPs per byte: the mean
    names: list[str]


@dataclass(frozen=True)
class _DrawnPass:
    """A pass on the roofline: operations whose intensities are alike share a marker, which has a letter."""

    title: str
    clusters: list[_Cluster]
    marker: str
    size: int
    colour: str
    offset: tuple[int, int]  # of the letters from their markers, in points

    @property
    def key(self) -> dict[str, str]:
        """Letter → the names of the operations, in lines."""
        return {cluster.letter: textwrap.fill(", ".join(cluster.names), KEY_CHARACTERS) for cluster in self.clusters}

    @property
    def n_key_lines(self) -> int:
        return sum(names.count("\n") + 1 for names in self.key.values())


def _drawn_passes(report: CostReport, rates: Rates) -> list[_DrawnPass]:
    """The forward pass, lettered above its markers, and a decode step, whose smaller markers are lettered below."""
    letters = iter(string.ascii_uppercase + string.ascii_lowercase)
    clusters = _clusters(report.forward, report.bytes_per_element, rates.ridge, letters)
    passes = [_DrawnPass("forward pass", clusters, "o", 9, theme().colour(0), (-6, 6))]
    if report.decode is not None:
        clusters = _clusters(report.decode, report.bytes_per_element, rates.ridge, letters)
        passes.append(_DrawnPass("one decode step", clusters, "D", 5, theme().colour(1), (6, -6)))
    return passes


def _draw_roofline(axes: Any, passes: Sequence[_DrawnPass], rates: Rates) -> None:
    intensities = [cluster.intensity for drawn in passes for cluster in drawn.clusters]
    low, high = min(0.2, *intensities) / 6, max(rates.ridge, *intensities) * 30
    axes.plot(
        [low, rates.ridge, high],
        [low * rates.bandwidth, rates.flops_per_second, rates.flops_per_second],
        color=theme().text,
        linewidth=1.2,
    )
    axes.axvline(rates.ridge, color=theme().grey, linewidth=0.8, linestyle=":")
    for drawn in passes:
        style = {"marker": drawn.marker, "color": drawn.colour, "markersize": drawn.size, "linestyle": "none"}
        for cluster in drawn.clusters:
            point = (cluster.intensity, rates.attainable_flops(cluster.intensity))
            axes.plot(*point, **style)
            axes.annotate(
                cluster.letter, point, drawn.offset, textcoords="offset points", ha="center", va="center",
                fontsize=9, color=drawn.colour,
            )  # fmt: skip
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(low, high),
        xlabel="arithmetic intensity (FLOPs per byte)",
        ylabel="attainable FLOP/s",
        title=f"{rates.name or 'device'}: memory-bound left of {rates.ridge:,.0f} FLOPs per byte",
    )
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom / 2, top * 3)
    log_ticks(axes.xaxis)
    log_ticks(axes.yaxis)
    axes.grid(which="major")


def _draw_key(figure: Any, passes: Sequence[_DrawnPass]) -> None:
    """Below the panels: what each letter stands for."""
    n_lines = max(drawn.n_key_lines for drawn in passes)
    for drawn, corner in zip(passes, ("left", "right"), strict=False):
        marker = {"color": drawn.colour, "marker": drawn.marker, "markersize": drawn.size}
        entries = [legend_entry("line", label=drawn.title, linestyle="none", **marker)]
        for letter, names in drawn.key.items():
            style = {"color": drawn.colour, "marker": f"$\\mathrm{{{letter}}}$", "markersize": 6, "markeredgewidth": 0}
            entries.append(legend_entry("line", label=names, linestyle="none", **style))
        # Legends are aligned at their bottom: blank lines align these at the top.
        entries += [legend_entry("line", label=" ", linestyle="none")] * (n_lines - drawn.n_key_lines)
        figure.legend(handles=entries, loc=f"outside lower {corner}", alignment="left", fontsize=8, frameon=False)


def _clusters(counted: Pass, bytes_per_element: int, ridge: float, letters: Iterator[str]) -> list[_Cluster]:
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
        mean = sum(value for value, _ in group) / len(group)
        clusters.append(_Cluster(next(letters), mean, list(dict.fromkeys(names))))
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
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="n (tokens of source and target)" if has_source(report.config) else "sequence length n (tokens)",
        ylabel="FLOPs of all layers",
        title="cost against length",
    )
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, top * 30)  # space for the legend
    if crossing is not None:
        x, y = [crossing, crossing], [bottom, linear * crossing]
        label = f"equal at n = {crossing:,.0f}"
        axes.plot(x, y, label=label, color=theme().grey, linewidth=0.8, linestyle=":")
    if longest > MAX_TICK_LENGTH:
        log_ticks(axes.xaxis)
    else:
        _length_ticks(axes, lengths[:: ceil(len(lengths) / MAX_TICKS)])
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

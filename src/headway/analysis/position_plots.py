"""Position encodings as text for the terminal and as a picture: the code, its frequencies, similarity by distance."""

import math
from pathlib import Path
from typing import Any

from headway.analysis.plotting import (
    MARKERS,
    hatch_cells,
    log_ticks,
    open_figure,
    set_title,
    theme,
)
from headway.analysis.positions import PositionCode
from headway.errors import count
from headway.tables import Column, render_table

ORIGINS = {"formula": "a formula, nothing is learned", "untrained": "random initial values", "model": "as learned"}
SIMILARITIES = {
    "sinusoidal": "PE·PEᵀ",
    "learned": "cosine of two rows",
    "per-layer": "cosine of two rows",
    "rotary": "q·k of vectors of ones",
    "binary": "bits that agree",
}
N_ROWS, N_COLUMNS = 6, 8  # of the table that are printed
MAX_DIGITS = 64  # positions whose bits are written into the cells
MAX_LINES = 12  # heads that get a line each
HIGHEST_QUANTILE = 0.99  # of the values of a table: the end of its colours, so that a few large ones hide nothing
EXACT = 1e-4  # two similarities that differ by less, relative to the largest, are equal


def describe(code: PositionCode) -> str:
    """ "Sinusoidal positions, 51 × 130"."""
    name = "ALiBi" if code.kind == "alibi" else code.kind.capitalize()
    if code.bias is not None:
        return f"{name} positions, {count(code.bias.shape[0], 'head')}, {code.length} positions"
    return f"{name} positions, {code.length} × {code.width}"


def render_text(code: PositionCode) -> str:
    """Frequencies, the first rows, the least distance between two rows and similarity by distance, or the bias."""
    sections = [f"{describe(code)}: {ORIGINS[code.origin]}"]
    if code.frequencies is not None:
        sections.append(_frequency_table(code.frequencies))
    if code.table is not None:
        sections += [_row_table(code), _distance_lines(code)]
    if code.bias is not None:
        sections.append(_bias_table(code))
    return "\n\n".join(sections)


def _frequency_table(omega: Any) -> str:
    last = len(omega) - 1
    chosen = sorted({k for k in (0, 1, 2, last // 4, last // 2, 3 * last // 4, last) if k <= last})
    columns = [
        Column("pair k", [str(k) for k in chosen]),
        Column("ω_k (radians per position)", [f"{float(omega[k]):.6f}" for k in chosen]),
        Column("wavelength (positions)", [f"{2 * math.pi / float(omega[k]):,.1f}" for k in chosen]),
    ]
    return f"frequencies fall along the vector\n{render_table(columns)}"


def _row_table(code: PositionCode) -> str:
    assert code.table is not None
    n_rows, n_columns = min(N_ROWS, code.length), min(N_COLUMNS, code.width)
    digits = 0 if code.kind == "binary" else 3
    columns = [Column("position", [str(pos) for pos in range(n_rows)])]
    columns += [
        Column(str(i), [f"{float(code.table[pos, i]):.{digits}f}" for pos in range(n_rows)]) for i in range(n_columns)
    ]
    what = "cos and sin of the angles, in halves" if code.kind == "rotary" else "rows"
    shown = f"first {what}" if n_columns == code.width else f"first {what}, {n_columns} of {code.width} columns"
    return f"{shown}\n{render_table(columns)}"


def _distance_lines(code: PositionCode) -> str:
    assert code.least_distance is not None
    least, first, second = code.least_distance
    lines = [f"least distance between two rows: {least:.3f} (positions {first} and {second})"]
    by_distance = code.similarity_by_distance()
    name = SIMILARITIES[code.kind]
    chosen = sorted({d for d in (0, 1, 2, 4, 8, 16, 32, code.length - 1) if d < code.length})
    columns = [
        Column("distance", [str(d) for d in chosen]),
        Column("least", [f"{by_distance[d][0]:.3f}" for d in chosen]),
        Column("mean", [f"{by_distance[d][1]:.3f}" for d in chosen]),
        Column("greatest", [f"{by_distance[d][2]:.3f}" for d in chosen]),
    ]
    verdict = "it depends on the distance only" if depends_on_distance_only(code) else "it depends on both positions"
    return "\n".join([*lines, "", f"{name} by distance: {verdict}", render_table(columns)])


def depends_on_distance_only(code: PositionCode) -> bool:
    """Whether all pairs of positions at the same distance have the same similarity, up to rounding."""
    by_distance = code.similarity_by_distance()
    scale = max(abs(mean) for _, mean, _ in by_distance)
    return all(greatest - least <= EXACT * scale for least, _, greatest in by_distance)


def _bias_table(code: PositionCode) -> str:
    offsets, bias = code.bias_by_offset()
    distances = [d for d in (-32, -16, -8, -4, -2, -1, 0, 1, 2, 4, 8, 16, 32) if d in offsets]
    columns = [Column("head", [str(head) for head in range(len(bias))])]
    columns += [
        Column(f"{offset:+d}" if offset else "0", [f"{float(row[offsets.index(offset)]) + 0.0:.3f}" for row in bias])
        for offset in distances
    ]
    return f"bias added to the scores, by offset (key − query)\n{render_table(columns)}"


def to_dict(code: PositionCode) -> dict[str, Any]:
    """All numbers, for JSON."""
    least = code.least_distance
    offsets, bias = code.bias_by_offset() if code.bias is not None else (None, None)
    return {
        "kind": code.kind,
        "origin": code.origin,
        "length": code.length,
        "width": code.width or None,
        "table": None if code.table is None else code.table.tolist(),
        "frequencies": None if code.frequencies is None else code.frequencies.tolist(),
        "least_distance": None if least is None else {"distance": least[0], "positions": list(least[1:])},
        "similarity_by_distance": [
            {"least": low, "mean": mean, "greatest": high} for low, mean, high in code.similarity_by_distance()
        ],
        "offsets": offsets,
        "bias": None if bias is None else bias.tolist(),
    }


# ── pictures ──────────────────────────────────────────────────────────────────────────────────────────────────────


def plot(code: PositionCode, file: str | Path, *, model: str = "") -> Path:
    """Write a picture of the code. `model` is named in the title."""
    is_bias = code.bias is not None
    with open_figure(file, width=9.5, height=4.2 if is_bias else 6.6) as figure:
        _draw_bias(figure, code) if is_bias else _draw_table(figure, code)
        name = f"{model}: {describe(code)}" if model else describe(code)
        set_title(figure, f"{name} ({ORIGINS[code.origin]})")
    return Path(file)


def _draw_table(figure: Any, code: PositionCode) -> None:
    top, bottom = figure.subfigures(2, 1, height_ratios=[1.15, 1])
    _draw_heat_map(top, code)
    has_frequencies = code.frequencies is not None
    panels = bottom.subplots(1, 3 if has_frequencies else 2, width_ratios=[1.1, 1, 1.2][not has_frequencies :])
    if has_frequencies:
        _draw_frequencies(panels[0], code)
    _draw_similarity(bottom, panels[-2], code)
    _draw_by_distance(panels[-1], code)


def _draw_heat_map(figure: Any, code: PositionCode) -> None:
    """The table, a row per position; bits of a short table as digits."""
    assert code.table is not None
    axes = figure.subplots()
    is_binary = code.kind == "binary"
    table = code.table.T if is_binary else code.table  # bits are few and positions many: turned, they fill the panel
    limit = float(table.abs().quantile(HIGHEST_QUANTILE)) or 1.0
    is_clipped = float(table.abs().max()) > 1.01 * limit
    low, high = (0.0, 2.0) if is_binary else (-limit, limit)  # 2: digits stay readable on a 1
    # Not the diverging colours: in greyscale, and for many readers, their ends are alike.
    image = axes.imshow(
        table.numpy(), cmap=theme().sequential, vmin=low, vmax=high, aspect="auto", interpolation="nearest"
    )
    axes.spines[:].set_visible(True)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if is_binary:
        axes.set(xlabel="position (filled: 1)", ylabel="bit (0: the lowest)")
        if code.length <= MAX_DIGITS:
            for pos, bits in enumerate(code.table.int().tolist()):
                for bit, digit in enumerate(bits):
                    axes.text(pos, bit, str(digit), ha="center", va="center", fontsize=6)
        return
    axes.set(xlabel="dimension", ylabel="position")
    label = "value"
    if code.kind == "rotary":
        axes.axvline(code.width / 2 - 0.5, color=theme().text, linewidth=0.8, linestyle="--")
        axes.set_xlabel("dimension (left of the dashed line cos, right of it sin of the angle)")
        label = "cos, sin"
    figure.colorbar(image, ax=axes, label=label, pad=0.01, aspect=18, extend="both" if is_clipped else "neither")


def _draw_frequencies(axes: Any, code: PositionCode) -> None:
    omega = code.frequencies.tolist() if code.frequencies is not None else []
    axes.plot(range(len(omega)), omega, color=theme().colour(0))
    axes.set(xlabel="pair of dimensions k", ylabel=r"$\omega_k$ (radians per position)", yscale="log", xlim=(0, None))
    axes.set_title("frequencies fall along the vector")
    log_ticks(axes.yaxis)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid()


def _draw_similarity(figure: Any, axes: Any, code: PositionCode) -> None:
    assert code.similarity is not None
    image = axes.imshow(code.similarity.numpy(), cmap=theme().sequential, interpolation="nearest")
    axes.set(xlabel="position", ylabel="position", title=SIMILARITIES[code.kind])
    axes.spines[:].set_visible(True)
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True, nbins=5)
    figure.colorbar(image, ax=axes, pad=0.03, aspect=18)


def _draw_by_distance(axes: Any, code: PositionCode) -> None:
    """The mean over all pairs at a distance, and a band from the least to the greatest."""
    by_distance = code.similarity_by_distance()
    low, mean, high = zip(*by_distance, strict=True)
    distances = range(code.length)
    is_exact = depends_on_distance_only(code)
    if not is_exact:
        axes.fill_between(distances, low, high, color=theme().colour(5), alpha=0.35, linewidth=0)
    axes.plot(distances, mean, color=theme().colour(0), marker="o", markersize=2.5, linewidth=1.2)
    axes.set(xlabel="distance (positions)", ylabel=SIMILARITIES[code.kind], xlim=(-0.5, code.length))
    axes.set_title("depends on the distance only" if is_exact else "mean, and least to greatest")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid()


def _draw_bias(figure: Any, code: PositionCode) -> None:
    """Left the bias by offset and head; right the matrix of one head, which is constant along diagonals."""
    assert code.bias is not None
    lines, matrix = figure.subplots(1, 2, width_ratios=[1.25, 1])
    offsets, bias = code.bias_by_offset()
    if code.kind == "relative":  # learned values jump from offset to offset: lines would tangle
        by_head = lines.imshow(
            bias.numpy(), cmap=theme().sequential, aspect="auto", interpolation="nearest",
            extent=(offsets[0] - 0.5, offsets[-1] + 0.5, len(bias) - 0.5, -0.5),
        )  # fmt: skip
        lines.spines[:].set_visible(True)
        lines.yaxis.get_major_locator().set_params(integer=True)
        lines.set(ylabel="head")
        figure.colorbar(by_head, ax=lines, label="bias added to the score", pad=0.02, aspect=20)
    else:
        for i, head in enumerate(_chosen_heads(len(bias))):
            step = max(1, len(offsets) // 8)
            lines.plot(offsets, bias[head].tolist(), markevery=step, label=f"head {head}", **_line_style(i))
        lines.set(ylabel="bias added to the score")
        lines.grid()
        lines.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7, handlelength=2.2)
    lines.set(xlabel="offset (key − query, positions)", title="by head")
    lines.xaxis.get_major_locator().set_params(integer=True)
    masked = [[code.is_causal and key > query for key in range(code.length)] for query in range(code.length)]
    low, high = float(bias[0].min()), float(bias[0].max())
    image = matrix.imshow(code.bias[0].numpy(), cmap=theme().sequential, vmin=low, vmax=high, interpolation="nearest")
    hatch_cells(matrix, masked)
    matrix.spines[:].set_visible(True)
    matrix.set(xlabel="key position" + " (hatched: masked)" * code.is_causal, ylabel="query position")
    matrix.set_title("head 0: constant along diagonals")
    figure.colorbar(image, ax=matrix, label="bias", pad=0.03, aspect=20)


def _chosen_heads(n_heads: int) -> list[int]:
    """All heads, or as many as lines can be told apart, spread over all."""
    if n_heads <= MAX_LINES:
        return list(range(n_heads))
    return sorted({round(i * (n_heads - 1) / (MAX_LINES - 1)) for i in range(MAX_LINES)})


def _line_style(i: int) -> dict[str, Any]:
    """Colour, marker and dashes of the i-th line; no two of `MAX_LINES` are alike."""
    dashes = ("-", "--")[i // len(theme().colours) % 2]
    return {"color": theme().colour(i), "marker": MARKERS[i % len(MARKERS)], "linestyle": dashes, "linewidth": 1.2}

"""Why attention divides by √d: the dot product of two random vectors grows with their width, and softmax saturates.

    q, k ~ N(0, σ²) in each of d dimensions:   E[q·k] = 0,   Var[q·k] = d σ⁴,   so the standard deviation is √d σ²

Divided by √d it is σ² whatever the width (Vaswani et al. 2017, footnote 4). Without the division one weight of a wide
head is near 1, the others near 0, and the gradient of the softmax, diag(a) − a aᵀ, near 0: training stalls.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headway.analysis.plotting import MARKERS, open_figure, set_title, theme
from headway.errors import InputError
from headway.tables import Column, render_table

WIDTHS = (4, 16, 64, 256, 1024)
MAX_WIDTH = 16_384
MAX_SIGMA = 1000.0
MAX_KEYS = 256
N_QUERIES = 2_000  # with 8 keys each: the error of a standard deviation is about 1 %


@dataclass(frozen=True)
class ScoreScaling:
    """Scores of random queries and keys of one width, with and without the scale."""

    d: int
    std: float  # exactly: √d σ²
    measured_std: float
    largest_weight: float  # the mean, over queries, of the largest of `n_keys` weights
    largest_weight_scaled: float
    gradient: float  # the mean norm of the Jacobian of softmax, diag(a) − a aᵀ
    gradient_scaled: float


def score_scaling(
    widths: Sequence[int] = WIDTHS, *, sigma: float = 1.0, n_keys: int = 8, seed: int = 0
) -> list[ScoreScaling]:
    """Draw queries and keys with standard deviation `sigma` and see what softmax makes of their scores, by width."""
    if not widths or any(not 1 <= d <= MAX_WIDTH for d in widths):
        raise InputError(f"widths={list(widths)}: choose widths of a head from 1 to {MAX_WIDTH:,}")
    if not 0 < sigma <= MAX_SIGMA:
        raise InputError(f"sigma={sigma}: a standard deviation is above 0, and here at most {MAX_SIGMA:g}")
    if not 2 <= n_keys <= MAX_KEYS:
        raise InputError(f"n_keys={n_keys}: softmax compares at least 2 keys, and here at most {MAX_KEYS}")
    return [_measure(d, sigma, n_keys, seed) for d in widths]


def _measure(d: int, sigma: float, n_keys: int, seed: int) -> ScoreScaling:
    rng = torch.Generator().manual_seed(seed)
    q = sigma * torch.randn(N_QUERIES, d, generator=rng)
    keys = (sigma * torch.randn(N_QUERIES, d, generator=rng) for _ in range(n_keys))  # every query has keys of its own
    scores = torch.stack([(q * k).sum(dim=-1) for k in keys], dim=-1)  # (N, n_keys)
    weights, scaled = scores.softmax(dim=-1), (scores / math.sqrt(d)).softmax(dim=-1)
    return ScoreScaling(
        d,
        std=math.sqrt(d) * sigma**2,
        measured_std=float(scores.std()),
        largest_weight=float(weights.amax(dim=-1).mean()),
        largest_weight_scaled=float(scaled.amax(dim=-1).mean()),
        gradient=_jacobian_norm(weights),
        gradient_scaled=_jacobian_norm(scaled),
    )


def _jacobian_norm(a: Tensor) -> float:
    """The mean Frobenius norm of ∂a/∂scores = diag(a) − a aᵀ for weights a (N, n_keys)."""
    jacobian = torch.diag_embed(a) - a[:, :, None] * a[:, None, :]
    return float(jacobian.flatten(1).norm(dim=-1).mean())


# ── text and picture ──────────────────────────────────────────────────────────────────────────────────────────────


def render_text(rows: Sequence[ScoreScaling], *, width: int | None = None) -> str:
    """A row per width: the spread of the scores, and what softmax makes of them without and with the scale."""
    return render_table(
        [
            Column("d", [str(row.d) for row in rows]),
            Column("√d σ²", [f"{row.std:.4g}" for row in rows]),
            Column("measured", [f"{row.measured_std:.4g}" for row in rows]),
            Column("largest weight", [f"{row.largest_weight:.2f}" for row in rows]),
            Column("with / √d", [f"{row.largest_weight_scaled:.2f}" for row in rows]),
            Column("gradient", [f"{row.gradient:.3f}" for row in rows]),
            Column("with / √d ", [f"{row.gradient_scaled:.3f}" for row in rows]),
        ],
        width,
    )


def plot(rows: Sequence[ScoreScaling], file: str | Path) -> Path:
    """Write a picture: the standard deviation of the scores by width, and the largest weight."""
    with open_figure(file, width=8.2, height=3.4) as figure:
        draw(figure, rows)
    return Path(file)


def draw(figure: Any, rows: Sequence[ScoreScaling]) -> None:
    """Draw both panels into an empty figure."""
    t, widths = theme(), [row.d for row in rows]
    left, right = figure.subplots(1, 2)
    left.plot(widths, [row.std for row in rows], color=t.grey, linestyle="--", label="exact: √d σ²")
    measured = {"color": t.colour(0), "marker": MARKERS[0], "linestyle": "none"}
    left.plot(widths, [row.measured_std for row in rows], label="measured: q · k", **measured)
    scaled = {"color": t.colour(1), "marker": MARKERS[1]}
    left.plot(widths, [row.measured_std / math.sqrt(row.d) for row in rows], label="measured: q · k / √d", **scaled)
    left.set_yscale("log", base=2)
    left.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    left.set_ylabel("standard deviation of the scores")
    left.legend(loc="upper left")
    plain = {"color": t.colour(0), "marker": MARKERS[0]}
    right.plot(widths, [row.largest_weight for row in rows], label="softmax(q · k)", **plain)
    right.plot(widths, [row.largest_weight_scaled for row in rows], label="softmax(q · k / √d)", **scaled)
    right.set_ylim(0, 1.05)
    right.set_ylabel("largest weight, mean")
    right.legend(loc="center right", bbox_to_anchor=(1, 0.6))
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(widths, labels=list(map(str, widths)))
        axes.minorticks_off()
        axes.set_xlabel("width d of queries and keys")
        axes.grid(True)
    set_title(figure, "Why attention divides by √d: scores spread with the width, and softmax saturates")

"""Attention as routing: one large matrix over all numbers of a sequence, most of whose weights are shared.

N tokens of width D are N·D numbers. A dense layer that maps them to N·D others has a weight for each pair, D²N², and
works for one length only. Self-attention also multiplies the N·D numbers by one matrix,

    vec(X') = (A ⊗ W) vec(X),        A (N × N) the attention weights, W (D × D) the value projection

but its blocks are all W, each times one number of A, and A is computed from X: 3D² weights for W_Q, W_K and W_V,
whatever N is.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headway.analysis.plotting import open_figure, set_title, theme
from headway.errors import InputError, count
from headway.nn.attention import dot_product_attention
from headway.tables import Column, render_table

MAX_SIDE = 64  # numbers of a sequence in a picture: N · D
MAX_NUMBERED_SIDE = 16  # … whose cells have room for their weights


def dense_weights(n_tokens: int, width: int) -> int:
    """Weights of a dense layer over a whole sequence: D²N²."""
    return (width * n_tokens) ** 2


def attention_weights(width: int) -> int:
    """Weights of W_Q, W_K and W_V: 3D², for a sequence of any length."""
    return 3 * width**2


@dataclass(frozen=True)
class Routing:
    """Self-attention over a random sequence with random weights, as one matrix."""

    x: Tensor  # (N, D)
    weights: Tensor  # (N, N), the attention weights A
    value: Tensor  # (D, D), W
    output: Tensor  # (N, D), what attention computes

    @property
    def matrix(self) -> Tensor:
        """A ⊗ W (N·D × N·D): block (t, s) is W times how much token t attends to token s."""
        return torch.kron(self.weights, self.value)


def random_routing(n_tokens: int, width: int, *, seed: int = 5) -> Routing:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n_tokens, width, generator=generator)
    query, key, value = (torch.randn(width, width, generator=generator) / width**0.5 for _ in range(3))
    q, k, v = (x @ matrix.T for matrix in (2 * query, key, value))  # (N, D) each; 2: rows of A that differ visibly
    output, weights = dot_product_attention(q[None, None], k[None, None], v[None, None])
    return Routing(x, weights[0, 0], value, output[0, 0])


def render_text(n_tokens: int, width: int) -> str:
    n, d = n_tokens, width
    rows = [
        ("dense layer", f"D²N² = {d}²·{n}²", dense_weights(n, d), f"{count(n, 'token')} only"),
        ("self-attention", f"3D² = 3·{d}²", attention_weights(d), "any length"),
    ]
    table = [
        Column("", [name for name, *_ in rows], is_text=True),
        Column("", [formula for _, formula, *_ in rows], is_text=True),
        Column("weights", [f"{size:,}" for *_, size, _ in rows]),
        Column("for", [length for *_, length in rows], is_text=True),
    ]
    return f"{count(n, 'token')} of width {d}: {n * d:,} numbers in, {n * d:,} numbers out\n\n{render_table(table)}"


def plot(n_tokens: int, width: int, file: str | Path, *, seed: int = 5) -> Path:
    """Both matrices side by side, with random weights; lines separate the tokens."""
    n, d = n_tokens, width
    if n * d > MAX_SIDE:
        raise InputError(f"{n} tokens × {d} = {n * d} numbers are too many for a picture: at most {MAX_SIDE}")
    dense = torch.randn(n * d, n * d, generator=torch.Generator().manual_seed(seed)) / (n * d) ** 0.5
    panels = {
        f"dense layer: {dense_weights(n, d):,} weights": dense,
        f"self-attention: {attention_weights(d):,} weights": random_routing(n, d, seed=seed).matrix,
    }
    limit = max(float(matrix.abs().max()) for matrix in panels.values())
    with open_figure(file, width=8.4, height=4.4) as figure:
        for axes, (title, matrix) in zip(figure.subplots(1, 2), panels.items(), strict=True):
            image = axes.imshow(matrix.numpy(), cmap=theme().diverging, vmin=-limit, vmax=limit)
            axes.set_title(title)
            centres = [d * t + (d - 1) / 2 for t in range(n)]
            axes.set_xticks(centres, [f"token {t + 1}" for t in range(n)])
            axes.set_yticks(centres, [f"token {t + 1}" for t in range(n)], rotation=90, va="center")
            axes.tick_params(length=0)
            axes.set_xlabel(f"inputs: {d} numbers of each token")
            axes.set_ylabel(f"outputs: {d} numbers of each token")
            if n * d <= MAX_NUMBERED_SIDE:
                _write_numbers(axes, matrix, limit)
            for t in range(1, n):
                axes.axhline(d * t - 0.5, color=theme().text, linewidth=0.8)
                axes.axvline(d * t - 0.5, color=theme().text, linewidth=0.8)
        figure.colorbar(image, ax=figure.axes, label="weight", shrink=0.75)
        set_title(
            figure,
            f"{count(n, 'token')} of width {d} as one matrix product",
            "Every block of self-attention is the same matrix W, times how much one token attends to another.",
        )
    return Path(file)


def _write_numbers(axes: Any, matrix: Tensor, limit: float) -> None:
    """The weights in their cells, so that signs can be told apart in greyscale."""
    for row, weights in enumerate(matrix.tolist()):
        for column, weight in enumerate(weights):
            colour = theme().background if abs(weight) > 0.6 * limit else theme().text
            number = "0" if abs(weight) < 0.05 else f"{weight:.1f}".replace("-", "−").replace("0.", ".")
            axes.text(column, row, number, ha="center", va="center", fontsize=5.5, color=colour)

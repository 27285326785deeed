"""The picture of a learning-rate range test: the loss against the rate, with the suggested rate marked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.analysis.plotting import log_ticks, open_figure, set_title, theme


def plot(
    rates: Sequence[float],
    losses: Sequence[float],
    smooth: Sequence[float],
    file: str | Path,
    *,
    suggestion: float,
    diverged_at: float | None = None,
    title: str = "",
) -> Path:
    """Write the picture. `losses` are those of single steps, `smooth` their moving average; `diverged_at` is the rate
    that ended the sweep."""
    with open_figure(file, width=7, height=4) as figure:
        draw(figure, rates, losses, smooth, suggestion=suggestion, diverged_at=diverged_at, title=title)
    return Path(file)


def draw(
    figure: Any,
    rates: Sequence[float],
    losses: Sequence[float],
    smooth: Sequence[float],
    *,
    suggestion: float,
    diverged_at: float | None = None,
    title: str = "",
) -> None:
    axes = figure.subplots()
    axes.plot(rates, losses, ".", color=theme().light_grey, markersize=3, label="one step")
    axes.plot(rates, smooth, color=theme().colour(0), label="moving average")
    lowest = min(range(len(smooth)), key=smooth.__getitem__)
    axes.plot(rates[lowest], smooth[lowest], "o", color=theme().colour(0), markersize=5,
              label=f"lowest: {smooth[lowest]:.3g} at {rates[lowest]:.2g}")  # fmt: skip
    axes.axvline(suggestion, color=theme().colour(1), linestyle="--", linewidth=1.2)
    axes.annotate(f"suggested: {suggestion:.2g}", (suggestion, 1), xycoords=("data", "axes fraction"), xytext=(0, 3),
                  textcoords="offset points", horizontalalignment="center", fontsize=8,
                  color=theme().colour(1))  # fmt: skip
    if diverged_at is not None:
        axes.axvline(
            diverged_at, color=theme().grey, linestyle=":", linewidth=1.2, label=f"diverged at {diverged_at:.2g}"
        )
    # The y axis shows the fall and the start of the rise: a loss that explodes would flatten the rest.
    bottom, start = smooth[lowest], smooth[0]
    top = min(max(smooth), start + 1.5 * (start - bottom))
    margin = 0.08 * (top - bottom)
    axes.set(xlabel="learning rate", ylabel="training loss (nats per target)", xscale="log")
    axes.set_ylim(min(bottom, *losses[: lowest + 1]) - margin, top + margin)
    log_ticks(axes.xaxis)
    axes.grid()
    figure.legend(loc="outside lower center", ncols=4)
    set_title(figure, title or "Learning-rate sweep")

"""A picture of the scores of a text: a bar per token, as high as the token was surprising."""

import math
from pathlib import Path
from typing import Any

from headway.analysis.plotting import figure_text, fit_tick_labels, legend_entry, open_figure, set_title, shorten, theme
from headway.analysis.token_scores import TextScore

TOKENS_PER_ROW, MAX_PLOTTED = 30, 90  # bars beside each other, and in all
MAX_NUMBERED = 24  # bars up to which each has its number
MAX_LABEL = 14  # characters of a token under its bar


def plot(result: TextScore, file: str | Path, *, model: str = "") -> Path:
    """Write a picture of the surprisal of each token in bits, of the first `MAX_PLOTTED` tokens."""
    n_shown = min(len(result.tokens), MAX_PLOTTED)
    n_rows, n_columns = math.ceil(n_shown / TOKENS_PER_ROW), min(n_shown, TOKENS_PER_ROW)
    with open_figure(file, width=max(4.6, 1.2 + 0.3 * n_columns), height=1.0 + 2.1 * n_rows) as figure:
        draw(figure, result, model=model)
    return Path(file)


def draw(figure: Any, result: TextScore, *, model: str = "") -> None:
    """Draw the bars into an empty figure, `TOKENS_PER_ROW` beside each other. Tokens that the model would have chosen
    itself are hatched; a dashed line is the mean."""
    shown = result.tokens[:MAX_PLOTTED]
    rows = [shown[i : i + TOKENS_PER_ROW] for i in range(0, len(shown), TOKENS_PER_ROW)]
    panels = figure.subplots(len(rows), 1, sharey=True, squeeze=False)[:, 0]
    finite = [token.bits for token in shown if math.isfinite(token.bits)]
    highest = max([1e-3, *finite])
    mean = result.nats_per_token / math.log(2)
    t = theme()
    styles = {
        True: {"facecolor": t.background, "edgecolor": t.colour(0), "hatch": "////"},
        False: {"facecolor": t.colour(0), "edgecolor": t.colour(0)},
    }
    for axes, row in zip(panels, rows, strict=True):
        for x, token in enumerate(row):
            axes.bar(x, min(token.bits, 1.1 * highest), width=0.75, linewidth=0.8, **styles[token.rank == 1])
            if len(shown) <= MAX_NUMBERED or not math.isfinite(token.bits):
                value = f"{token.bits:.1f}" if math.isfinite(token.bits) else "∞"
                background = {"facecolor": t.background, "linewidth": 0, "pad": 0.5}  # the mean does not strike it out
                axes.annotate(value, (x, min(token.bits, 1.1 * highest)), (0, 4), textcoords="offset points",
                              horizontalalignment="center", fontsize=7, bbox=background)  # fmt: skip
        if math.isfinite(mean):
            axes.axhline(mean, color=t.colour(1), linestyle="--", linewidth=1)
        labels = [figure_text(token.token if len(token.token) <= MAX_LABEL else token.token[: MAX_LABEL - 1] + "…")
                  for token in row]  # fmt: skip
        axes.set_xticks(range(len(row)), labels=labels)
        axes.set_xlim(-0.6, min(len(shown), TOKENS_PER_ROW) - 0.4)
        axes.set_ylim(0, 1.2 * highest)
        axes.set_ylabel("surprisal (bits)")
        axes.tick_params(axis="x", length=0)
        axes.grid(axis="y")
    panels[-1].set_xlabel("token, in the order of the text")
    entries = []
    if any(token.rank != 1 for token in shown):
        entries.append(legend_entry("patch", **styles[False], label="another token was more likely"))
    if any(token.rank == 1 for token in shown):
        entries.append(legend_entry("patch", **styles[True], label="the most likely token"))
    if math.isfinite(mean):
        mean_label = f"mean of the text: {mean:.2f} bits"
        entries.append(legend_entry("line", color=t.colour(1), linestyle="--", linewidth=1, label=mean_label))
    figure.legend(handles=entries, loc="outside lower right", ncols=3 if len(shown) > 16 else 1)
    subject = f"{model}: −log2 p of each token" if model else "−log2 p of each token"
    if result.source is not None:
        subject += f", given “{shorten(result.source, 40)}”"
    cut = f"The first {len(shown)} of {len(result.tokens):,} tokens" if len(shown) < len(result.tokens) else ""
    set_title(figure, subject, cut)
    for axes in panels:
        fit_tick_labels([axes])

"""One distribution on its way through a pipeline, stage by stage: as numbers, as text, and as a picture."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headway.analysis.plotting import pyplot
from headway.errors import ConfigError
from headway.sampling import Pipeline


@dataclass(frozen=True)
class SamplerSteps:
    """Probabilities of the tokens shown after each stage; 0 where a token was removed."""

    stages: list[str]
    tokens: list[str]
    ids: list[int]
    p: list[list[float]]  # stage by stage
    n_alive: list[int]
    entropy: list[float]  # nats


def trace_samplers(
    logits: Tensor, pipe: Pipeline, *, spell: Callable[[int], str] = str, top: int = 12, **around: Any
) -> SamplerSteps:
    """Follow one row of logits (V,) through a pipeline; shown are the `top` most likely tokens of all stages."""
    if top < 1:
        raise ConfigError(f"top={top}: at least one token is shown")
    names, rows = [], []
    for name, row in pipe.explain(logits.reshape(1, -1), **around):
        names.append(name)
        rows.append(row[0].double().softmax(dim=-1))
    p = torch.stack(rows)  # (stages, V)
    likely = p.amax(dim=0).topk(min(top, p.shape[1])).indices
    ids: list[int] = likely[p[0][likely].argsort(descending=True, stable=True)].tolist()
    entropy = torch.special.entr(p).sum(dim=-1).tolist()
    return SamplerSteps(
        names, [spell(id) for id in ids], ids, p[:, ids].tolist(), (p > 0).sum(dim=-1).tolist(), entropy
    )


def as_text(shown: SamplerSteps) -> str:
    """A table: a row per token, a column per stage; · where it was removed."""
    widths = [max(9, len(name)) for name in shown.stages]
    label = max([9, *(len(repr(token)) for token in shown.tokens)])

    def line(name: str, cells: list[str]) -> str:
        return f"{name:{label}}  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))

    lines = [line("", shown.stages)]
    for i, token in enumerate(shown.tokens):
        lines.append(line(repr(token), [f"{row[i]:.4f}" if row[i] > 0 else "·" for row in shown.p]))
    lines.append(line("alive", [f"{n:,}" for n in shown.n_alive]))
    lines.append(line("entropy", [f"{value:.3f}" for value in shown.entropy]))
    return "\n".join(lines)


def draw(shown: SamplerSteps, file: str | Path) -> Path:
    """A panel per stage, a bar per token; removed tokens are crosses."""
    plt = pyplot()
    n = len(shown.stages)
    size = (1.2 + 2.1 * n, 1.2 + 0.26 * len(shown.tokens))
    figure, panels = plt.subplots(1, n, figsize=size, sharey=True, layout="constrained", squeeze=False)
    places = list(range(len(shown.tokens)))[::-1]
    most = max(max(row) for row in shown.p)
    for axes, name, row, alive in zip(panels[0], shown.stages, shown.p, shown.n_alive, strict=True):
        axes.barh(places, row, color="#4477aa")
        gone = [place for place, p in zip(places, row, strict=True) if p == 0]
        axes.plot([0.02 * most] * len(gone), gone, "x", color="#cc3311", markersize=5)
        axes.set(title=f"{name}\n{alive:,} alive", xlim=(0, 1.05 * most), xlabel="probability")
        axes.title.set_fontsize(9)
        axes.grid(axis="x", alpha=0.3)
    labels = [repr(token).replace("$", r"\$") for token in shown.tokens]
    panels[0][0].set_yticks(places, labels=labels, fontsize=8)
    figure.savefig(file, dpi=150)
    plt.close(figure)
    return Path(file)

"""A next-token distribution after each stage of a sampler pipeline: as numbers, as text, and as a plot."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headway.analysis.plotting import escape_math, pyplot, save_figure
from headway.errors import ConfigError
from headway.generation.sampling_params import eos_token_ids, make_pipeline
from headway.models.base import eval_mode, language_model
from headway.sampling import PerRowPipeline, Pipeline


@dataclass(frozen=True)
class SamplerSteps:
    """Probabilities of the most likely tokens after each stage; 0 once a token is removed."""

    stages: list[str]
    tokens: list[str]
    ids: list[int]
    p: list[list[float]]  # (stages, tokens)
    n_alive: list[int]  # tokens of the whole vocabulary that are not removed
    entropy: list[float]  # nats
    settings: list[dict[str, Any]]  # of each sampler


def trace_samplers(
    logits: Tensor,
    pipeline: Pipeline,
    *,
    history: Sequence[int] = (),
    decode: Callable[[int], str] = str,
    top: int = 12,
    seed: int = 0,
) -> SamplerSteps:
    """Follow logits (V,) through a pipeline, and keep the `top` tokens that are most likely at any stage.

    `history` holds the ids of the prompt, for penalties; `decode` turns an id into text; `seed` is for samplers that
    draw at random (xtc).
    """
    if top < 1:
        raise ConfigError(f"top={top}: show at least 1 token")
    stages, distributions = [], []
    steps = pipeline.explain(
        logits.reshape(1, -1), history=[list(history)], n_prompt=[len(history)], state=pipeline.start(1, seed)
    )
    for stage, row in steps:
        stages.append(stage)
        distributions.append(row[0].double().softmax(dim=-1))
    p = torch.stack(distributions)  # (stages, V)
    likely = p.amax(dim=0).topk(min(top, p.shape[1])).indices
    ids: list[int] = likely[p[0][likely].argsort(descending=True, stable=True)].tolist()
    return SamplerSteps(
        stages=stages,
        tokens=[decode(id) for id in ids],
        ids=ids,
        p=p[:, ids].tolist(),
        n_alive=(p > 0).sum(dim=-1).tolist(),
        entropy=torch.special.entr(p).sum(dim=-1).tolist(),
        settings=pipeline.stages,
    )


def trace_next_token(
    model: Any,
    prompt: str,
    *,
    sampler_preset: str = "default",
    sampler_order: Sequence[str] | None = None,
    top: int = 12,
    seed: int = 0,
    on_warning: Callable[[Pipeline | PerRowPipeline], None] = lambda pipeline: None,
    **settings: Any,
) -> SamplerSteps:
    """Follow the distribution of the token after a prompt through samplers.

        trace_next_token(model, "Once upon", top_p=0.9, temperature=1.5)

    All samplers are off unless `settings` turn them on; the temperature is 1. `on_warning` gets the pipeline, whose
    `notes` and `warnings` say which settings have no effect.
    """
    language_model(model)
    tokenizer = model.tokenizer
    settings.setdefault("temperature", 1.0)
    pipeline = make_pipeline(tokenizer, eos_token_ids(model), sampler_preset, sampler_order, **settings)
    on_warning(pipeline)
    if not isinstance(pipeline, Pipeline):
        raise ConfigError(f"temperature={settings['temperature']}: one prompt takes one value")
    history = tokenizer.encode_prompt(prompt)
    with eval_mode(model), torch.inference_mode():
        logits = model(torch.tensor([history], device=model.device))[0, -1, : tokenizer.vocab_size].float().cpu()
    return trace_samplers(
        logits, pipeline, history=history, decode=lambda id: tokenizer.decode([id]), top=top, seed=seed
    )


def render_text(steps: SamplerSteps) -> str:
    """A table with a row per token and a column per stage; · once a token is removed."""
    widths = [max(9, len(name)) for name in steps.stages]
    label_width = max([9, *(len(repr(token)) for token in steps.tokens)])

    def line(label: str, cells: list[str]) -> str:
        columns = "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        return f"{label:{label_width}}  {columns}"

    lines = [line("", steps.stages)]
    for i, token in enumerate(steps.tokens):
        lines.append(line(repr(token), [f"{p[i]:.4f}" if p[i] > 0 else "·" for p in steps.p]))
    lines.append(line("alive", [f"{n:,}" for n in steps.n_alive]))
    lines.append(line("entropy", [f"{value:.3f}" for value in steps.entropy]))
    return "\n".join(lines)


def plot(steps: SamplerSteps, file: str | Path) -> Path:
    """A panel per stage, a bar per token; removed tokens are crosses."""
    n_stages, n_tokens = len(steps.stages), len(steps.tokens)
    figure, panels = pyplot().subplots(
        1,
        n_stages,
        figsize=(1.2 + 2.1 * n_stages, 1.2 + 0.26 * n_tokens),
        sharey=True,
        layout="constrained",
        squeeze=False,
    )
    heights = list(range(n_tokens))[::-1]
    max_p = max(max(p) for p in steps.p)
    for axes, stage, p, n_alive in zip(panels[0], steps.stages, steps.p, steps.n_alive, strict=True):
        axes.barh(heights, p, color="#4477aa")
        removed = [height for height, value in zip(heights, p, strict=True) if value == 0]
        axes.plot([0.02 * max_p] * len(removed), removed, "x", color="#cc3311", markersize=5)
        axes.set(title=f"{stage}\n{n_alive:,} alive", xlim=(0, 1.05 * max_p), xlabel="probability")
        axes.title.set_fontsize(9)
        axes.grid(axis="x", alpha=0.3)
    labels = [escape_math(repr(token)) for token in steps.tokens]
    panels[0][0].set_yticks(heights, labels=labels, fontsize=8)
    return save_figure(figure, file)

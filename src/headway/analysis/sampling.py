"""A next-token distribution after each stage of a sampler pipeline: as numbers, as text, and as a plot."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headway.analysis.plotting import figure_text, legend_entry, open_figure, set_title, shorten, theme
from headway.analysis.token_labels import token_labels
from headway.errors import ConfigError
from headway.generation.sampling_params import eos_token_ids, make_pipeline
from headway.models.adapter import language_model
from headway.models.base import eval_mode
from headway.sampling import PerRowPipeline, Pipeline
from headway.sampling.specs import SAMPLER_SPECS

MAX_TOKEN = 20  # characters of a token's label
MAX_TITLE_TEXT = 40  # characters of the prompt in the title
MAX_COLUMNS = 4  # panels beside each other


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
    prompt: str | None = None  # the text before the token; None without a model

    @property
    def is_by_temperature(self) -> bool:
        """Whether the stages after the model's own are temperatures side by side, not samplers one after the other."""
        return len(self.stages) > 1 and not self.settings

    @property
    def panels(self) -> list[int]:
        """The stages that a picture has a panel for: temperatures are compared with the model's own, in each panel."""
        return list(range(int(self.is_by_temperature), len(self.stages)))

    @property
    def stage_titles(self) -> list[str]:
        """The stages with their settings: "top_p=0.9", "dry(multiplier=0.8, base=1.75)"."""
        settings = {setting["stage"]: {k: v for k, v in setting.items() if k != "stage"} for setting in self.settings}
        return [_stage_title(stage, settings.get(stage, {})) for stage in self.stages]


def _stage_title(stage: str, settings: dict[str, Any]) -> str:
    parameters = SAMPLER_SPECS[stage].parameters if stage in SAMPLER_SPECS else {}
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    values = {name: shorten(f"{value:g}" if isinstance(value, float) else str(value), 12)
              for name, value in settings.items() if value is not None and value != defaults.get(name)}  # fmt: skip
    if len(values) == 1:
        return f"{stage}={next(iter(values.values()))}"
    return f"{stage}({', '.join(f'{name}={value}' for name, value in values.items())})" if values else stage


def trace_samplers(
    logits: Tensor,
    pipeline: Pipeline,
    *,
    history: Sequence[int] = (),
    decode: Callable[[int], str] = str,
    top: int = 12,
    seed: int = 0,
    prompt: str | None = None,
) -> SamplerSteps:
    """Follow logits (V,) through a pipeline, and keep the `top` tokens that are most likely at any stage.

    `history` holds the ids of the prompt, for penalties; `decode` turns an id into text; `seed` is for samplers that
    draw at random (xtc); `prompt` is named in the picture.
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
        prompt=prompt,
    )


def trace_temperatures(
    logits: Tensor,
    temperatures: Sequence[float],
    *,
    decode: Callable[[int], str] | None = None,
    top: int = 12,
    prompt: str | None = None,
) -> SamplerSteps:
    """The distribution of logits (V,) at several temperatures side by side, each softmax(logits / T).

    The first stage is the model's own, at temperature 1. Without `decode`, tokens are named by their logits.
    """
    for temperature in temperatures:
        if not temperature >= 0:
            raise ConfigError(f"temperature={temperature} must be at least 0; 0 is greedy")
    pipelines = [Pipeline(temperature=float(temperature)) for temperature in temperatures]
    name = decode or (lambda id: f"{float(logits[id]):g}")
    traces = [trace_samplers(logits, pipeline, decode=name, top=len(logits)) for pipeline in pipelines]
    if top < 1:
        raise ConfigError(f"top={top}: show at least 1 token")
    model, n_shown = traces[0], min(top, len(logits))  # the most likely tokens, in the same order at every temperature
    last = [dict(zip(trace.ids, trace.p[-1], strict=True)) for trace in traces]
    return SamplerSteps(
        stages=["model", *(f"T={temperature:g}" for temperature in temperatures)],
        tokens=model.tokens[:n_shown],
        ids=model.ids[:n_shown],
        p=[model.p[0][:n_shown], *([p_of[id] for id in model.ids[:n_shown]] for p_of in last)],
        n_alive=[model.n_alive[0], *(trace.n_alive[-1] for trace in traces)],
        entropy=[model.entropy[0], *(trace.entropy[-1] for trace in traces)],
        settings=[],
        prompt=prompt,
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

    The last stage is the distribution that `generate` draws from with the same settings: all samplers are off unless
    `settings` turn them on, but for the temperature, which is `DEFAULT_TEMPERATURE`. `on_warning` gets the pipeline,
    whose `notes` and `warnings` say which settings have no effect.
    """
    next_logits, history, decode = next_token_logits(model, prompt)
    tokenizer = model.tokenizer
    pipeline = make_pipeline(tokenizer, eos_token_ids(model), sampler_preset, sampler_order, **settings)
    on_warning(pipeline)
    if not isinstance(pipeline, Pipeline):
        raise ConfigError(f"temperature={settings.get('temperature')}: one prompt takes one value")
    return trace_samplers(next_logits, pipeline, history=history, decode=decode, top=top, seed=seed, prompt=prompt)


def next_token_logits(model: Any, prompt: str) -> tuple[Tensor, list[int], Callable[[int], str]]:
    """The logits (V,) of the token after a prompt, the ids of the prompt, and a function that names a token."""
    language_model(model)
    tokenizer = model.tokenizer
    history = tokenizer.encode_prompt(prompt)
    with eval_mode(model), torch.inference_mode():
        logits = model(torch.tensor([history], device=model.device))[0, -1, : tokenizer.vocab_size].float().cpu()

    def decode(id: int) -> str:  # special tokens decode to nothing
        return tokenizer.decode([id]) or token_labels(tokenizer, [id])[0]

    return logits, history, decode


def render_text(steps: SamplerSteps, *, width: int = 80, digits: int = 4) -> str:
    """A table with a row per token and a column per stage; · once a token is removed. Stages that do not fit into
    `width` characters continue below. Probabilities have `digits` decimals."""
    label_width = max([9, *map(len, _labels(steps))])
    blocks: list[list[int]] = [[]]
    for i in range(len(steps.stages)):
        if blocks[-1] and label_width + sum(2 + _column_width(steps, j) for j in (*blocks[-1], i)) > width:
            blocks.append([])
        blocks[-1].append(i)
    return "\n\n".join(_render_stages(steps, block, label_width, digits) for block in blocks)


def _labels(steps: SamplerSteps) -> list[str]:
    """The tokens in quotes, long ones cut; without a model, their numbers."""
    if steps.prompt is None:
        return steps.tokens
    return [repr(token if len(token) <= MAX_TOKEN else token[: MAX_TOKEN - 1] + "…") for token in steps.tokens]


def _column_width(steps: SamplerSteps, stage: int) -> int:
    return max(9, len(steps.stages[stage]))


def _render_stages(steps: SamplerSteps, stages: Sequence[int], label_width: int, digits: int) -> str:
    """The table of some of the stages, given by their indices."""

    def line(label: str, cells: Sequence[str]) -> str:
        columns = (f"  {cells[i]:>{_column_width(steps, i)}}" for i in stages)
        return f"{label:{label_width}}{''.join(columns)}"

    lines = [line("", steps.stages)]
    for i, label in enumerate(_labels(steps)):
        lines.append(line(label, [f"{p[i]:.{digits}f}" if p[i] > 0 else "·" for p in steps.p]))
    lines.append(line("alive", [f"{n:,}" for n in steps.n_alive]))
    lines.append(line("entropy", [f"{value:.3f}" for value in steps.entropy]))
    return "\n".join(lines)


def plot(steps: SamplerSteps, file: str | Path, *, model: str = "") -> Path:
    """Write a picture with a panel per stage and a bar per token. `model` is named in the title."""
    n_rows, n_columns = _grid(len(steps.panels))
    width, height = 1.4 + 1.9 * n_columns, 1.0 + n_rows * (0.75 + 0.19 * len(steps.tokens))
    with open_figure(file, width=width, height=height) as figure:
        draw(figure, steps, model=model)
    return Path(file)


def _grid(n_stages: int) -> tuple[int, int]:
    n_rows = math.ceil(n_stages / MAX_COLUMNS)
    return n_rows, math.ceil(n_stages / n_rows)


def draw(figure: Any, steps: SamplerSteps, *, model: str = "") -> None:
    """Draw the distributions into an empty figure. Each panel also has the model's own, in grey."""
    n_panels = len(steps.panels)
    n_rows, n_columns = _grid(n_panels)
    panels = figure.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False)
    heights = list(range(len(steps.tokens)))[::-1]
    max_p = max(max(p) for p in steps.p)
    for axes, stage in zip(panels.flat, steps.panels, strict=False):
        title, p, n_alive = steps.stage_titles[stage], steps.p[stage], steps.n_alive[stage]
        left = f"{n_alive:,} token{'s' * (n_alive != 1)} left"
        subtitle = f"entropy {steps.entropy[stage]:.3f} nats" if steps.is_by_temperature else left
        axes.barh(heights, steps.p[0], height=0.8, color=theme().light_grey)
        axes.barh(heights, p, height=0.5, color=theme().colour(0))
        removed = [height for height, value in zip(heights, p, strict=True) if value == 0]
        axes.plot([0.03 * max_p] * len(removed), removed, "x", color=theme().colour(1), markersize=5, zorder=3)
        axes.set_title(f"{figure_text(shorten(title, 30))}\n{subtitle}", fontsize=8)
        axes.set_xlim(0, 1.05 * max_p)
        axes.grid(axis="x")
        axes.locator_params(axis="x", nbins=4)
        axes.tick_params(axis="y", length=0)
    for i, axes in enumerate(panels.flat):
        if i >= n_panels:
            axes.remove()
        elif i + n_columns >= n_panels:  # nothing below it
            axes.tick_params(labelbottom=True)
            axes.set_xlabel("probability")
    panels[0][0].set_yticks(heights, labels=[figure_text(label) for label in _labels(steps)])
    if steps.is_by_temperature:
        for axes in panels[:, 0]:
            axes.set_ylabel("logit" if steps.prompt is None else "next token")
    labels = ("T=1", "at this T") if steps.is_by_temperature else ("model", "after the sampler")
    colours = (theme().light_grey, theme().colour(0))
    entries = [legend_entry("patch", color=c, label=label) for c, label in zip(colours, labels, strict=True)]
    if any(value == 0 for p in steps.p for value in p):
        entries.append(legend_entry("line", color=theme().colour(1), marker="x", linestyle="", label="removed"))
    figure.legend(handles=entries, loc="outside lower right", ncols=3)
    prompt = "" if steps.prompt is None else f"after “{shorten(steps.prompt, MAX_TITLE_TEXT)}”"
    subject = f"{model}: next token {prompt}" if model else f"Next token {prompt}" if prompt else "The given logits"
    set_title(figure, f"{subject}, {'by temperature' if steps.is_by_temperature else 'sampler by sampler'}")

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
    language_model(model)
    tokenizer = model.tokenizer
    pipeline = make_pipeline(tokenizer, eos_token_ids(model), sampler_preset, sampler_order, **settings)
    on_warning(pipeline)
    if not isinstance(pipeline, Pipeline):
        raise ConfigError(f"temperature={settings.get('temperature')}: one prompt takes one value")
    history = tokenizer.encode_prompt(prompt)
    with eval_mode(model), torch.inference_mode():
        logits = model(torch.tensor([history], device=model.device))[0, -1, : tokenizer.vocab_size].float().cpu()

    def decode(id: int) -> str:  # special tokens decode to nothing
        return tokenizer.decode([id]) or token_labels(tokenizer, [id])[0]

    return trace_samplers(logits, pipeline, history=history, decode=decode, top=top, seed=seed, prompt=prompt)


def render_text(steps: SamplerSteps, *, width: int = 80) -> str:
    """A table with a row per token and a column per stage; · once a token is removed. Stages that do not fit into
    `width` characters continue below."""
    label_width = max([9, *map(len, _labels(steps))])
    blocks: list[list[int]] = [[]]
    for i in range(len(steps.stages)):
        if blocks[-1] and label_width + sum(2 + _column_width(steps, j) for j in (*blocks[-1], i)) > width:
            blocks.append([])
        blocks[-1].append(i)
    return "\n\n".join(_render_stages(steps, block, label_width) for block in blocks)


def _labels(steps: SamplerSteps) -> list[str]:
    """The tokens in quotes, long ones cut; without a model, their numbers."""
    if steps.prompt is None:
        return steps.tokens
    return [repr(token if len(token) <= MAX_TOKEN else token[: MAX_TOKEN - 1] + "…") for token in steps.tokens]


def _column_width(steps: SamplerSteps, stage: int) -> int:
    return max(9, len(steps.stages[stage]))


def _render_stages(steps: SamplerSteps, stages: Sequence[int], label_width: int) -> str:
    """The table of some of the stages, given by their indices."""

    def line(label: str, cells: Sequence[str]) -> str:
        columns = (f"  {cells[i]:>{_column_width(steps, i)}}" for i in stages)
        return f"{label:{label_width}}{''.join(columns)}"

    lines = [line("", steps.stages)]
    for i, label in enumerate(_labels(steps)):
        lines.append(line(label, [f"{p[i]:.4f}" if p[i] > 0 else "·" for p in steps.p]))
    lines.append(line("alive", [f"{n:,}" for n in steps.n_alive]))
    lines.append(line("entropy", [f"{value:.3f}" for value in steps.entropy]))
    return "\n".join(lines)


def plot(steps: SamplerSteps, file: str | Path, *, model: str = "") -> Path:
    """Write a picture with a panel per stage and a bar per token. `model` is named in the title."""
    n_rows, n_columns = _grid(len(steps.stages))
    width, height = 1.4 + 1.9 * n_columns, 1.0 + n_rows * (0.75 + 0.19 * len(steps.tokens))
    with open_figure(file, width=width, height=height) as figure:
        draw(figure, steps, model=model)
    return Path(file)


def _grid(n_stages: int) -> tuple[int, int]:
    n_rows = math.ceil(n_stages / MAX_COLUMNS)
    return n_rows, math.ceil(n_stages / n_rows)


def draw(figure: Any, steps: SamplerSteps, *, model: str = "") -> None:
    """Draw the distributions into an empty figure. Each panel also has the model's own, in grey."""
    n_rows, n_columns = _grid(len(steps.stages))
    panels = figure.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False)
    heights = list(range(len(steps.tokens)))[::-1]
    max_p = max(max(p) for p in steps.p)
    for axes, title, p, n_alive in zip(panels.flat, steps.stage_titles, steps.p, steps.n_alive, strict=False):
        axes.barh(heights, steps.p[0], height=0.8, color=theme().light_grey)
        axes.barh(heights, p, height=0.5, color=theme().colour(0))
        removed = [height for height, value in zip(heights, p, strict=True) if value == 0]
        axes.plot([0.03 * max_p] * len(removed), removed, "x", color=theme().colour(1), markersize=5, zorder=3)
        axes.set_title(f"{figure_text(shorten(title, 30))}\n{n_alive:,} token{'s' * (n_alive != 1)} left", fontsize=8)
        axes.set_xlim(0, 1.05 * max_p)
        axes.grid(axis="x")
        axes.locator_params(axis="x", nbins=4)
        axes.tick_params(axis="y", length=0)
    for i, axes in enumerate(panels.flat):
        if i >= len(steps.stages):
            axes.remove()
        elif i + n_columns >= len(steps.stages):  # nothing below it
            axes.tick_params(labelbottom=True)
            axes.set_xlabel("probability")
    panels[0][0].set_yticks(heights, labels=[figure_text(label) for label in _labels(steps)])
    entries = [
        legend_entry("patch", color=theme().light_grey, label="model"),
        legend_entry("patch", color=theme().colour(0), label="after the sampler"),
    ]
    if any(value == 0 for p in steps.p for value in p):
        entries.append(legend_entry("line", color=theme().colour(1), marker="x", linestyle="", label="removed"))
    figure.legend(handles=entries, loc="outside lower right", ncols=3)
    prompt = "" if steps.prompt is None else f"after “{shorten(steps.prompt, MAX_TITLE_TEXT)}”"
    subject = f"{model}: next token {prompt}" if model else f"Next token {prompt}" if prompt else "The given logits"
    set_title(figure, f"{subject}, sampler by sampler")

"""What both searches do first: read the prompts, and check which stages may act on the way."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headway.errors import ConfigError, InputError
from headway.models.base import LanguageModel
from headway.sampling import PerRowPipeline, Pipeline
from headway.sampling.parameters import to_python

Prompts = Tensor | Sequence[int] | Sequence[Sequence[int]]


def prompt_lists(prompt: Prompts) -> list[list[int]]:
    """A row or rows of token ids, as lists."""
    if isinstance(prompt, str) or not (hasattr(prompt, "tolist") or isinstance(prompt, Sequence)):
        raise InputError(
            f"prompt {prompt!r}: token ids, not text; a tokenizer makes them: model.tokenizer.prompt(text)"
        )
    found = to_python(prompt)
    rows: list[Any] = [row if isinstance(row, int) else list(row) for row in found]
    rows = [rows] if rows and all(isinstance(row, int) for row in rows) else rows
    if not rows or not all(isinstance(row, list) and row and all(isinstance(id, int) for id in row) for row in rows):
        raise InputError(f"prompt {prompt!r}: one row of token ids or several, at least one token in each")
    return rows


def prefill(model: Any, prompts: list[list[int]], state: Any, room: int) -> tuple[Tensor, Any]:
    """The logits (B, V) after the prompts, and the state. Models that keep only the heart of the contract, `start`,
    `step` and `reorder`, serve as well."""
    lengths = [len(prompt) for prompt in prompts]
    is_ragged, is_full = len(set(lengths)) > 1, isinstance(model, LanguageModel)
    if is_ragged and not is_full:
        raise InputError(f"prompts of lengths {sorted(set(lengths))}: this model takes rows of one length at a time")
    device = model.device if is_full else "cpu"
    rows = [torch.tensor(prompt, dtype=torch.long) for prompt in prompts]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)
    if state is None:
        state = model.start(batch_size=len(prompts), **({"capacity": room} if is_full and room else {}))
    if not is_full:
        return decode_step(model, ids, state)
    logits, state = model.step(ids, state, torch.tensor(lengths) if is_ragged else None, last=True)
    return logits[:, -1], state


def decode_step(model: Any, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
    """One step with (B, T) tokens → logits after the last (B, V)."""
    logits, state = model.step(ids, state)
    return logits if logits.dim() == 2 else logits[:, -1], state


def search_processors(
    pipeline: Pipeline | PerRowPipeline | Sequence[Mapping[str, Any]] | None, search: str, n_prompts: int
) -> Pipeline | PerRowPipeline:
    """The constraints and penalties that act during a search; anything else has no meaning there."""
    if isinstance(pipeline, PerRowPipeline):
        return Pipeline.for_rows([search_processors(pipe, search, 1) for pipe in pipeline.pipelines])
    pipe = pipeline if isinstance(pipeline, Pipeline) else Pipeline(pipeline)
    if pipe.n_rows not in (None, n_prompts):
        raise ConfigError(f"settings for {pipe.n_rows} rows, and {n_prompts} prompts: one value, or one per prompt")
    for call in pipe.samplers:
        if call.sampler.group not in ("constraint", "penalty") and not call.is_off:
            raise ConfigError(
                f"{call.name} with {search}: only bias, constraints and penalties act there, since nothing is drawn at "
                f"random; leave it out"
            )
    return pipe.only("constraint", "penalty")


def token_id_set(ids: Any) -> frozenset[int]:
    """Token ids from a list, set, tensor or one number; None: none."""
    found = to_python(ids)
    found = () if found is None else [found] if isinstance(found, int) else [to_python(id) for id in found]
    if not all(isinstance(id, int) for id in found):
        raise InputError(f"{ids!r}: token ids, which are whole numbers")
    return frozenset(found)


def is_number(value: Any) -> bool:
    value = to_python(value)
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_int(name: str, value: Any, low: int, high: int | None = None) -> None:
    value = to_python(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
        limit = f"of {low} or more" if high is None else f"from {low} to {high}"
        raise ConfigError(f"{name}={value!r} must be a whole number {limit}")

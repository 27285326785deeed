"""What all searches share: prompts as lists of ids, prefill, allowed samplers, and checks of arguments."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from headway.errors import ConfigError, InputError
from headway.models.base import LanguageModel, described
from headway.nn.padding import pad_ids
from headway.sampling import PerRowPipeline, Pipeline
from headway.sampling.parameters import to_python

Prompts = Tensor | Sequence[int] | Sequence[Sequence[int]]


def prompt_lists(prompt: Prompts) -> list[list[int]]:
    """One prompt or several, as lists of token ids."""
    if isinstance(prompt, str) or not (hasattr(prompt, "tolist") or isinstance(prompt, Sequence)):
        raise InputError(
            f"prompt {prompt!r} must be a list of token ids; encode text with model.tokenizer.encode_prompt(text)"
        )
    rows: list[Any] = [row if isinstance(row, int) else list(row) for row in to_python(prompt)]
    rows = [rows] if rows and all(isinstance(row, int) for row in rows) else rows
    if not rows or not all(isinstance(row, list) and row and all(isinstance(id, int) for id in row) for row in rows):
        raise InputError(f"prompt {prompt!r} must be one or more rows of token ids, with at least one token in each")
    return rows


def prefill(model: Any, prompts: list[list[int]], state: Any, capacity: int) -> tuple[Tensor, Any]:
    """Process all prompts in one step: the logits (B, V) after each, and the state.

    Models that implement only the core of the contract (`start`, `step`, `reorder`) work too, with prompts of one
    length.
    """
    lengths = {len(prompt) for prompt in prompts}
    is_ragged, is_language_model = len(lengths) > 1, isinstance(model, LanguageModel)
    if is_ragged and not is_language_model:
        raise InputError(
            f"prompts have lengths {sorted(lengths)}, and {described(model)} takes rows of equal length: "
            f"search one prompt at a time"
        )
    ids, row_lengths = pad_ids(prompts, model.device if is_language_model else "cpu")
    if state is None:
        state = model.start(batch_size=len(prompts), **({"capacity": capacity} if is_language_model else {}))
    if not is_language_model:
        return decode_step(model, ids, state)
    logits, state = model.step(ids, state, row_lengths if is_ragged else None, last=True)
    return logits[:, -1], state


def decode_step(model: Any, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
    """One step with the tokens (B, T): the logits (B, V) after the last, and the state."""
    logits, state = model.step(ids, state)
    return logits if logits.dim() == 2 else logits[:, -1], state


def search_processors(
    pipeline: Pipeline | PerRowPipeline | Sequence[Mapping[str, Any]] | None, search: str, n_prompts: int
) -> Pipeline | PerRowPipeline:
    """The constraints and penalties of a pipeline. A search refuses any other sampler: it draws nothing at random."""
    if isinstance(pipeline, PerRowPipeline):
        return Pipeline.for_rows([search_processors(pipe, search, 1) for pipe in pipeline.pipelines])
    pipe = pipeline if isinstance(pipeline, Pipeline) else Pipeline(pipeline)
    check_row_count(pipe, n_prompts, "prompt")
    for call in pipe.samplers:
        if call.sampler.group not in ("constraint", "penalty") and not call.is_off:
            raise ConfigError(
                f"{call.name} with {search}: only bias, constraints and penalties apply, since a search draws nothing "
                f"at random; leave it out"
            )
    return pipe.only("constraint", "penalty")


def check_row_count(pipe: Pipeline | PerRowPipeline, n_rows: int, noun: str) -> None:
    """A setting has one value for all rows, or one per row."""
    if pipe.n_rows not in (None, n_rows):
        raise ConfigError(f"settings for {pipe.n_rows} rows, but {n_rows} {noun}s: give one value, or one per {noun}")


def token_id_set(ids: Any) -> frozenset[int]:
    """Token ids from a list, a set, a tensor, a single number or None."""
    values = to_python(ids)
    values = () if values is None else [values] if isinstance(values, int) else [to_python(id) for id in values]
    if not all(isinstance(id, int) for id in values):
        raise InputError(f"{ids!r} must be token ids, which are integers")
    return frozenset(values)


def is_number(value: Any) -> bool:
    value = to_python(value)
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_int(name: str, value: Any, low: int, high: int | None = None) -> None:
    value = to_python(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
        bounds = f"of {low} or more" if high is None else f"from {low} to {high}"
        raise ConfigError(f"{name}={value!r} must be a whole number {bounds}")

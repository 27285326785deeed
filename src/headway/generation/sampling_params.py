"""From sampling parameters to a pipeline: `temperature=0.7, top_p=0.9, …` in, samplers in order out.

Without any setting the pipeline is a temperature of `DEFAULT_TEMPERATURE`. Settings that name tokens get their defaults
from the tokenizer: which tokens are EOS, which ones break a repetition, and which ones are protected.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

from headway.errors import ConfigError
from headway.generation.inputs import token_id_set
from headway.models.base import LanguageModel, Seq2SeqLM, tokenizer_of
from headway.sampling import FLAT_NAMES, GREEDY_BELOW, SAMPLERS, PerRowPipeline, Pipeline
from headway.sampling.parameters import to_python
from headway.sampling.pipeline import unused_settings
from headway.sampling.specs import flat_name
from headway.tokenizers import Tokenizer

T = TypeVar("T")
PerPrompt: TypeAlias = T | Sequence[T]  # a setting: one value for all prompts, or one per prompt

DEFAULT_TEMPERATURE = 0.8
DEFAULT_DRY_BREAKERS = ("\n", ":", '"', "*")  # text across which `dry` matches no repetition


def given(**settings: Any) -> dict[str, Any]:
    """The settings that are not None."""
    return {name: value for name, value in settings.items() if value is not None}


def make_pipeline(
    tokenizer: Tokenizer,
    eos_ids: Iterable[int],
    sampler_preset: str = "default",
    sampler_order: Sequence[str] | None = None,
    *,
    temperature: float | Sequence[float] | None = None,
    do_sample: bool = True,
    **settings: Any,
) -> Pipeline | PerRowPipeline:
    """Build the pipeline for these settings, with tokenizer-dependent defaults filled in.

    A temperature of 0 (or `do_sample=False`) is greedy; in a list of temperatures, only for those rows. Settings have
    flat names (`dry_multiplier=0.8`) or are a table per sampler (`dry={"multiplier": 0.8}`).
    """
    temperature, settings = to_python(temperature), _flatten(settings)
    if isinstance(temperature, list) and any(_is_greedy(value) for value in temperature):
        rows = zip(temperature, _settings_by_row(settings, len(temperature)), strict=True)
        return Pipeline.for_rows([
            make_pipeline(
                tokenizer,
                eos_ids,
                sampler_preset,
                sampler_order,
                temperature=row_temperature,
                do_sample=do_sample,
                **row_settings,
            )
            for row_temperature, row_settings in rows
        ])  # fmt: skip
    has_dynamic_temperature = any(
        name.startswith("dynamic_temperature") for name, value in settings.items() if value is not None
    )
    is_in_order = sampler_order is None or "temperature" in sampler_order
    if temperature is None and is_in_order and not has_dynamic_temperature:
        temperature = DEFAULT_TEMPERATURE
    settings["temperature"] = temperature
    _fill_token_defaults(settings, tokenizer, eos_ids)
    pipe = Pipeline(preset=None if sampler_order is not None else sampler_preset, order=sampler_order, **settings)
    for call in pipe.samplers:
        if call.name == "logit_bias":
            check_token_ids([id for row in call.values["bias"] for id, _ in row], tokenizer.vocab_size)
    return _make_greedy(pipe, settings) if not do_sample or _is_greedy(temperature) else pipe


def _is_greedy(temperature: Any) -> bool:
    return isinstance(temperature, int | float) and temperature < GREEDY_BELOW


def _make_greedy(pipe: Pipeline, settings: dict[str, Any]) -> Pipeline:
    """The pipeline without its filters, with a note that names them."""
    filters = [call.name for call in pipe.samplers if call.sampler.group == "filter" and not call.is_off]
    pipe = pipe.greedy()
    pipe.notes = unused_settings(settings)
    if filters:
        pipe.notes.append(f"greedy decoding ignores {', '.join(filters)}")
    return pipe


def _fill_token_defaults(settings: dict[str, Any], tokenizer: Tokenizer, eos_ids: Iterable[int]) -> None:
    """Fill in, in place, the token ids that settings leave to the tokenizer."""
    if settings.get("min_new_tokens"):
        settings.setdefault("min_new_tokens_eos_ids", sorted(eos_ids))
    if settings.get("dry_multiplier") is not None:
        settings["dry_breakers"] = _breaker_ids(tokenizer, settings.get("dry_breakers"))
    if settings.get("xtc_probability") is not None and settings.get("xtc_protected") is None:
        settings["xtc_protected"] = sorted({*eos_ids, *tokens_containing(tokenizer, ("\n",))})


def _flatten(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings by their flat names, whether they came flat or as one table per sampler."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        parameters = SAMPLERS[name].parameters if name in SAMPLERS else {}
        if isinstance(value, Mapping) and set(value) & set(parameters):
            flat |= {flat_name(name, parameter): to_python(v) for parameter, v in value.items()}
        else:
            flat[name] = to_python(value)
    return flat


def _settings_by_row(settings: dict[str, Any], n_rows: int) -> Iterator[dict[str, Any]]:
    """The settings of each row; a setting may have one value for all rows or one per row."""
    per_row = set()
    for name, value in settings.items():
        sampler, parameter = FLAT_NAMES.get(name, ("", ""))
        if value is not None and sampler and SAMPLERS[sampler].parameters[parameter].is_per_row(value):
            if len(value) != n_rows:
                raise ConfigError(
                    f"{name} has {len(value)} values, temperature {n_rows}: give one value, or one per row"
                )
            per_row.add(name)
    for i in range(n_rows):
        yield {name: value[i] if name in per_row else value for name, value in settings.items()}


def _breaker_ids(tokenizer: Tokenizer, breakers: Any) -> list[Any]:
    """Token ids from ids and texts; a text stands for every token that contains it. A list of lists is one per row."""
    breakers = [breakers] if isinstance(breakers, str) else breakers
    if breakers is None:
        return sorted(tokens_containing(tokenizer, DEFAULT_DRY_BREAKERS))
    if any(isinstance(row, list | tuple | set) for row in breakers):
        return [_breaker_ids(tokenizer, row) for row in breakers]
    texts = [text for text in breakers if isinstance(text, str)]
    for text in texts:
        if not tokens_containing(tokenizer, (text,)):
            raise ConfigError(
                f"dry_breakers: no token contains {text!r}, so it can break no repetition; breakers are single tokens"
            )
    ids = [id for id in breakers if not isinstance(id, str)]
    return sorted({*ids, *tokens_containing(tokenizer, tuple(texts))})


@lru_cache(maxsize=8)
def tokens_containing(tokenizer: Tokenizer, texts: tuple[str, ...]) -> tuple[int, ...]:
    """Every token whose text contains one of these texts."""
    if not texts:
        return ()
    pieces = (tokenizer.decode([id]) for id in range(tokenizer.vocab_size))
    return tuple(id for id, piece in enumerate(pieces) if any(text in piece for text in texts))


def check_token_ids(ids: Iterable[int], vocab_size: int) -> frozenset[int]:
    """The ids as a set, if all are in the vocabulary."""
    id_set = token_id_set(ids)
    for id in id_set:
        if not 0 <= id < vocab_size:
            raise ConfigError(f"there is no token {id}: this vocabulary has ids 0 to {vocab_size - 1}")
    return id_set


def eos_token_ids(model: LanguageModel | Seq2SeqLM, stop_token_ids: Iterable[int] = ()) -> frozenset[int]:
    """The tokens that end a text: EOS of the model and of its tokenizer, and any `stop_token_ids`."""
    tokenizer = tokenizer_of(model)
    vocab_size = model.config.vocab_size if tokenizer is None else tokenizer.vocab_size
    eos_ids = (model.config.eos_id, None if tokenizer is None else tokenizer.eos_id)
    return frozenset(id for id in eos_ids if id is not None) | check_token_ids(stop_token_ids, vocab_size)

"""Which samplers a request asks for: settings as people give them in, a pipeline out.

What settings leave open is the tokenizer's to say: which tokens end a text, break a repeat, or are protected.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from headway.errors import ConfigError
from headway.generation.inputs import token_id_set
from headway.models.base import LanguageModel, Seq2SeqLM
from headway.sampling import FLAT, GREEDY_BELOW, SAMPLERS, PerRowPipeline, Pipeline
from headway.sampling.parameters import flat_name, to_python
from headway.tokenizers import Tokenizer

DEFAULT_TEMPERATURE = 0.8
BREAKERS = ("\n", ":", '"', "*")  # what no repeat reaches across, for `dry`


def make_pipeline(
    tokenizer: Tokenizer,
    ends: Iterable[int],
    sampler_preset: str = "default",
    sampler_order: Sequence[str] | None = None,
    *,
    temperature: float | Sequence[float] | None = None,
    do_sample: bool = True,
    **settings: Any,
) -> Pipeline | PerRowPipeline:
    """The pipeline of some settings, with what they leave to the tokenizer filled in: which tokens end a text, break a
    repeat, or are protected from xtc. A temperature of 0 is greedy, in some rows where it is a list."""
    heat, settings = to_python(temperature), _flat(settings)
    if isinstance(heat, list) and any(isinstance(value, int | float) and value < GREEDY_BELOW for value in heat):
        pipes = [
            make_pipeline(tokenizer, ends, sampler_preset, sampler_order, temperature=value, do_sample=do_sample, **own)
            for value, own in zip(heat, _by_row(settings, len(heat)), strict=True)
        ]
        return Pipeline.for_rows(pipes)
    has_other_heat = any(
        name.startswith("dynamic_temperature") for name, value in settings.items() if value is not None
    )
    if heat is None and not has_other_heat and (sampler_order is None or "temperature" in sampler_order):
        heat = DEFAULT_TEMPERATURE
    settings["temperature"] = heat
    if settings.get("min_new_tokens"):
        settings.setdefault("min_new_tokens_eos_ids", sorted(ends))
    if settings.get("dry_multiplier") is not None:
        settings["dry_breakers"] = _breakers(tokenizer, settings.get("dry_breakers"))
    if settings.get("xtc_probability") is not None and settings.get("xtc_protected") is None:
        settings["xtc_protected"] = sorted({*ends, *tokens_containing(tokenizer, ("\n",))})
    pipe = Pipeline(preset=None if sampler_order is not None else sampler_preset, order=sampler_order, **settings)
    for call in pipe.samplers:
        if call.name == "logit_bias":
            check_token_ids(tokenizer, [id for row in call.values["bias"] for id, _ in row])
    if not do_sample or (isinstance(heat, int | float) and heat < GREEDY_BELOW):
        skipped = [call.name for call in pipe.samplers if call.sampler.group == "filter" and not call.is_off]
        pipe = pipe.greedy()
        if skipped:
            pipe.notes = [
                f"temperature below {GREEDY_BELOW:g} means the best token: {', '.join(skipped)} will not matter"
            ]
    return pipe


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings by flat names, those that were given as a table of a stage's parameters too."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        known = SAMPLERS[name].parameters if name in SAMPLERS else {}
        if isinstance(value, Mapping) and set(value) & set(known):
            found |= {flat_name(name, parameter): to_python(v) for parameter, v in value.items()}
        else:
            found[name] = to_python(value)
    return found


def _by_row(settings: dict[str, Any], n_rows: int) -> Iterator[dict[str, Any]]:
    """The settings of each row, where some have a value per row."""
    per_row = set()
    for name, value in settings.items():
        stage, parameter = FLAT.get(name, ("", ""))
        if value is not None and stage and SAMPLERS[stage].parameters[parameter].is_per_row(value):
            if len(value) != n_rows:
                raise ConfigError(f"{name} has {len(value)} values, temperature {n_rows}: one value, or one per row")
            per_row.add(name)
    for i in range(n_rows):
        yield {name: value[i] if name in per_row else value for name, value in settings.items()}


def _breakers(tokenizer: Tokenizer, given: Any) -> list[Any]:
    """Ids as they are; of a text every token that contains it. A list of lists is one per row."""
    given = [given] if isinstance(given, str) else given
    if given is not None and any(isinstance(some, list | tuple | set) for some in given):
        return [_breakers(tokenizer, some) for some in given]
    texts = list(BREAKERS) if given is None else [text for text in given if isinstance(text, str)]
    for text in texts if given is not None else ():
        if not tokens_containing(tokenizer, (text,)):
            raise ConfigError(f"no token contains {text!r}, so it can break no repeat: dry_breakers are single tokens")
    ids = [] if given is None else [id for id in given if not isinstance(id, str)]
    return sorted({*ids, *tokens_containing(tokenizer, tuple(texts))})


@lru_cache(maxsize=8)
def tokens_containing(tokenizer: Tokenizer, texts: tuple[str, ...]) -> tuple[int, ...]:
    """Every token whose text contains one of these."""
    if not texts:
        return ()
    pieces = (tokenizer.decode([id]) for id in range(tokenizer.vocab_size))
    return tuple(id for id, piece in enumerate(pieces) if any(text in piece for text in texts))


def check_token_ids(tokenizer: Tokenizer, ids: Iterable[int]) -> frozenset[int]:
    found = token_id_set(ids)
    for id in found:
        if not 0 <= id < tokenizer.vocab_size:
            raise ConfigError(f"there is no token {id}: this vocabulary has ids 0 to {tokenizer.vocab_size - 1}")
    return found


def eos_token_ids(model: LanguageModel | Seq2SeqLM) -> frozenset[int]:
    """The tokens that end a text of this model."""
    tokenizer = None if model.tokenizer is None else model.tokenizer.eos_id
    return frozenset(id for id in (model.config.eos_id, tokenizer) if id is not None)

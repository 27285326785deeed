"""Answers to keyword arguments that `generate`, `complete`, `search` and `translate` do not have.

`headway.generate(model, "Once", max_tokens=3)` is answered with "Did you mean 'max_new_tokens'?".
"""

from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any

from headway.errors import ConfigError, suggest
from headway.sampling.specs import FLAT_NAMES, SAMPLER_SPECS, SHARED_PARAMETERS, load_declared_sampler

# What other libraries call a setting → our names for it; which one applies depends on the function.
SYNONYMS = {
    "beam_size": ("num_beams",),
    "beams": ("num_beams",),
    "max_length": ("max_new_tokens",),
    "max_tokens": ("max_new_tokens",),
    "min_length": ("min_new_tokens",),
    "min_tokens": ("min_new_tokens",),
    "n": ("n_best",),
    "no_repeat_ngram_size": ("no_repeat_ngram",),
    "num_return_sequences": ("n", "n_best"),
    "num_samples": ("n", "n_best"),
    "num_tokens": ("max_new_tokens",),
    "order": ("sampler_order",),
    "preset": ("sampler_preset",),
    "repeat_penalty": ("repetition_penalty",),
    "stop_sequences": ("stop",),
    "stop_strings": ("stop",),
    "temp": ("temperature",),
    "typical_p": ("typical",),
}
# Settings that only another function has.
ELSEWHERE = {
    "n": "headway.complete(model, prompts, n=…)",
    "num_beams": "headway.generation.generate.search(model, prompts, num_beams=…)",
    "logprobs": "headway.generate(model, prompts, logprobs=…)",
    "explain": "headway.generate(model, prompts, explain=True)",
}


def refuse_unknown_settings(function: Callable[..., Any], names: Iterable[str]) -> None:
    """Raise a `ConfigError` for the first name that is no setting of a sampler. It suggests what the user probably
    meant: a synonym, another function, or a similar name among the parameters of `function` and the samplers."""
    for name in names:
        if not _is_sampler_setting(name):
            hint = _hint(name, list(signature(function).parameters))
            raise ConfigError(f"no setting named {name!r}.{hint}")


def _is_sampler_setting(name: str) -> bool:
    if name not in FLAT_NAMES and name not in SAMPLER_SPECS:
        load_declared_sampler(name)
    return name in FLAT_NAMES or name in SAMPLER_SPECS or name in SHARED_PARAMETERS


def _hint(name: str, parameters: list[str]) -> str:
    candidates = (name, *SYNONYMS.get(name, ()))
    for candidate in candidates:
        if candidate in parameters or candidate in FLAT_NAMES:
            return f" Did you mean {candidate!r}?"
    for candidate in candidates:
        if candidate in ELSEWHERE:
            return f" Use {ELSEWHERE[candidate]}."
    all_samplers = " `headway generate --help-samplers` shows all samplers"
    return suggest(name, [*parameters, *FLAT_NAMES], otherwise=all_samplers)

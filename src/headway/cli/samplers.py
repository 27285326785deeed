"""Every sampler as a flag, for the verbs that write: `generate` and `translate`."""

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.options import unescaped

if TYPE_CHECKING:
    from headway.tokenizers import Tokenizer

Samplers = dict[str, Any]  # the value of every flag below, by its name

_WINDOW = "How many of the last tokens count for it, 0 or more. Off (all): 0."
_SCOPE = "What counts for it: all (prompt and generated) or generated."


def _flags(
    # ── reshaping ──
    temperature: Annotated[
        float | None,
        typer.Option(
            help="0 (always the best token) or more; above 1 flattens, below 1 sharpens. Off: 1. Default, drawing: 0.8."
        ),
    ] = None,
    dynamic_temperature_low: Annotated[
        float | None, typer.Option(help="Temperature where the model is sure, 0 or more. Off: 1, with high 1.")
    ] = None,
    dynamic_temperature_high: Annotated[
        float | None, typer.Option(help="Temperature where it is not, low or more. Off: 1, with low 1.")
    ] = None,
    dynamic_temperature_exponent: Annotated[
        float | None, typer.Option(help="How entropy becomes temperature, 0 or more. Default: 1, in proportion.")
    ] = None,
    quadratic_factor: Annotated[
        float | None, typer.Option(help="Strength of the smoothing parabola, 0 or more. Off: 0. Usual: 0.2.")
    ] = None,
    quadratic_curve: Annotated[float | None, typer.Option(help="1 (a parabola) to 3 (a cubic). Default: 1.")] = None,
    # ── filters ──
    top_k: Annotated[int | None, typer.Option(help="Keep the k best, 0 or more. Off: 0. Usual: 40.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Keep the fewest best tokens that hold this mass, 0 to 1. Off: 1. Usual: 0.9.")
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(help="Keep what has this fraction of the best probability, 0 to 1. Off: 0. Usual: 0.05."),
    ] = None,
    typical: Annotated[
        float | None,
        typer.Option(help="Keep the tokens of most expected surprise that hold this mass, 0 to 1. Off: 1. Usual: 0.9."),
    ] = None,
    tail_free: Annotated[
        float | None,
        typer.Option(
            help="Cut where the sorted curve flattens, at this share of its bending, 0 to 1. Off: 1. Usual: 0.95."
        ),
    ] = None,
    top_a: Annotated[
        float | None,
        typer.Option(help="Keep what has this factor of the squared best probability, 0 to 1. Off: 0. Usual: 0.2."),
    ] = None,
    top_n_sigma: Annotated[
        float | None,
        typer.Option(help="Keep logits within so many standard deviations of the best, 0 or more. Off: 0. Usual: 1."),
    ] = None,
    epsilon_cutoff: Annotated[
        float | None, typer.Option(help="Keep probabilities of at least this, 0 to below 1. Off: 0. Usual: 0.0005.")
    ] = None,
    eta_cutoff: Annotated[
        float | None, typer.Option(help="The same, sinking with entropy, 0 to below 1. Off: 0. Usual: 0.002.")
    ] = None,
    xtc_probability: Annotated[
        float | None,
        typer.Option(help="How often to exclude top choices (never line or text ends), 0 to 1. Off: 0. Usual: 0.5."),
    ] = None,
    xtc_threshold: Annotated[
        float | None,
        typer.Option(help="Probability that makes a top choice, above 0 to 1. Off: above 0.5. Default: 0.1."),
    ] = None,
    min_keep: Annotated[
        int | None, typer.Option(help="Tokens every filter leaves at least, 1 or more. Off: 1.")
    ] = None,
    mirostat: Annotated[
        int | None, typer.Option(help="Steer the average surprise: 1 or 2, the version. Off: 0.")
    ] = None,
    mirostat_tau: Annotated[
        float | None, typer.Option(help="The surprise to aim at in bits, above 0. Default: 5.")
    ] = None,
    mirostat_eta: Annotated[float | None, typer.Option(help="How fast it steers, 0 or more. Default: 0.1.")] = None,
    mirostat_m: Annotated[
        int | None, typer.Option(help="Version 1: tokens the curve is fitted to, 2 or more. Default: 100.")
    ] = None,
    # ── penalties ──
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Divide logits of tokens seen by this, above 0. Off: 1. Usual: 1.1.")
    ] = None,
    repetition_window: Annotated[int | None, typer.Option(help=_WINDOW)] = None,
    repetition_scope: Annotated[str | None, typer.Option(help=_SCOPE + " Default: all.")] = None,
    frequency_penalty: Annotated[
        float | None, typer.Option(help="Subtract this per use, any number; negative encourages. Off: 0.")
    ] = None,
    frequency_window: Annotated[int | None, typer.Option(help=_WINDOW)] = None,
    frequency_scope: Annotated[str | None, typer.Option(help=_SCOPE + " Default: generated.")] = None,
    presence_penalty: Annotated[
        float | None, typer.Option(help="Subtract this once, any number; negative encourages. Off: 0.")
    ] = None,
    presence_window: Annotated[int | None, typer.Option(help=_WINDOW)] = None,
    presence_scope: Annotated[str | None, typer.Option(help=_SCOPE + " Default: generated.")] = None,
    dry_multiplier: Annotated[
        float | None, typer.Option(help="Punish verbatim repeats with this strength, 0 or more. Off: 0. Usual: 0.8.")
    ] = None,
    dry_base: Annotated[
        float | None, typer.Option(help="Growth per token of the repeat, 1 or more. Default: 1.75.")
    ] = None,
    dry_allowed_length: Annotated[
        int | None, typer.Option(help="Length of a repeat that is free, 1 or more. Default: 2.")
    ] = None,
    dry_window: Annotated[int | None, typer.Option(help=_WINDOW)] = None,
    dry_breakers: Annotated[
        list[str] | None,
        typer.Option("--dry-breaker", help=r'Text no repeat reaches across; may be repeated. Default: \n : " *'),
    ] = None,
    # ── bias and constraints ──
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(help="TOKEN=VALUE: add to a logit; -inf bans. An id, or text that is one token; may be repeated."),
    ] = None,
    no_repeat_ngram: Annotated[
        int | None, typer.Option(help="Never the same so many tokens twice, 0 or more. Off: 0. Usual: 3.")
    ] = None,
    min_new_tokens: Annotated[int | None, typer.Option(help="No end before so many tokens, 0 or more. Off: 0.")] = None,
    # ── order ──
    sampler_preset: Annotated[
        str | None, typer.Option(help="Order of the stages: default (temperature last) or temperature_first.")
    ] = None,
    sampler_order: Annotated[
        str | None,
        typer.Option(
            help="Your own order: names with commas, such as top_k,temperature; all that is set must be named."
        ),
    ] = None,
) -> None:
    """What each is called, means and is when it is not given."""


def with_samplers(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with these flags in place of its parameter `samplers`, which gets their values."""
    flags = inspect.signature(_flags).parameters

    @functools.wraps(verb)
    def wrapped(**given: Any) -> None:
        verb(**{name: value for name, value in given.items() if name not in flags},
             samplers={name: given[name] for name in flags})  # fmt: skip

    own = inspect.signature(verb)
    found = [p for q in own.parameters.values() for p in (flags.values() if q.name == "samplers" else (q,))]
    wrapped.__signature__ = own.replace(parameters=found)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in found}
    return wrapped


def names_in(order: str | None) -> list[str] | None:
    return None if order is None else [name.strip() for name in order.split(",")]


def settings_from(samplers: Samplers, tokenizer: "Tokenizer") -> dict[str, Any]:
    """The settings that were given, but for temperature and order, by the flat names of `headway.sampling`."""
    if samplers["sampler_order"] is not None and samplers["sampler_preset"] is not None:
        raise typer.BadParameter("an order of your own, or a preset: one of them", param_hint="--sampler-order")
    if samplers["min_keep"] is not None and samplers["min_keep"] < 1:
        raise typer.BadParameter(f"{samplers['min_keep']}: 1 or more", param_hint="--min-keep")
    settings = {name: samplers[name] for name in _SETTINGS if samplers[name] is not None}
    settings |= _mirostat(*(samplers[name] for name in ("mirostat", "mirostat_tau", "mirostat_eta", "mirostat_m")))
    if samplers["dry_breakers"]:
        settings["dry_breakers"] = [unescaped(text) for text in samplers["dry_breakers"]]
    if samplers["logit_bias"]:
        settings["logit_bias"] = [_bias(tokenizer, text) for text in samplers["logit_bias"]]
    if samplers["min_keep"] is not None:
        settings |= _min_keep(settings, samplers["min_keep"])
    return settings


# Settings that go to the samplers under their own names.
_SETTINGS = {
    "dynamic_temperature_low", "dynamic_temperature_high", "dynamic_temperature_exponent", "quadratic_factor",
    "quadratic_curve", "top_k", "top_p", "min_p", "typical", "tail_free", "top_a", "top_n_sigma", "epsilon_cutoff",
    "eta_cutoff", "xtc_probability", "xtc_threshold", "repetition_penalty", "repetition_window", "repetition_scope",
    "frequency_penalty", "frequency_window", "frequency_scope", "presence_penalty", "presence_window", "presence_scope",
    "dry_multiplier", "dry_base", "dry_allowed_length", "dry_window", "no_repeat_ngram", "min_new_tokens",
}  # fmt: skip


def _mirostat(version: int | None, tau: float | None, eta: float | None, m: int | None) -> dict[str, Any]:
    if not version:
        if tau is not None or eta is not None or m is not None:
            raise typer.BadParameter("--mirostat 1 or --mirostat 2 turns it on", param_hint="--mirostat")
        return {}
    if version not in (1, 2):
        raise typer.BadParameter(f"{version}: 1 or 2, or 0 for off", param_hint="--mirostat")
    values = {"tau": 5.0 if tau is None else tau, "eta": eta}
    if version == 1:
        values["m"] = m
    elif m is not None:
        raise typer.BadParameter("only --mirostat 1 fits a curve", param_hint="--mirostat-m")
    return {f"mirostat_v{version}_{name}": value for name, value in values.items() if value is not None}


def _min_keep(settings: dict[str, Any], least: int) -> dict[str, Any]:
    from headway.sampling import FLAT, SAMPLERS

    stages = {FLAT[name][0] for name in settings}
    return {f"{name}_min_keep": least for name in stages if "min_keep" in SAMPLERS[name].parameters}


def _bias(tokenizer: "Tokenizer", text: str) -> tuple[int, float]:
    """TOKEN=VALUE"""
    name, sign, value = text.rpartition("=")
    try:
        offset = float(value)
    except ValueError:
        sign = ""
    if not sign or not name:
        raise typer.BadParameter(f"{text!r}: TOKEN=VALUE, such as 50=-2.5 or ' the=-inf'", param_hint="--logit-bias")
    if name.isdecimal():
        return int(name), offset
    known = tokenizer.backend.token_to_id(name) if name in tokenizer.special_tokens.values() else None
    ids = tokenizer.encode(name) if known is None else [known]
    if tokenizer.unk_id in ids and known is None:
        raise typer.BadParameter(f"{name!r} is not in the vocabulary: name a token or an id", param_hint="--logit-bias")
    if len(ids) != 1:
        raise typer.BadParameter(f"{name!r} is {len(ids)} tokens {ids}: name one of them", param_hint="--logit-bias")
    return ids[0], offset

"""Sampler flags of `generate` and `translate`, and the listing of samplers: all made from headway.sampling.specs.

`--help` shows the common ones, `--help-samplers` all of them, with their ranges. `--set NAME=VALUE` sets any sampler,
also one that a plug-in registers.
"""

import functools
import inspect
import json as json_values
import math
import textwrap
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.completion import complete_sampler_setting
from headway.cli.help import write_sections
from headway.cli.options import print_json, unescaped
from headway.sampling.parameters import BiasParam, NumberParam, Parameter, TokenIdsParam
from headway.sampling.specs import GROUPS, SAMPLER_SPECS, SHARED_PARAMETERS, SamplerSpec

if TYPE_CHECKING:
    from headway.tokenizers import Tokenizer

SamplerFlags = dict[str, Any]  # the value of every flag and of every --set by its flat name; None if unset

DOCS_WIDTH = 118  # columns of docs/decoding.md

# Flags that --help shows, with a help text of one line.
COMMON_FLAGS = {
    "temperature": "Above 1 flattens, below 1 sharpens; 0 is greedy.",
    "top_k": "Keep the k most likely tokens. Off: 0.",
    "top_p": "Keep the top tokens of total probability p. Off: 1.",
    "min_p": "Keep tokens of at least p × the best. Off: 0.",
    "repetition_penalty": "Penalise tokens that already occurred. Off: 1.",
}
_ORDER_FLAGS = {
    "sampler_preset": "Order of the samplers: default (temperature last) or temperature_first.",
    "sampler_order": "Custom order: comma-separated names such as top_k,temperature, with every sampler that is set.",
}


def with_sampler_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `samplers` of a verb by one flag per setting; the verb receives their values as a dict."""
    flags = {flag.name: flag for flag in _flag_parameters()}
    extra = {flag.name: flag for flag in (_settings_flag(), _help_flag())}

    @functools.wraps(verb)
    def wrapped(**values: Any) -> None:
        verb_values = {name: value for name, value in values.items() if name not in {**flags, **extra}}
        samplers = {name: values[name] for name in flags}
        for setting in values["sampler_settings"] or []:
            name, value = parse_setting(setting)
            if samplers.get(name) is not None:
                raise typer.BadParameter(f"{name} is given twice: leave one of them out", param_hint="--set")
            samplers[name] = value
        verb(**verb_values, samplers=samplers)

    signature = inspect.signature(verb)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        parameters += [*flags.values(), *extra.values()] if parameter.name == "samplers" else [parameter]
    wrapped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapped


def _settings_flag() -> inspect.Parameter:
    option = typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Set any sampler by name; repeatable.",
        autocompletion=complete_sampler_setting,
    )
    return _parameter("sampler_settings", list[str], option)


def _help_flag() -> inspect.Parameter:
    option = typer.Option(
        "--help-samplers", is_eager=True, callback=_print_sampler_help, help="Show the flags of all samplers and exit."
    )
    return inspect.Parameter(
        "help_samplers", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=False, annotation=Annotated[bool, option]
    )


def _print_sampler_help(ctx: typer.Context, is_given: bool) -> None:
    if is_given and not ctx.resilient_parsing:
        print(sampler_help(ctx), end="")
        raise typer.Exit


def sampler_help(ctx: typer.Context) -> str:
    """Every sampler flag with its meaning and range, by groups."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for section, name, parameter, help in _flag_table():
        sections.setdefault(section, []).append((", ".join(_flag_names(name, parameter)), help))
    sections["Order"] = [(", ".join(_flag_names(name)), help) for name, help in _ORDER_FLAGS.items()]
    formatter = ctx.make_formatter()
    formatter.write("All samplers are off unless set, except the temperature of generate: 0.8.\n")
    write_sections(formatter, sections)
    return formatter.getvalue()


def _flag_table() -> Iterator[tuple[str, str, Parameter, str]]:
    """Section, flat name, parameter and help of every flag, in the order of the table of samplers."""
    for spec in SAMPLER_SPECS.values():
        main = next(iter(spec.switches or spec.parameters))  # its help starts with what the sampler does
        for name, parameter in spec.parameters.items():
            if parameter.flag:
                summary = f"{_sentence(spec.summary)}. " if name == main else ""
                yield GROUPS[spec.group], spec.flat_name(name), parameter, summary + flag_help(parameter)
    for name, parameter in SHARED_PARAMETERS.items():
        yield "All filters", name, parameter, flag_help(parameter)


def _flag_parameters() -> Iterator[inspect.Parameter]:
    """One parameter per flag: first the common ones, then the others, which --help does not show."""
    flags = {name: (parameter, help) for _, name, parameter, help in _flag_table()}
    for name, help in COMMON_FLAGS.items():
        parameter = flags.pop(name)[0]
        yield _parameter(name, _flag_type(parameter), typer.Option(*_flag_names(name, parameter), help=help))
    for name, (parameter, help) in flags.items():
        option = typer.Option(*_flag_names(name, parameter), help=help, hidden=True)
        yield _parameter(name, _flag_type(parameter), option)
    for name, help in _ORDER_FLAGS.items():
        yield _parameter(name, str, typer.Option(*_flag_names(name), help=help, hidden=True))


def _flag_names(name: str, parameter: Parameter | None = None) -> list[str]:
    """The flat name with dashes, and its alias if it has one."""
    alias = parameter.flag_alias if isinstance(parameter, TokenIdsParam) else ""
    return [f"--{flag.replace('_', '-')}" for flag in (name, alias) if flag]


def _parameter(name: str, kind: Any, option: Any) -> inspect.Parameter:
    annotation = Annotated[kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=annotation)


def _flag_type(parameter: Parameter) -> Any:
    if isinstance(parameter, NumberParam):
        return int if parameter.is_integer else float
    return list[str] if isinstance(parameter, TokenIdsParam | BiasParam) else str


def flag_help(parameter: Parameter) -> str:
    """What it is, its range, and its off, default and usual values: the same form for every flag."""
    allowed = parameter.flag_range if isinstance(parameter, TokenIdsParam | BiasParam) else parameter.range
    values = [f"{label}: {value}." for label, value in _known_values(parameter).items()]
    return " ".join([f"{_sentence(parameter.help)} ({allowed}).", *values])


def _known_values(parameter: Parameter) -> dict[str, str]:
    """The off, default and usual values that the parameter has; a usual value that is the default is left out."""
    values = {"Off": parameter.off, "Default": parameter.default}
    shown = {label: _value(value) for label, value in values.items() if value not in (None, ())}
    return shown | ({"Usual": parameter.usual} if parameter.usual not in ("", shown.get("Default")) else {})


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


# ── values ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def parse_order(order: str | None) -> list[str] | None:
    return None if order is None else [name.strip() for name in order.split(",")]


def sampler_settings(flags: SamplerFlags, tokenizer: "Tokenizer") -> dict[str, Any]:
    """The settings on the command line by their flat names, without temperature and order."""
    if flags["sampler_order"] is not None and flags["sampler_preset"] is not None:
        raise typer.BadParameter("cannot be combined with --sampler-preset", param_hint="--sampler-order")
    excluded = ("temperature", *_ORDER_FLAGS)
    settings = {name: value for name, value in flags.items() if name not in excluded and value not in (None, [])}
    for name, parse in (("dry_breakers", unescaped), ("logit_bias", lambda text: _parse_bias(tokenizer, text))):
        if name in settings:
            values = settings[name] if isinstance(settings[name], list) else [settings[name]]
            settings[name] = [parse(value) if isinstance(value, str) else value for value in values]
    return settings


def parse_setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE; the value is a number, a word, or JSON such as [1, 2]."""
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise typer.BadParameter(f"{text!r} is not of the form NAME=VALUE, such as top_k=20", param_hint="--set")
    name = name.strip().replace("-", "_")
    for parse in (json_values.loads, float):
        try:
            return name, parse(value)
        except ValueError:
            continue
    return name, value


def _parse_bias(tokenizer: "Tokenizer", text: str) -> tuple[int, float]:
    """TOKEN=VALUE as (token id, value)."""
    name, equals, value = text.rpartition("=")
    try:
        offset = float(value)
    except ValueError:
        equals = ""
    if not equals or not name:
        raise typer.BadParameter(
            f"{text!r} is not TOKEN=VALUE, such as 50=-2.5 or ' the=-inf'", param_hint="--logit-bias"
        )
    if name.isdecimal():
        return int(name), offset
    special_id = tokenizer.token_id(name) if name in tokenizer.special_tokens.values() else None
    ids = tokenizer.encode(name) if special_id is None else [special_id]
    if tokenizer.unk_id in ids and special_id is None:
        raise typer.BadParameter(
            f"{name!r} is not in the vocabulary: use a token of it, or an id", param_hint="--logit-bias"
        )
    if len(ids) != 1:
        raise typer.BadParameter(
            f"{name!r} is {len(ids)} tokens, {ids}: use the id of one of them", param_hint="--logit-bias"
        )
    return ids[0], offset


# ── listing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def list_samplers(*, json: bool) -> None:
    """Print every sampler with its settings."""
    if json:
        print_json({name: _sampler_json(spec) for name, spec in SAMPLER_SPECS.items()})
        return
    print("Samplers in the order of the preset `default`. All are off unless set, except temperature.")
    print("Each setting is a keyword of headway.generate and, with dashes, a flag: top_k and --top-k.\n")
    for name, spec in SAMPLER_SPECS.items():
        print(f"{name:20} {_sentence(spec.summary)}.")
        for parameter_name, parameter in spec.parameters.items():
            if parameter_name not in SHARED_PARAMETERS:
                print(f"{'':20}   {spec.flat_name(parameter_name)}: {_listed(parameter)}")
    print("\nall filters")
    for name, parameter in SHARED_PARAMETERS.items():
        print(f"{'':20}   {name}: {_listed(parameter)}")


def _sampler_json(spec: SamplerSpec) -> dict[str, Any]:
    fields = ("help", "range", "off", "default", "usual", "flag")
    return {
        "group": spec.group,
        "summary": spec.summary,
        "definition": spec.definition,
        "parameters": {
            name: {"setting": spec.flat_name(name)} | {field: getattr(parameter, field) for field in fields}
            for name, parameter in spec.parameters.items()
        },
    }


def _listed(parameter: Parameter) -> str:
    return flag_help(parameter) if parameter.flag else f"{_sentence(parameter.help)}. Not a flag."


def samplers_markdown() -> str:
    """The reference section of docs/decoding.md: each sampler with its definition and settings. A test keeps both
    equal."""
    parts = []
    for group, title in GROUPS.items():
        lines = [f"### {title}", ""]
        if group == "filter":
            shared = SHARED_PARAMETERS["min_keep"]
            lines += textwrap.wrap(
                f"The definition says which tokens a filter keeps. `min_keep` ({shared.range}, default "
                f"{shared.default}) is the fewest tokens that every filter keeps. `top_k_min_keep`, "
                f"`top_p_min_keep`, … set it for one filter; they are not flags.",
                DOCS_WIDTH,
            )
            lines.append("")
        for spec in (spec for spec in SAMPLER_SPECS.values() if spec.group == group):
            lines += _markdown_item(f"- **`{spec.name}`**: {spec.definition}", indent=2)
            for name, parameter in spec.parameters.items():
                if name not in SHARED_PARAMETERS:
                    lines += _markdown_item(f"  - {_setting_markdown(spec, name, parameter)}", indent=4)
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _markdown_item(text: str, indent: int) -> list[str]:
    return textwrap.wrap(text, DOCS_WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False)


def _setting_markdown(spec: SamplerSpec, name: str, parameter: Parameter) -> str:
    values = [f"{label.lower()} {value}" for label, value in _known_values(parameter).items()]
    if not parameter.flag:
        values.append("not a flag")
    return ", ".join([f"`{spec.flat_name(name)}`: {_bounds(name, parameter)}", *values])


def _bounds(name: str, parameter: Parameter) -> str:
    """The range as an inequality: 0 ≤ p < 1."""
    if not isinstance(parameter, NumberParam):
        return parameter.range
    low = "" if math.isinf(parameter.low) else f"{parameter.low:g} {'<' if parameter.low_open else '≤'} "
    high = "" if math.isinf(parameter.high) else f" {'<' if parameter.high_open else '≤'} {parameter.high:g}"
    if low and not high:
        return f"{name} {'>' if parameter.low_open else '≥'} {parameter.low:g}"
    return f"{low}{name}{high}"

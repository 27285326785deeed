"""An option that would have no effect is an error: no option is silently ignored.

An option that has an effect only in some contexts says so where it is declared:

    overwrite: Annotated[bool, typer.Option("--overwrite", help=…), OnlyWith("--out")] = False
    samples: Annotated[int, typer.Option(help=…), OnlyWithout("--prepare")] = 3
    num_beams: Annotated[int, typer.Option(help=…), OnlyFor(data="pairs")] = 1
    show_list: Annotated[bool, typer.Option("--list", help=…), AllowsOnly("--json")] = False

`OnlyFor` depends on the model or the data, so the command checks it once they are known:
`check_options_for("pydocs, which is text", data="text")`. The other rules are checked before the command runs. Defaults
are never checked, only what the user typed. tests/cli/test_option_use.py tries every option where it has no effect.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, get_args

import typer


class OnlyWith:
    """The option has an effect only together with one of these options."""

    def __init__(self, *options: str, why: str = ""):
        self.options, self.why = options, why

    def problem(self, typed: Collection[str]) -> str:
        if any(option in typed for option in self.options):
            return ""
        return self.why or f"has no effect without {_listed(self.options)}: add it, or leave this option out"


class OnlyWithout:
    """The option has an effect only without all of these options."""

    def __init__(self, *options: str, why: str = ""):
        self.options, self.why = options, why

    def problem(self, typed: Collection[str]) -> str:
        unwanted = next((option for option in self.options if option in typed), None)
        return "" if unwanted is None else self.why or f"has no effect with {unwanted}: leave one of them out"


class AllowsOnly:
    """With this option, only these have an effect: `--json` with `--list`."""

    def __init__(self, *options: str):
        self.options = options


class OnlyFor:
    """The option has an effect only on some models or data: `OnlyFor(data="pairs")`. Each command chooses its kinds."""

    def __init__(self, **kinds: str | tuple[str, ...]):
        self.kinds = {aspect: (kind,) if isinstance(kind, str) else kind for aspect, kind in kinds.items()}

    def applies_to(self, **kinds: str) -> bool:
        return all(kind in self.kinds.get(aspect, (kind,)) for aspect, kind in kinds.items())


Rule = OnlyWith | OnlyWithout | AllowsOnly | OnlyFor
GENERAL_OPTIONS = ("--plugin", "--help")  # of every command


def rules_of(command: Any) -> dict[str, list[Rule]]:
    """Option or argument → its rules, from the annotations of the command's function."""
    annotations = getattr(command.callback, "__annotations__", {})
    rules = {
        name_of(parameter): [rule for rule in get_args(annotations.get(parameter.name)) if isinstance(rule, Rule)]
        for parameter in command.params
    }
    return {name: option_rules for name, option_rules in rules.items() if option_rules}


def name_of(parameter: Any) -> str:
    """An option as the user types it, "--num-beams"; an argument as the usage line shows it, "MODEL"."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return next((name for name in parameter.opts if name.startswith("--")), str(parameter.opts[0]))


@dataclass(frozen=True)
class _TypedOptions:
    """The options and arguments that the user typed, and the rules of the command."""

    names: list[str]
    rules: dict[str, list[Rule]]

    def check(self) -> None:
        for name in self.names:
            for rule in self.rules.get(name, []):
                if isinstance(rule, AllowsOnly):
                    self._check_alone(name, rule)
                elif not isinstance(rule, OnlyFor) and (problem := rule.problem(self.names)):
                    raise typer.BadParameter(problem, param_hint=name)

    def _check_alone(self, name: str, rule: AllowsOnly) -> None:
        for option in self.names:
            if option not in (name, *rule.options, *GENERAL_OPTIONS):
                raise typer.BadParameter(f"has no effect with {name}: leave one of them out", param_hint=option)

    def check_for(self, subject: str, **kinds: str) -> None:
        for name in self.names:
            for rule in self.rules.get(name, []):
                if isinstance(rule, OnlyFor) and not rule.applies_to(**kinds):
                    raise typer.BadParameter(f"does not apply to {subject}: leave it out", param_hint=name)


_typed: ContextVar[_TypedOptions] = ContextVar("typed options")


@contextmanager
def checked_options(command: Any, ctx: Any) -> Iterator[None]:
    """Refuse options without effect. The block may call `check_options_for` for those that depend on model or data."""
    typed = [name_of(p) for p in command.params if _is_typed(ctx, p)]
    options = _TypedOptions(typed, rules_of(command))
    options.check()
    token = _typed.set(options)
    try:
        yield
    finally:
        _typed.reset(token)


def check_options_for(subject: str, **kinds: str) -> None:
    """Refuse options that have no effect on a model or data of these kinds; the error calls it `subject`."""
    if (options := _typed.get(None)) is not None:  # None: a verb's function was called from Python
        options.check_for(subject, **kinds)


def _is_typed(ctx: Any, parameter: Any) -> bool:
    source = ctx.get_parameter_source(parameter.name)
    return source is not None and source.name == "COMMANDLINE"


def _listed(options: tuple[str, ...]) -> str:
    if len(options) > 4:
        options = (*options[:3], "…")
    return options[0] if len(options) == 1 else f"{', '.join(options[:-1])} or {options[-1]}"

"""Options that cannot matter are refused, never ignored in silence.

An option that matters only in some contexts says so where it is declared:

    overwrite: Annotated[bool, typer.Option("--overwrite", help=…), OnlyBeside("--out")] = False
    samples: Annotated[int, typer.Option(help=…), OnlyWithout("--prepare")] = 3
    num_beams: Annotated[int, typer.Option(help=…), OnlyOn(data="pairs")] = 1
    show_list: Annotated[bool, typer.Option("--list", help=…), LeavesOnly("--json")] = False

The first two and the last are checked before the command runs. What a command works on is known later: it calls
`check_options_for("pydocs, which is text", data="text")`. Only what the user typed is checked: a default is never
complained about. tests/cli/test_option_use.py gives every option of every command where it cannot matter.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, get_args

import typer


class OnlyBeside:
    """The option matters only beside one of these."""

    def __init__(self, *options: str, why: str = ""):
        self.options, self.why = options, why

    def problem(self, typed: Collection[str]) -> str:
        if any(option in typed for option in self.options):
            return ""
        return self.why or f"has no effect without {_listed(self.options)}: leave it out, or add that"


class OnlyWithout:
    """The option matters only without each of these."""

    def __init__(self, *options: str, why: str = ""):
        self.options, self.why = options, why

    def problem(self, typed: Collection[str]) -> str:
        unwanted = next((option for option in self.options if option in typed), None)
        return "" if unwanted is None else self.why or f"has no effect with {unwanted}: leave one of them out"


class LeavesOnly:
    """Beside this option only these matter, such as `--json` beside `--list`."""

    def __init__(self, *options: str):
        self.options = options


class OnlyOn:
    """The option matters only on some models or data: `OnlyOn(data="pairs")`, in the words of the command."""

    def __init__(self, **kinds: str | tuple[str, ...]):
        self.kinds = {aspect: (kind,) if isinstance(kind, str) else kind for aspect, kind in kinds.items()}

    def applies_to(self, **kinds: str) -> bool:
        return all(kind in self.kinds.get(aspect, (kind,)) for aspect, kind in kinds.items())


Rule = OnlyBeside | OnlyWithout | LeavesOnly | OnlyOn
GENERAL_OPTIONS = ("--plugin", "--help")  # matter everywhere


def rules_of(command: Any) -> dict[str, list[Rule]]:
    """Option or argument → its rules, from the annotations of the command's function."""
    annotations = getattr(command.callback, "__annotations__", {})
    rules = {
        name_of(parameter): [rule for rule in get_args(annotations.get(parameter.name)) if isinstance(rule, Rule)]
        for parameter in command.params
    }
    return {name: found for name, found in rules.items() if found}


def name_of(parameter: Any) -> str:
    """As the user types it: "--num-beams"; arguments as the usage line has them: "MODEL"."""
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
                if isinstance(rule, LeavesOnly):
                    self._check_alone(name, rule)
                elif not isinstance(rule, OnlyOn) and (problem := rule.problem(self.names)):
                    raise typer.BadParameter(problem, param_hint=name)

    def _check_alone(self, name: str, rule: LeavesOnly) -> None:
        for other in self.names:
            if other not in (name, *rule.options, *GENERAL_OPTIONS):
                raise typer.BadParameter(f"has no effect with {name}: leave one of them out", param_hint=other)

    def check_for(self, subject: str, **kinds: str) -> None:
        for name in self.names:
            for rule in self.rules.get(name, []):
                if isinstance(rule, OnlyOn) and not rule.applies_to(**kinds):
                    raise typer.BadParameter(f"does not apply to {subject}: leave it out", param_hint=name)


_typed: ContextVar[_TypedOptions] = ContextVar("typed options")


@contextmanager
def checked_options(command: Any, ctx: Any) -> Iterator[None]:
    """Refuse options that have no effect, and let the command ask about those that depend on what it works on."""
    typed = [name_of(p) for p in command.params if _is_typed(ctx, p)]
    options = _TypedOptions(typed, rules_of(command))
    options.check()
    token = _typed.set(options)
    try:
        yield
    finally:
        _typed.reset(token)


def check_options_for(subject: str, **kinds: str) -> None:
    """Refuse options that do not matter on a model or data of these kinds. `subject` names it in the error."""
    if (options := _typed.get(None)) is not None:  # None: the function of a verb, called from Python
        options.check_for(subject, **kinds)


def _is_typed(ctx: Any, parameter: Any) -> bool:
    source = ctx.get_parameter_source(parameter.name)
    return source is not None and source.name == "COMMANDLINE"


def _listed(options: tuple[str, ...]) -> str:
    if len(options) > 4:
        options = (*options[:3], "…")
    return options[0] if len(options) == 1 else f"{', '.join(options[:-1])} or {options[-1]}"

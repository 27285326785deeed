"""What every config is: frozen, strict, and made by `build`, whose errors name the key, the rule and the way out."""

import inspect
import re
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from headway.config.renamed import RENAMED
from headway.errors import ConfigError, suggest


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all configs: frozen and strict."""

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, checked like the original."""
        return build(type(self), {**msgspec.to_builtins(self), **changes})


C = TypeVar("C", bound=Config)


def build(kind: type[C], table: Mapping[str, Any], where: str = "") -> C:
    """A config from plain values, with errors that name the key, the rule and the nearest key that exists."""
    try:
        return msgspec.convert(dict(table), kind)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), kind, table, where)) from None


def _explain(message: str, kind: Any, table: Any, where: str) -> str:
    """Say in our words what msgspec says in its own: "Expected `int`, got `str` - at `$.train.steps`"."""
    text, _, location = message.partition(" - at `")
    inner = [part for part in location.rstrip("`").removeprefix("$").split(".") if part]
    path = ".".join(filter(None, [where, *inner]))
    if not text.startswith(("Object contains", "Expected", "Invalid")):
        # A rule of our own, from a __post_init__, which knows the field but not where it is.
        return f"{path}.{text}" if path and re.match(r"\w+=", text) else text
    for part in inner:  # walk to the value that is wrong and the type it should have had
        part, _, index = part.partition("[")
        hint = get_type_hints(kind).get(part)
        table = table.get(part) if isinstance(table, Mapping) else None
        if index and get_origin(hint) is list and isinstance(table, list):
            hint, table = get_args(hint)[0], table[int(index.rstrip("]"))]
        if families := {k.__struct_config__.tag: k for k in get_args(hint) if hasattr(k, "__struct_config__")}:
            if not isinstance(table, Mapping) or table.get("family") not in families:
                return f"{path}={table!r}: {text[0].lower()}{text[1:]}".replace("`", "")
            hint = families[table["family"]]
        kind = hint
    if unknown := re.search(r"unknown field `(.*)`", text):
        names = list(kind.__struct_fields__)
        key = ".".join(filter(None, [path, unknown[1]]))
        if new := _new_name(unknown[1], names):
            return f"no setting {key!r}: its name is {'.'.join(filter(None, [path, new]))!r} now"
        near = suggest(unknown[1], names)  # "Did you mean 'steps'?", to be found at "train.steps"
        near = near.replace("'", f"'{path}.", 1) if near and path else near
        return f"no setting {key!r}." + (near or f" There are: {', '.join(names)}")
    if names := _choices(kind):
        known = [name for name in names if isinstance(name, str)]
        listed = ", ".join(str(name).lower() if isinstance(name, bool) else repr(name) for name in names)
        return f"{path}={table!r} is not one of {listed}." + suggest(str(table), known)
    return f"{path}={table!r}: {text[0].lower()}{text[1:]}".replace("`", "")


def _new_name(old: str, names: list[str]) -> str | None:
    """What a setting is called now, if it was renamed and this config has it."""
    return next((new for key, new in RENAMED.items() if key.partition(".")[2] == old and new in names), None)


def _choices(kind: Any) -> list[Any]:
    """The values of a type that has a few; none of others."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    if get_origin(kind) not in (Union, UnionType):
        return [True, False] if kind is bool else []
    found = [_choices(member) for member in get_args(kind) if member is not NoneType]
    return [value for some in found for value in some] if all(found) else []


def notes(kind: type[Config]) -> dict[str, str]:
    """What the comments beside the fields say: the one place where settings are explained."""
    found: dict[str, str] = {}
    for base in reversed([b for b in kind.__mro__ if issubclass(b, Config)]):
        found |= dict(re.findall(r"^    (\w+): .*?  # (.*)$", inspect.getsource(base), re.MULTILINE))
    return found


def at_least(config: Config, name: str, least: int) -> None:
    value = getattr(config, name)
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{name}={value!r} is not a whole number")
    if value < least:
        raise ConfigError(f"{name}={value} must be at least {least}")


def probabilities(config: Config, name: str) -> None:
    value = getattr(config, name)
    if value is not None and not 0 <= value < 1:
        raise ConfigError(f"{name}={value} is not a probability below 1; 0 turns it off")


def one_of(config: Config, **choices: Any) -> None:
    """For configs made in Python, whose types nobody checked."""
    for name, kind in choices.items():
        if getattr(config, name) not in get_args(kind):
            names = ", ".join(map(repr, get_args(kind)))
            raise ConfigError(f"{name}={getattr(config, name)!r} is not one of {names}")

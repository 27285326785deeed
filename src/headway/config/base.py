"""The base of all configs: frozen, strict, and documented by their own fields.

A field states its type, its range and what it means in one place:

    steps: Annotated[PositiveInt, about("optimizer steps")] = 1000

`build` makes a config from plain values (TOML, flags), where msgspec checks types and ranges; a config made in Python
checks its ranges itself. Either way the error names the key, the rule and the nearest key that exists.
"""

import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from headway.config.renamed import RENAMED
from headway.errors import ConfigError, suggest

PositiveInt = Annotated[int, Meta(ge=1)]
NonNegativeInt = Annotated[int, Meta(ge=0)]
PositiveFloat = Annotated[float, Meta(gt=0)]
NonNegativeFloat = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, lt=1)]  # probabilities, decay rates and parts of a whole


def about(description: str) -> Meta:
    """What a field means: shown by `headway train RECIPE --print-config`."""
    return Meta(description=description)


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all configs: frozen and strict."""

    def __post_init__(self) -> None:
        for name, hint in _field_types(type(self)).items():
            _check_range(name, getattr(self, name), hint)

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, checked like the original."""
        return build(type(self), {**msgspec.to_builtins(self), **changes})


C = TypeVar("C", bound=Config)


def build(kind: type[C], table: Mapping[str, Any], where: str = "") -> C:
    """A config from plain values. `where` is the table it stands in, for error messages."""
    try:
        return msgspec.convert(dict(table), kind)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), kind, table, where)) from None


def descriptions(kind: type[Config]) -> dict[str, str]:
    """Field → what it means and which values it may have. A subclass inherits the meaning of a field it redefines."""
    texts = {}
    for name, hint in _field_types(kind).items():
        bases = [base for base in kind.__mro__ if issubclass(base, Config) and name in _field_types(base)]
        metas = (meta for base in bases for meta in _metas(_field_types(base)[name]))
        meaning = next((meta.description for meta in metas if meta.description), "")
        choices = _choices(_plain(hint))
        listed = "" if choices in ([], [True, False]) else _listed([str(choice) for choice in choices])
        texts[name] = "; ".join(filter(None, [meaning, listed]))
    return {name: text for name, text in texts.items() if text}


def _listed(choices: list[str]) -> str:
    """["a", "b", "True"] → "a, b or true"."""
    names = [{"True": "true", "False": "false"}.get(choice, choice) for choice in choices]
    return " or ".join([", ".join(names[:-1]), names[-1]])


# ── ranges ────────────────────────────────────────────────────────────────────────────────────────────────────────


@cache
def _field_types(kind: type[Config]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {name: hints[name] for name in kind.__struct_fields__}


def _metas(hint: Any) -> Iterator[Meta]:
    """Every `Meta` of a type, also of the members of a union."""
    if get_origin(hint) is Annotated:
        inner, *metas = get_args(hint)
        yield from (meta for meta in metas if isinstance(meta, Meta))
        yield from _metas(inner)
    elif get_origin(hint) in (Union, UnionType):
        for member in get_args(hint):
            yield from _metas(member)


def _plain(hint: Any) -> Any:
    """The type without annotations: `Annotated[int, …] | None` → `int | None`."""
    if get_origin(hint) is Annotated:
        return _plain(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return Union[tuple(_plain(member) for member in get_args(hint))]  # noqa: UP007 (made at run time)
    return hint


def _check_range(name: str, value: Any, hint: Any) -> None:
    """Refuse a value outside the range or choices of its type. msgspec checks only what it converts."""
    if value is None:
        return
    plain = _plain(hint)
    if (choices := _choices(plain)) and value not in choices:
        raise ConfigError(f"{name}={value!r} is not one of {', '.join(map(repr, choices))}")
    metas = [meta for meta in _metas(hint) if not {meta.ge, meta.gt, meta.le, meta.lt} <= {None}]
    if not metas:
        return
    members = get_args(plain) or (plain,)
    if int in members and (not isinstance(value, int) or isinstance(value, bool)):
        raise ConfigError(f"{name}={value!r} is not a whole number")
    if not isinstance(value, int | float):
        raise ConfigError(f"{name}={value!r} is not a number")
    for meta in metas:
        is_inside = (
            (meta.ge is None or value >= meta.ge)
            and (meta.gt is None or value > meta.gt)
            and (meta.le is None or value <= meta.le)
            and (meta.lt is None or value < meta.lt)
        )
        if not is_inside:
            raise ConfigError(f"{name}={value} {_rule(meta)}")
        if not math.isfinite(value):
            raise ConfigError(f"{name}={value} must be a finite number")


def _rule(meta: Meta) -> str:
    """A range in words: "must be at least 0 and below 1"."""
    bounds = {"at least": meta.ge, "above": meta.gt, "at most": meta.le, "below": meta.lt}
    return "must be " + " and ".join(f"{word} {bound}" for word, bound in bounds.items() if bound is not None)


def _choices(kind: Any) -> list[Any]:
    """The values of a type that has a few, such as a `Literal`; an empty list for other types."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    if get_origin(kind) not in (Union, UnionType):
        return [True, False] if kind is bool else []
    members = [_choices(member) for member in get_args(kind) if member is not NoneType]
    return [value for values in members for value in values] if all(members) else []


# ── errors ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _explain(message: str, kind: Any, table: Any, where: str) -> str:
    """Rewrite msgspec's message ("Expected `int`, got `str` - at `$.train.steps`") with the key, value and rule."""
    text, _, location = message.partition(" - at `")
    location = location.rstrip("`").removeprefix("$").removesuffix("[...]")  # an entry of a dict
    keys = [key for key in location.split(".") if key]
    path = ".".join(filter(None, [where, *keys]))
    if not text.startswith(("Object contains", "Expected", "Invalid")):
        # A check of our own, from a __post_init__, which knows the field but not the table it stands in.
        return f"{path}.{text}" if path and re.match(r"\w+=", text) else text
    hint: Any = kind
    for key in keys:  # walk to the value that is wrong and to its type
        key, _, index = key.partition("[")
        hint = get_type_hints(kind, include_extras=True).get(key) if hasattr(kind, "__struct_fields__") else None
        plain = _plain(hint)
        table = table.get(key) if isinstance(table, Mapping) else None
        if index and get_origin(plain) is list and isinstance(table, list):
            hint, table = get_args(plain)[0], table[int(index.rstrip("]"))]
        if families := {k.__struct_config__.tag: k for k in get_args(plain) if hasattr(k, "__struct_config__")}:
            if not isinstance(table, Mapping) or table.get("family") not in families:
                return f"{path}={table!r}: {text[0].lower()}{text[1:]}".replace("`", "")
            hint = families[table["family"]]
        kind = _plain(hint)
    if unknown := re.search(r"unknown field `(.*)`", text):
        return _explain_unknown(unknown[1], path, list(kind.__struct_fields__))
    if choices := _choices(kind):
        names = [name for name in choices if isinstance(name, str)]
        listed = ", ".join(str(choice).lower() if isinstance(choice, bool) else repr(choice) for choice in choices)
        return f"{path}={table!r} is not one of {listed}." + suggest(str(table), names)
    if re.match(r"Expected `\w+` [<>]", text) and (rules := [_rule(m) for m in _metas(hint) if m.description is None]):
        return f"{path}={table!r} {rules[0]}"
    return f"{path}={table!r}: {text[0].lower()}{text[1:]}".replace("`", "")


def _explain_unknown(name: str, path: str, names: list[str]) -> str:
    def dotted(field: str) -> str:
        return ".".join(filter(None, [path, field]))

    renamed = (new for old, new in RENAMED.items() if old.partition(".")[2] == name and new in names)
    if new := next(renamed, None):
        return f"no setting {dotted(name)!r}: its name is {dotted(new)!r} now"
    near = suggest(name, names)  # " Did you mean 'steps'?"
    return f"no setting {dotted(name)!r}." + (
        near.replace("'", f"'{path}.", 1) if near and path else near or f" Settings: {', '.join(names)}"
    )

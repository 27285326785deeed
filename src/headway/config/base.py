"""The base of all configs: frozen, strict, and documented by their own fields.

A field states its type, its range and what it means in one place:

    steps: Annotated[PositiveInt, about("optimizer steps")] = 1000

`build` makes a config from plain values (TOML, flags), where msgspec checks types and ranges; a config made in Python
checks its ranges itself. Either way the error names the key, the rule and the nearest key that exists.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from headway.config.choices import CHOICES
from headway.config.renamed import RENAMED, SYNONYMS
from headway.entry_points import plugin_hint
from headway.errors import ConfigError, did_you_mean, nearest, suggest

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
    """A config from plain values. `where` is the table it stands in, for error messages.

    "none" unsets a setting that may be unset, since TOML has no null.
    """
    table = _with_none(kind, table)
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        setting = _dotted(where, _location(str(error)), _field_at_fault(error))
        raise ConfigError(_explain(str(error), kind, table, where), setting=setting) from None
    except UnicodeEncodeError as error:
        raise ConfigError(f"{error.object!r:.80} is not valid text: it has a lone surrogate; remove it") from None


def _with_none(kind: type[Config], table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with None in place of "none", in this config and in the configs it holds."""
    values = dict(table)
    for name, hint in _field_types(kind).items():
        plain, value = _plain(hint), values.get(name)
        if isinstance(plain, type) and issubclass(plain, Config) and isinstance(value, Mapping):
            values[name] = _with_none(plain, value)
        elif value == "none" and NoneType in get_args(plain):
            values[name] = None
    return values


def descriptions(kind: type[Config]) -> dict[str, str]:
    """Field → what it means and which values it may have. A subclass inherits the meaning of a field it redefines."""
    texts = {}
    for name, hint in _field_types(kind).items():
        bases = [base for base in kind.__mro__ if issubclass(base, Config) and name in _field_types(base)]
        metas = (meta for base in bases for meta in _metas(_field_types(base)[name]))
        meaning = next((meta.description for meta in metas if meta.description), "")
        choices = _choices(hint)
        values = "" if choices in ([], [True, False]) else listed(choices)
        texts[name] = "; ".join(filter(None, [meaning, values]))
    return {name: text for name, text in texts.items() if text}


def listed(choices: Iterable[Any]) -> str:
    """["a", "b", True] → "a, b or true"."""
    names = [str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in choices]
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


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
    if (choices := _choices(hint)) and value not in choices:
        raise ConfigError(f"{name}={_not_one_of(value, choices, _registry(hint))}", setting=name)
    metas = [meta for meta in _metas(hint) if not {meta.ge, meta.gt, meta.le, meta.lt} <= {None}]
    if not metas:
        return
    members = get_args(plain) or (plain,)
    words = _words(hint)
    if value in words:
        return
    if int in members and (not isinstance(value, int) or isinstance(value, bool)):
        or_word = f" or {listed(words)}" if words else ""
        raise ConfigError(f"{name}={value!r} is not a whole number{or_word}", setting=name)
    if not isinstance(value, int | float):
        raise ConfigError(f"{name}={value!r} is not a number", setting=name)
    for meta in metas:
        is_inside = (
            (meta.ge is None or value >= meta.ge)
            and (meta.gt is None or value > meta.gt)
            and (meta.le is None or value <= meta.le)
            and (meta.lt is None or value < meta.lt)
        )
        if not is_inside:
            raise ConfigError(f"{name}={value} {_rule(meta)}", setting=name)
        if not math.isfinite(value):
            raise ConfigError(f"{name}={value} must be a finite number", setting=name)


def _words(hint: Any) -> list[Any]:
    """The words that a type allows beside numbers, such as "auto"."""
    members = get_args(_plain(hint))
    return [word for member in members if get_origin(member) is Literal for word in get_args(member)]


def _rule(meta: Meta) -> str:
    """A range in words: "must be at least 0 and below 1"."""
    bounds = {"at least": meta.ge, "above": meta.gt, "at most": meta.le, "below": meta.lt}
    return "must be " + " and ".join(f"{word} {bound}" for word, bound in bounds.items() if bound is not None)


def _registry(hint: Any) -> str | None:
    """The key of `CHOICES` that lists the values of a type, if names can be registered for it."""
    return next((str(meta.extra["choices"]) for meta in _metas(hint) if meta.extra), None)


def _choices(hint: Any) -> list[Any]:
    """The values of a type that has a few, such as a `Literal`; an empty list for other types."""
    if (registry := _registry(hint)) is not None:
        return list(CHOICES[registry])
    kind = _plain(hint)
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    if get_origin(kind) not in (Union, UnionType):
        return [True, False] if kind is bool else []
    members = [_choices(member) for member in get_args(kind) if member is not NoneType]
    return [value for values in members for value in values] if all(members) else []


# ── errors ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _dotted(*keys: str) -> str:
    return ".".join(filter(None, keys))


def _location(message: str) -> str:
    """The dotted key in a message of msgspec: "Expected `int`, got `str` - at `$.train.steps`" → "train.steps"."""
    location = message.partition(" - at `")[2].rstrip("`").removeprefix("$").removesuffix("[...]")  # an entry of a dict
    return location.strip(".")


def _field_at_fault(error: msgspec.ValidationError) -> str:
    """The field that msgspec's location leaves out: an unknown one, or one that a check of ours refused."""
    if isinstance(error.__cause__, ConfigError):
        return error.__cause__.setting
    unknown = re.search(r"unknown field `(.*?)`", str(error))
    return unknown[1] if unknown else ""


def _explain(message: str, kind: Any, table: Any, where: str) -> str:
    """Rewrite msgspec's message ("Expected `int`, got `str` - at `$.train.steps`") with the key, value and rule."""
    text, location = message.partition(" - at `")[0], _location(message)
    keys = [key for key in location.split(".") if key]
    path = _dotted(where, *keys)
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
        kind = _plain(hint)
    if unknown := re.search(r"unknown field `(.*)`", text):
        return _explain_unknown(unknown[1], path, kind)
    if choices := _choices(hint):
        return f"{path}={_not_one_of(table, choices)}"
    if text.startswith("Invalid enum") and (words := _words(hint)):
        other = "a table" if any(get_origin(member) is dict for member in get_args(_plain(hint))) else "a number"
        return f"{path}={table!r} is neither {other} nor {listed(words)}"
    if re.match(r"Expected `\w+` [<>]", text) and (rules := [_rule(m) for m in _metas(hint) if m.description is None]):
        return f"{path}={table!r} {rules[0]}"
    if expected := re.match(r"Expected `(.*?)`, got", text):
        return f"{path}={table!r} is not {_type_in_words(expected[1])}"
    return f"{path}={table!r}: {text[0].lower()}{text[1:]}".replace("`", "")


TYPES_IN_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "array": "a list",
    "object": "a table",
}


def _type_in_words(names: str) -> str:
    """A type as msgspec names it, in words: "float | null" → "a number (or none)"."""
    members = names.split(" | ")
    words = [TYPES_IN_WORDS.get(member, member) for member in members if member != "null"]
    return " or ".join(words) + " (or none)" * ("null" in members)


def _not_one_of(value: Any, choices: list[Any], registry: str | None = None) -> str:
    """The rest of the message "train.optimizer='adamW' is not one of …", with a suggestion."""
    names = [name for name in choices if isinstance(name, str)]
    listed = ", ".join(str(choice).lower() if isinstance(choice, bool) else repr(choice) for choice in choices)
    near = suggest(str(value), names)
    return f"{value!r} is not one of {listed}." + (near or (f" {plugin_hint(registry, value)}" if registry else ""))


def _has_field(kind: Any, name: str) -> bool:
    """Whether a config, or one that derives from it, has a field of this name."""
    if not isinstance(kind, type) or not issubclass(kind, Config):
        return False
    return name in kind.__struct_fields__ or any(_has_field(subclass, name) for subclass in kind.__subclasses__())


STANDS_IN = {"finetune": "model"}  # a part of the recipe → the table of the file that has its settings


def _explain_unknown(name: str, path: str, kind: Any) -> str:
    names = list(kind.__struct_fields__)

    def dotted(field: str) -> str:
        return _dotted(path, field)

    renamed = (new for old, new in RENAMED.items() if old.partition(".")[2] == name and new in names)
    if new := next(renamed, None):
        return f"no setting {dotted(name)!r}: its name is {dotted(new)!r} now"
    if not path:  # the name of a setting without its table
        tables = {table: _plain(hint) for table, hint in _field_types(kind).items()}
        if synonym := SYNONYMS.get(name):
            return f"no setting {name!r}. Did you mean {synonym!r}?"
        if inside := [f"{STANDS_IN.get(table, table)}.{name}" for table, c in tables.items() if _has_field(c, name)]:
            return f"no setting {name!r}. Did you mean {' or '.join(map(repr, inside))}?"
    if name in ("epochs", "num_epochs", "max_epochs"):
        return f"no setting {dotted(name)!r}. Did you mean 'train.epochs', or for running text 'train.steps'?"
    table, _, field = SYNONYMS.get(name, "").partition(".")
    if field and (table != path or field in names):
        return f"no setting {dotted(name)!r}. Did you mean {f'{table}.{field}'!r}?"
    near = did_you_mean([dotted(field) for field in nearest(name, names)])
    return f"no setting {dotted(name)!r}." + (near or f" Settings: {', '.join(names)}")

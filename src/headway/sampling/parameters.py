"""Kinds of sampler parameters, their ranges and checks. No torch here: columns.py turns checked values into tensors.

Values are checked when a pipeline is built, before any token is generated.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headway.errors import ConfigError

LARGEST_INTEGER = 2**62  # fits in a 64-bit tensor with room for sums


@dataclass(frozen=True)
class NumberParam:
    """A float, or an integer where `is_integer`, from `low` to `high`; both bounds are inclusive unless open."""

    help: str
    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False
    default: Any = None
    off: Any = None
    usual: str = ""
    is_integer: bool = False
    flag: bool = True

    @property
    def range(self) -> str:
        kind = "an integer" if self.is_integer else "a number"
        if math.isinf(self.low) and math.isinf(self.high):
            return kind
        if math.isinf(self.high):
            return f"{kind} {'>' if self.low_open else '>='} {self.low:g}"
        below = "below " if self.high_open else ""
        return f"{kind} {'above' if self.low_open else 'from'} {self.low:g} to {below}{self.high:g}"

    def check(self, name: str, value: Any) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            raise ConfigError(
                f"{name}={str(value)[:12]}… has {len(str(value))} digits: use {self.range} that fits in 64 bits"
            )
        if is_number and self.is_integer:
            is_number = float(value).is_integer()
        in_range = is_number and math.isfinite(value)
        in_range = in_range and (self.low < value if self.low_open else self.low <= value)
        if not (in_range and (value < self.high if self.high_open else value <= self.high)):
            off = "" if self.off is None else f"; {self.off:g} turns it off"
            finite = "finite: " if is_number and not math.isfinite(value) else ""
            raise ConfigError(f"{name}={value!r} must be {finite}{self.range}{off}")
        return int(value) if self.is_integer else float(value)

    def is_per_row(self, value: Any) -> bool:
        return isinstance(value, list | tuple)


def IntParam(help: str, low: int = 0, **options: Any) -> NumberParam:  # noqa: N802 (a constructor, like NumberParam)
    return NumberParam(help, low, is_integer=True, **options)


@dataclass(frozen=True)
class ScopeParam:
    """The part of the history that counts."""

    default: str
    help: str = "tokens that count: prompt and generated tokens, or only the generated ones"
    off: None = None
    range: str = "all or generated"
    usual: str = ""
    flag: bool = True

    def check(self, name: str, value: Any) -> str:
        if value not in ("all", "generated"):
            raise ConfigError(f"{name}={value!r} must be 'all' (prompt and generated tokens) or 'generated'")
        return value

    def is_per_row(self, value: Any) -> bool:
        return isinstance(value, list | tuple)


@dataclass(frozen=True)
class TokenIdsParam:
    """A set of token ids. A flag takes texts instead, one per use; `flag_alias` is its second name."""

    help: str
    default: tuple[int, ...] = ()
    off: None = None
    range: str = "token ids"
    usual: str = ""
    flag: bool = True
    flag_range: str = "text, standing for every token that contains it; repeatable"
    flag_alias: str = ""

    def check(self, name: str, value: Any) -> tuple[int, ...]:
        ids = (value,) if isinstance(value, int) else tuple(value) if isinstance(value, Iterable) else (value,)
        if not all(isinstance(id, int) and not isinstance(id, bool) and id >= 0 for id in ids):
            raise ConfigError(f"{name}={value!r} must be token ids: integers >= 0")
        return tuple(sorted(set(ids)))

    def is_per_row(self, value: Any) -> bool:
        return isinstance(value, list | tuple) and any(isinstance(v, list | tuple | set | frozenset) for v in value)


@dataclass(frozen=True)
class BiasParam:
    """Logit offsets: {token id: value} or [(token id, value), …]. A flag takes TOKEN=VALUE, one pair per use."""

    help: str
    default: tuple[Any, ...] = ()
    off: None = None
    range: str = "token ids with finite values, or -inf to ban"
    usual: str = ""
    flag: bool = True
    flag_range: str = "TOKEN=VALUE with an id or a text that is one token; repeatable"

    def check(self, name: str, value: Any) -> tuple[tuple[int, float], ...]:
        pairs = list(value.items() if isinstance(value, Mapping) else value if isinstance(value, Iterable) else [value])
        offsets: dict[int, float] = {}
        for pair in pairs:
            try:
                id, offset = int(pair[0]), float(pair[1])
                is_pair = len(pair) == 2 and id == float(pair[0])
            except (TypeError, ValueError, IndexError):
                is_pair = False
            if not is_pair:
                raise ConfigError(f"{name}={value!r} must be {{token id: value}} or a list of (token id, value) pairs")
            if id < 0:
                raise ConfigError(f"{name} names token {id}: token ids are integers >= 0")
            if math.isnan(offset) or offset == math.inf:
                raise ConfigError(f"{name} gives token {id} the value {offset}: use a finite number, or -inf to ban it")
            offsets[id] = offsets.get(id, 0.0) + offset
            if offsets[id] == math.inf:
                raise ConfigError(f"{name} gives token {id} values that sum to infinity: use smaller values, or -inf")
        return tuple(sorted(offsets.items()))

    def is_per_row(self, value: Any) -> bool:
        """True for a list of maps, or of lists of pairs."""
        if isinstance(value, Mapping) or not isinstance(value, list | tuple):
            return False
        return any(
            isinstance(v, Mapping) or (isinstance(v, list | tuple) and (not v or isinstance(v[0], list | tuple)))
            for v in value
        )


Parameter = NumberParam | ScopeParam | TokenIdsParam | BiasParam


def to_python(value: Any) -> Any:
    """Convert tensors, NumPy arrays and NumPy scalars to Python lists and numbers."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        value = [v.tolist() if hasattr(v, "tolist") else v for v in value]
    return value

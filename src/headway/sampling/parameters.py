"""What a stage may be told: kinds of parameters, their ranges, and how one value, or one per row, becomes a column.

A value is checked when the configuration is built, before any token is made. Numbers become columns (1, 1) or (B, 1),
sets of tokens (1, M) or (B, M) filled up with −1.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headway.errors import ConfigError, suggest

MOST = 2.0**62  # of a whole number; floats end far above


@dataclass(frozen=True)
class NumberParam:
    """A float, or an integer where `is_whole`, from `low` to `high`; the ends belong to it unless open."""

    help: str
    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False
    default: Any = None
    off: Any = None
    usual: str = ""
    is_whole: bool = False

    @property
    def range(self) -> str:
        kind = "a whole number" if self.is_whole else "a number"
        if math.isinf(self.low) and math.isinf(self.high):
            return kind
        if math.isinf(self.high):
            return f"{kind} above {self.low:g}" if self.low_open else f"{kind} of {self.low:g} or more"
        below = "below " if self.high_open else ""
        return f"{kind} {'above' if self.low_open else 'from'} {self.low:g} to {below}{self.high:g}"

    def check(self, where: str, value: Any) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and isinstance(value, int) and abs(value) > MOST:
            raise ConfigError(
                f"{where}={str(value)[:12]}… has {len(str(value))} digits: {self.range} that a machine can hold"
            )
        if is_number and self.is_whole:
            is_number = float(value).is_integer()
        fits = is_number and math.isfinite(value)
        fits = fits and (self.low < value if self.low_open else self.low <= value)
        if not (fits and (value < self.high if self.high_open else value <= self.high)):
            off = "" if self.off is None else f"; {self.off:g} turns it off"
            finite = "finite, " if is_number and not math.isfinite(value) else ""
            raise ConfigError(f"{where}={value!r} must be {finite}{self.range}{off}")
        return int(value) if self.is_whole else float(value)

    def is_per_row(self, value: Any) -> bool:
        return isinstance(value, list | tuple)

    def column(self, values: list[Any], device: torch.device) -> Tensor:
        dtype = torch.long if self.is_whole else torch.float64
        if len(values) == 1:  # a fill needs no copy from the host
            return torch.full((1, 1), values[0], dtype=dtype, device=device)
        return torch.tensor(values, dtype=dtype, device=device)[:, None]


def IntParam(help: str, low: int = 0, **rest: Any) -> NumberParam:  # noqa: N802 (it makes a kind of parameter, as Number does)
    return NumberParam(help, low, is_whole=True, **rest)


@dataclass(frozen=True)
class ScopeParam:
    """Which part of the history counts."""

    default: str
    help: str = "what counts: all (prompt and generated) or generated"
    off: None = None
    range: str = "all or generated"
    usual: str = ""

    def check(self, where: str, value: Any) -> str:
        if value not in ("all", "generated"):
            raise ConfigError(f"{where}={value!r} must be 'all' (prompt and generated) or 'generated'")
        return value

    def is_per_row(self, value: Any) -> bool:
        return isinstance(value, list | tuple)

    def column(self, values: list[str], device: torch.device) -> Tensor:
        return torch.tensor([value == "generated" for value in values], device=device)[:, None]


@dataclass(frozen=True)
class TokenIdsParam:
    """A set of token ids."""

    help: str
    default: tuple[int, ...] = ()
    off: None = None
    range: str = "token ids"
    usual: str = ""

    def check(self, where: str, value: Any) -> tuple[int, ...]:
        ids = (value,) if isinstance(value, int) else tuple(value) if isinstance(value, Iterable) else (value,)
        if not all(isinstance(id, int) and not isinstance(id, bool) and id >= 0 for id in ids):
            raise ConfigError(f"{where}={value!r} must be token ids: whole numbers of 0 or more")
        return tuple(sorted(set(ids)))

    def is_per_row(self, value: Any) -> bool:
        return isinstance(value, list | tuple) and any(isinstance(v, list | tuple | set | frozenset) for v in value)

    def column(self, values: list[tuple[int, ...]], device: torch.device) -> Tensor:
        return _filled([list(ids) for ids in values], -1, torch.long, device)


@dataclass(frozen=True)
class BiasParam:
    """Offsets of logits: {token id: value} or [(token id, value), …]."""

    help: str
    default: tuple[Any, ...] = ()
    off: None = None
    range: str = "token ids with finite values, or −inf to ban"
    usual: str = ""

    def check(self, where: str, value: Any) -> tuple[tuple[int, float], ...]:
        pairs = list(value.items() if isinstance(value, Mapping) else value if isinstance(value, Iterable) else [value])
        found: dict[int, float] = {}
        for pair in pairs:
            try:
                id, offset = int(pair[0]), float(pair[1])
                is_pair = len(pair) == 2 and id == float(pair[0])
            except (TypeError, ValueError, IndexError):
                is_pair = False
            if not is_pair:
                raise ConfigError(f"{where}={value!r} must be {{token id: value}} or pairs of them")
            if id < 0:
                raise ConfigError(f"{where} names token {id}: ids are whole numbers of 0 or more")
            if math.isnan(offset) or offset == math.inf:
                raise ConfigError(f"{where} gives token {id} the value {offset}: a finite number, or -inf to ban it")
            found[id] = found.get(id, 0.0) + offset
            if found[id] == math.inf:
                raise ConfigError(f"{where} gives token {id} values that sum to infinity: a finite number, or -inf")
        return tuple(sorted(found.items()))

    def is_per_row(self, value: Any) -> bool:
        """A list of maps, or of lists of pairs."""
        if isinstance(value, Mapping) or not isinstance(value, list | tuple):
            return False
        return any(
            isinstance(v, Mapping) or (isinstance(v, list | tuple) and (not v or isinstance(v[0], list | tuple)))
            for v in value
        )

    def column(self, values: list[tuple[tuple[int, float], ...]], device: torch.device) -> tuple[Tensor, Tensor]:
        ids = _filled([[id for id, _ in row] for row in values], -1, torch.long, device)
        return ids, _filled([[offset for _, offset in row] for row in values], 0.0, torch.float64, device)


Parameter = NumberParam | ScopeParam | TokenIdsParam | BiasParam

# A stage's strength has the stage's name, except where the stage has several parameters of equal rank.
OWN_NAME = {
    "logit_bias": "bias",
    "no_repeat_ngram": "n",
    "min_new_tokens": "min_new",
    "repetition_penalty": "penalty",
    "frequency_penalty": "penalty",
    "presence_penalty": "penalty",
    "top_n_sigma": "n",
    "top_k": "k",
    "typical": "p",
    "tail_free": "z",
    "top_a": "a",
    "eta_cutoff": "epsilon",
    "epsilon_cutoff": "epsilon",
    "top_p": "p",
    "min_p": "p",
    "temperature": "temperature",
}


def flat_name(stage: str, parameter: str) -> str:
    """`top_k` for top_k's k, `dry_multiplier` for dry's multiplier, `repetition_window` for a penalty's window."""
    if OWN_NAME.get(stage) == parameter:
        return stage
    return f"{stage.removesuffix('_penalty')}_{parameter}"


def to_python(value: Any) -> Any:
    """Tensors, arrays and numbers of numpy as Python has them."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        value = [v.tolist() if hasattr(v, "tolist") else v for v in value]
    return value


def parse_values(stage: str, parameters: Mapping[str, Parameter], given: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The values of a stage, checked: for each parameter a list of one, or of one per row."""
    for name in given:
        if name not in parameters:
            known = ", ".join(parameters)
            raise ConfigError(f"{stage} has no parameter {name!r}.{suggest(name, parameters)} It has: {known}")
    values = {}
    for name, parameter in parameters.items():
        default = parameter.off if parameter.default is None else parameter.default
        if name not in given and default is None:
            raise ConfigError(f"{stage} needs {name}: {parameter.help} ({parameter.range})")
        value = to_python(given.get(name, default))
        if isinstance(parameter, NumberParam) and isinstance(value, list):
            value = [v[0] if isinstance(v, list) and len(v) == 1 else v for v in value]  # a column (B, 1)
        rows = list(value) if parameter.is_per_row(value) else [value]
        if not rows:
            raise ConfigError(f"{flat_name(stage, name)} is an empty list: one value, or one per row")
        values[name] = [parameter.check(flat_name(stage, name), row) for row in rows]
    lengths = {name: len(rows) for name, rows in values.items() if len(rows) > 1}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} {n}" for name, n in lengths.items())
        raise ConfigError(f"{stage} has values for different numbers of rows: {said}")
    return values


def _filled(rows: list[list[Any]], fill: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    width = max(map(len, rows), default=0)
    return torch.tensor([row + [fill] * (width - len(row)) for row in rows], dtype=dtype, device=device).view(
        len(rows), width
    )

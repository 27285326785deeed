"""The points of a sweep: which settings are tried, and what the folder of each run is called.

A grid has a list of values per setting and stands for all combinations; a range is for random search:

    --grid train.lr=1e-3,3e-3 --grid model.n_layers=2,4        4 points: lr=0.001,n_layers=2 …
    --range train.lr=1e-4..1e-2:log --random 20                20 points, uniform in log lr
"""

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headway.config.recipe import toml_value
from headway.config.recipe_loading import parse_setting
from headway.errors import ConfigError

MAX_NAME = 150  # characters of a folder's name


@dataclass(frozen=True)
class SweepPoint:
    """One run of a sweep: its folder's name, and the settings that differ between runs, by their dotted names."""

    name: str
    settings: dict[str, Any]

    @property
    def overrides(self) -> list[str]:
        """For `headway.load_recipe`: ["train.lr=0.001"]."""
        return [f"{key}={'none' if value is None else toml_value(value)}" for key, value in self.settings.items()]


@dataclass(frozen=True)
class SweepRange:
    """The numbers from `low` to `high`, both included, uniform or (`log`) uniform in their logarithm. Whole numbers if
    both ends are."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ConfigError(f"the range {self} is empty: the first number must be below the second")
        if self.log and self.low <= 0:
            raise ConfigError(f"the range {self} cannot be logarithmic: its numbers must be above 0")

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}{':log' if self.log else ''}"

    @property
    def is_integer(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


# ── what the user writes ──────────────────────────────────────────────────────────────────────────────────────────


def parse_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    """["train.lr=1e-3,3e-3"] → {"train.lr": [0.001, 0.003]}. Commas inside brackets and quotes do not separate."""
    grid: dict[str, list[Any]] = {}
    for text in texts:
        key, values = _key_and_value(text, "--grid", "train.lr=1e-3,3e-3")
        if key in grid:
            raise ConfigError(f"--grid {key} is given twice; list all values in one: {key}=VALUE,VALUE")
        items = split_values(values)
        if not all(items):
            raise ConfigError(f"--grid {text!r} has an empty value between its commas")
        grid[key] = [parse_setting(f"{key}={item}")[1] for item in items]
    return grid


def split_values(text: str) -> list[str]:
    """The values of a list, separated by commas outside brackets, braces and quotes."""
    items, depth, quote = [""], 0, ""
    for character in text:
        before = items[-1].rstrip()[-1:]
        if quote:
            quote = "" if character == quote and before != "\\" else quote
        elif character in "\"'" and before in ("", *"[{,="):  # an apostrophe within a word quotes nothing
            quote = character
        else:
            depth += (character in "[{") - (character in "]}")
        if character == "," and not quote and depth <= 0:
            items.append("")
        else:
            items[-1] += character
    return [item.strip() for item in items]


def parse_ranges(texts: Sequence[str]) -> dict[str, SweepRange]:
    """["train.lr=1e-4..1e-2:log"] → {"train.lr": SweepRange(0.0001, 0.01, log=True)}."""
    ranges: dict[str, SweepRange] = {}
    for text in texts:
        key, value = _key_and_value(text, "--range", "train.lr=1e-4..1e-2:log")
        match = re.fullmatch(r"\s*(.+?)\s*\.\.\s*(.+?)\s*(:log)?\s*", value)
        try:
            low, high = (_parse_number(match[i]) for i in (1, 2)) if match else (None, None)
        except ValueError:
            low = high = None
        if match is None or low is None or high is None:
            raise ConfigError(
                f"--range {text!r} is not of the form table.key=LOW..HIGH, such as train.lr=1e-4..1e-2:log"
            )
        ranges[key] = SweepRange(low, high, bool(match[3]))
    return ranges


def _key_and_value(text: str, flag: str, example: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or not value.strip():
        raise ConfigError(f"{flag} {text!r} is not of the form table.key=…, such as {example}")
    return key.strip(), value


def _parse_number(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return float(text)


# ── points and their names ────────────────────────────────────────────────────────────────────────────────────────


def grid_points(grid: Mapping[str, Sequence[Any]]) -> list[SweepPoint]:
    """Every combination; the values of the last setting vary fastest."""
    combinations = itertools.product(*grid.values())
    return named_points([dict(zip(grid, values, strict=True)) for values in combinations])


def named_points(settings: Sequence[dict[str, Any]]) -> list[SweepPoint]:
    """The points with their names. A point that comes twice is an error in the list of values."""
    keys = list(settings[0]) if settings else []
    points: dict[str, SweepPoint] = {}
    for values in settings:
        name = point_name(values, short_keys(keys))
        if name in points:
            raise ConfigError(f"{name} is listed twice: list each value once")
        points[name] = SweepPoint(name, values)
    return list(points.values())


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """The last part of each dotted name, or all of it if two end alike: {"train.lr": "lr"}."""
    last = [key.rpartition(".")[2] for key in keys]
    return {key: name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)}


def point_name(settings: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """lr=0.001,n_layers=2. What a folder's name cannot hold is replaced, and a digest keeps the name unique."""
    exact = ",".join(f"{names[key]}={format_value(value)}" for key, value in settings.items())
    name = re.sub(r"[^\w.,=+-]+", "-", exact)[:MAX_NAME]
    return name if name == exact else f"{name}-{hashlib.sha256(exact.encode()).hexdigest()[:6]}"


def format_value(value: Any) -> str:
    """0.001, 3e-05, true, cosine: the shortest text that stands for the value."""
    if isinstance(value, bool) or value is None:
        return "none" if value is None else str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return value if isinstance(value, str) else json.dumps(value).replace(" ", "")

"""A table of runs: which columns there are, which runs are kept, and in which order (`headway runs`).

A column is one of COLUMNS, a score ("perplexity"), a setting by its dotted name or its last part ("model.n_layers",
"n_layers"), or a training metric that was logged last ("loss"). Filters compare a column: "family=gpt",
"train.lr<1e-3", "name=sweep/*".
"""

import fnmatch
import math
import operator
import os
import re
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from headway.errors import InputError, suggest
from headway.run_reader import TRAINING_METRICS, TrainingRun, find_runs, format_score
from headway.tables import Column, render_table

COLUMNS = ("name", "family", "parameters", "steps", "status", "tokens", "seconds", "score", "metric", "date")
TEXT_COLUMNS = frozenset({"name", "family", "status", "metric", "date"})
FIRST_TO_GO = ("date", "seconds", "tokens", "parameters", "metric", "family", "steps", "score", "status")
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}


class RunTable:
    """The runs below a folder."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.runs = find_runs(folder)

    def filter(self, conditions: Sequence[str]) -> None:
        """Keep the runs that meet all conditions."""
        for condition in conditions:
            column, compare = self._parse_condition(condition)
            self._check_column(column)
            self.runs = [run for run in self.runs if compare(self.value(run, column))]

    def sort(self, column: str, *, reverse: bool = False) -> None:
        """By the values of a column, the best score first; runs without a value come last."""
        self._check_column(column)

        def key(run: TrainingRun) -> Any:
            is_score = column == "score" and run.checkpoints
            return run.best.selection_loss if is_score else self.value(run, column)

        with_value = [run for run in self.runs if not _is_missing(key(run))]
        without = [run for run in self.runs if _is_missing(key(run))]
        is_text = not all(isinstance(key(run), int | float) for run in with_value)
        with_value.sort(key=lambda run: str(key(run)) if is_text else key(run), reverse=reverse)
        self.runs = with_value + without

    def rows(self, columns: Sequence[str] = COLUMNS) -> list[dict[str, Any]]:
        """One dict per run, ready for JSON or pandas."""
        for column in columns:
            self._check_column(column)
        return [{column: self.value(run, column) for column in columns} for run in self.runs]

    def render(self, columns: Sequence[str] = COLUMNS, width: int | None = None) -> str:
        rows = self.rows(columns)
        is_listed = columns is not COLUMNS  # the user's choice: no column is left out
        rendered = []
        for name in columns:
            cells = [_format(name, row[name], run) for row, run in zip(rows, self.runs, strict=True)]
            is_text = name in TEXT_COLUMNS or any(isinstance(row[name], str) for row in rows)
            rank = 0 if is_listed or name not in FIRST_TO_GO else len(FIRST_TO_GO) - FIRST_TO_GO.index(name)
            rendered.append(Column(name, cells, is_text=is_text, keeps_end=name == "name", rank=rank))
        return render_table(rendered, width)

    def value(self, run: TrainingRun, column: str) -> Any:
        """A column of a run; None if the run has no such value."""
        values: dict[str, Callable[[], Any]] = {
            "name": lambda: _name(run.path, self.folder),
            "family": lambda: run.family,
            "parameters": lambda: run.n_params or None,
            "steps": lambda: run.steps,
            "status": lambda: run.status,
            "tokens": lambda: run.n_tokens,
            "seconds": lambda: run.seconds,
            "score": lambda: run.primary_score[1],
            "metric": lambda: run.primary_score[0] or None,
            "date": lambda: _date(run),
        }
        if column in values:
            return values[column]()
        if column in run.scores:
            return run.scores[column]
        if (setting := _setting(run, column)) in run.settings:
            return _plain(run.settings[setting])
        return run.last_metrics.get(column)

    def _check_column(self, column: str) -> None:
        if not self.runs or column in COLUMNS or column in TRAINING_METRICS:
            return
        if any(column in run.scores or _setting(run, column) in run.settings for run in self.runs):
            return
        scores = {name for run in self.runs for name in run.scores}
        settings = {name for run in self.runs for name in run.settings}
        names = [*COLUMNS, *sorted(scores | TRAINING_METRICS), *sorted(settings)]
        short = [name.rpartition(".")[2] for name in settings]
        hint = suggest(column, [*names, *short], otherwise=f" Columns: {', '.join([*COLUMNS, *sorted(scores)])}")
        raise InputError(f"no run here has {column!r}.{hint}")

    def _parse_condition(self, condition: str) -> tuple[str, Callable[[Any], bool]]:
        match = re.fullmatch(r"\s*([\w.]+)\s*(<=|>=|!=|=|<|>)\s*(.+?)\s*", condition)
        if match is None:
            raise InputError(f"{condition!r} is not a condition such as family=gpt, score<2 or train.lr>=1e-3")
        column, sign, text = match.groups()

        def compare(value: Any) -> bool:
            if _is_missing(value):
                return False
            number = _number(text)
            if isinstance(value, int | float) and not isinstance(value, bool):
                if number is not None:
                    return OPERATORS[sign](value, number)
                if sign not in ("=", "!="):
                    raise InputError(f"{condition!r}: {column} is a number, and {text!r} is not one")
            shown = str(value).lower() if isinstance(value, bool) else str(value)
            if sign in ("=", "!="):
                return fnmatch.fnmatchcase(shown, text) == (sign == "=")
            return OPERATORS[sign](shown, text)

        return column, compare


def _setting(run: TrainingRun, name: str) -> str:
    """The dotted name of a setting that is given by its last part."""
    if "." in name:
        return name
    tables = ("model", "train", "data", "tokenizer", "eval")
    return next((f"{table}.{name}" for table in tables if f"{table}.{name}" in run.settings), name)


def _plain(value: Any) -> Any:
    """A setting as JSON has it: dates become text, and integers that no float can hold become infinite."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, int):
        return value if abs(value) <= sys.float_info.max else math.inf * (1 if value > 0 else -1)
    return value if isinstance(value, str | float) else str(value)


def _name(path: Path, folder: Path) -> str:
    name = path.relative_to(folder).as_posix() if path != folder else path.name
    return os.fsencode(name).decode("utf-8", errors="replace")  # a file system may hold names that are not UTF-8


def _date(run: TrainingRun) -> str | None:
    """When the run last wrote to its log."""
    try:
        return datetime.fromtimestamp((run.path / "log.jsonl").stat().st_mtime).strftime("%Y-%m-%d %H:%M")
    except OSError:
        return None


def _number(text: str) -> float | None:
    """A number as the table writes it, too: 1,500, 100k, 2.5M or 90%."""
    match = re.fullmatch(r"(.+?)\s*([kKMB%]?)", text.replace(",", ""))
    factors = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "%": 0.01}
    try:
        return float(match[1]) * factors[match[2]] if match else None
    except ValueError:
        return None


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _format(column: str, value: Any, run: TrainingRun) -> str:
    if _is_missing(value):
        return ""
    if column == "score":
        return format_score(run.primary_score[0], value)
    if isinstance(value, bool):
        return str(value).lower()
    if column == "seconds":
        return f"{value:,.1f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return format_score(column, value) if column in run.scores else f"{value:g}"
    return str(value)

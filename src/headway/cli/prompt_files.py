"""Files of many prompts: read them, and write one JSON object per prompt.

The output grows by whole lines, in the order of the prompts. So a job that was killed leaves a file that is valid as
far as it goes, and `--resume` continues it.
"""

import errno
import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import typer

from headway.cli.options import read_lines

JSON_LINES = (".jsonl", ".ndjson")


def read_texts(file: str, field: str) -> list[dict[str, Any]]:
    """The texts of a file as `{field: text}`, one per line. Of JSON lines, the objects with all their fields.

    "-" reads lines from stdin.
    """
    from headway.errors import DataError

    lines = read_lines(file)
    if not file.lower().endswith(JSON_LINES):
        return [{field: line} for line in lines]
    records = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise DataError(f"{file}, line {number} is not JSON: {error}") from None
        if not isinstance(record, dict) or not isinstance(record.get(field), str):
            raise DataError(f'{file}, line {number} is not an object with a text: {{"{field}": "…"}}')
        records.append(record)
    if not records:
        raise DataError(f"{file} holds no text: it should hold one JSON object per line")
    return records


class JsonLinesFile(AbstractContextManager["JsonLinesFile"]):
    """A file of JSON lines that is extended by one whole line at a time."""

    def __init__(self, path: Path, *, append: bool = False) -> None:
        self._file = open(path, "ab" if append else "wb", buffering=0)  # noqa: SIM115 (closed by __exit__)

    def write(self, value: Mapping[str, Any]) -> None:
        """Append one line by one system call; if the disk is full, the file ends with the line before."""
        from headway.files import non_finite_to_null

        line = (json.dumps(non_finite_to_null(dict(value)), ensure_ascii=False) + "\n").encode()
        end = os.fstat(self._file.fileno()).st_size
        if self._file.write(line) != len(line):
            self._file.truncate(end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file.name)

    def __exit__(self, *exception: object) -> None:
        self._file.close()


def output_line(record: Mapping[str, Any], settings: Mapping[str, Any], texts: list[dict[str, Any]]) -> dict[str, Any]:
    """What is written for a prompt: its own fields, then the settings that its texts were made with, and the texts."""
    return {**_own_fields(record), "settings": dict(settings), "texts": texts}


def _own_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a prompt; an output file may be the input of another call."""
    return {name: value for name, value in record.items() if name not in ("settings", "texts")}


def finished_lines(path: Path, records: list[dict[str, Any]], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The objects that an earlier call wrote to `path` for the first of these prompts, with the same settings.

    A half line at the end is removed, once it is certain that the file is an output of `headway generate`.
    """
    from headway.errors import DataError
    from headway.file_reading import open_regular
    from headway.files import non_finite_to_null

    if not path.exists():
        return []
    with open_regular(path, error=DataError) as file:
        data = file.read()
    n_whole = data.rfind(b"\n") + 1
    try:
        lines = [_parse_line(line) for line in data[:n_whole].decode().split("\n")[:-1]]
        if not lines:
            _check_beginning(data, records[0])
    except (ValueError, RecursionError):
        raise _cannot_resume(f"{path} was not written by `headway generate --out` for these prompts") from None
    for number, (line, record) in enumerate(zip(lines, records, strict=False), 1):
        if line["prompt"] != record["prompt"]:
            raise _cannot_resume(
                f"{path}, line {number} continues {line['prompt']!r:.40}, but prompt {number} is "
                f"{record['prompt']!r:.40}: the prompts have changed"
            )
    if len(lines) > len(records):
        raise _cannot_resume(f"{path} has {len(lines):,} lines, but there are only {len(records):,} prompts")
    if lines:
        _check_settings(path, lines[0]["settings"], non_finite_to_null(dict(settings)))
    if n_whole < len(data):
        os.truncate(path, n_whole)
    return lines


def _parse_line(text: str) -> dict[str, Any]:
    """An object that `output_line` has made; raises ValueError if it is none."""
    line = json.loads(text)
    if not isinstance(line, dict) or not isinstance(line.get("prompt"), str):
        raise ValueError("no object with a prompt")
    texts, settings = line.get("texts"), line.setdefault("settings", {})
    if not isinstance(settings, dict) or not isinstance(texts, list):
        raise ValueError("no settings or texts")
    if not all(isinstance(text, dict) and type(text.get("seed", 0)) is int for text in texts):
        raise ValueError("texts that are no objects, or have no seed")
    return line


def _check_beginning(data: bytes, record: Mapping[str, Any]) -> None:
    """Raise ValueError unless a file without a whole line begins as the line of the first prompt does."""
    from headway.files import non_finite_to_null

    fields = json.dumps(non_finite_to_null(_own_fields(record)), ensure_ascii=False).removesuffix("}").encode()
    if data[: len(fields)] != fields[: len(data)]:
        raise ValueError("another file")


def _check_settings(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in dict.fromkeys([*before, *now]):
        if before.get(name) != now.get(name):
            old, new = (json.dumps(table[name]) if name in table else "the default" for table in (before, now))
            raise _cannot_resume(f"{path} was started with {name} {old}, not {new}: its texts would differ")


def _cannot_resume(problem: str) -> typer.BadParameter:
    return typer.BadParameter(f"{problem}; name another file, or add --overwrite", param_hint="--resume")

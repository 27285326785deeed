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


def finished_lines(path: Path, prompts: list[str]) -> list[dict[str, Any]]:
    """The objects that an earlier call wrote to `path` for the first of these prompts. A half line at the end is
    removed."""
    if not path.exists():
        return []
    data = path.read_bytes()
    if not data.endswith(b"\n"):
        data = data[: data.rfind(b"\n") + 1]
        os.truncate(path, len(data))
    try:
        lines = [json.loads(line) for line in data.decode().split("\n")[:-1]]
        written = [line["prompt"] for line in lines]
    except (ValueError, KeyError, TypeError):
        raise typer.BadParameter(
            f"{path} was not written by `headway generate --out`: name another file, or add --overwrite",
            param_hint="--resume",
        ) from None
    for number, (before, prompt) in enumerate(zip(written, prompts, strict=False), 1):
        if before != prompt:
            raise typer.BadParameter(
                f"{path}, line {number} continues {before!r:.40}, but prompt {number} is {prompt!r:.40}: the prompts "
                f"have changed; name another file, or add --overwrite",
                param_hint="--resume",
            )
    if len(written) > len(prompts):
        raise typer.BadParameter(
            f"{path} has {len(written):,} lines, but there are only {len(prompts):,} prompts: name another file, or "
            f"add --overwrite",
            param_hint="--resume",
        )
    return lines

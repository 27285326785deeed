"""Options that several verbs share."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headway.config import DataConfig

Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto: CUDA where there is one.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16, float16 or float64; auto: as stored.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]

# How a data source is read.
Format = Annotated[
    str, typer.Option(help="text, lines, jsonl, csv, tsv, parquet, conll, squad, misspellings; auto: by name.")
]
_BY = "by name, or by number from 1 where the first row is no header"
TextColumn = Annotated[str | None, typer.Option("--text", help=f"Column of the text, {_BY}.")]
PairColumns = Annotated[str | None, typer.Option("--pairs", help=f"Columns of pairs, SOURCE,TARGET, {_BY}.")]
LabelColumn = Annotated[str | None, typer.Option("--label", help=f"Column of the label, {_BY}.")]
Separator = Annotated[str | None, typer.Option(help=r"Between the documents of a text file; \n is a line end.")]
TagScheme = Annotated[str, typer.Option(help="Tags of token-tag files: bio, iob1 (rewritten as BIO), or any.")]
Errors = Annotated[str, typer.Option(help="Bytes that are not UTF-8: strict (an error) or replace.")]


def unescaped(separator: str | None) -> str | None:
    """What a shell makes hard to type."""
    if separator is not None:
        for written, meant in (("\\n", "\n"), ("\\t", "\t"), ("\\r", "\r")):
            separator = separator.replace(written, meant)
    return separator


def print_json(value: Any) -> None:
    from headway.files import finite

    print(json.dumps(finite(value), ensure_ascii=False))


def name_of_part(data: "DataConfig", part: str) -> str:
    """Where the held-out data of a run comes from, in words."""
    own = {"valid": data.valid_path, "test": data.test_path}[part]
    return own or f"{data.path}, the part {'held out' if part == 'valid' else 'for testing'}"


def program() -> str:
    """What the user types to run this command: `headway`, or its path where it is not on the PATH."""
    script = sys.argv[0]
    if shutil.which("headway") or not os.path.basename(script).startswith("headway"):
        return "headway"
    return os.path.relpath(script)


def say(pipe: Any) -> None:
    """What a pipeline of samplers has to say about itself."""
    for label, lines in (("note", pipe.notes), ("warning", pipe.warnings)):
        for line in lines:
            print(f"{label}: {line}", file=sys.stderr)


def read_lines(file: str) -> list[str]:
    """The lines of a text file, or with - of stdin; empty ones are kept."""
    from headway.data.readers import decode_text
    from headway.errors import DataError

    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from None
    data = data.removeprefix(b"\xef\xbb\xbf")  # a byte-order mark
    lines = decode_text(data, "stdin" if file == "-" else file).split("\n")
    lines = [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
    if not lines:
        raise DataError(f"{'stdin' if file == '-' else file} holds nothing: one text per line")
    return lines


def check_out(file: Path | None, flag: str) -> None:
    """Say before the work is done that its result would have no place."""
    if file is None:
        return
    if file.is_dir():
        raise typer.BadParameter(f"{file} is a folder: name a file", param_hint=flag)
    if not file.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {file.parent} to write {file.name} to", param_hint=flag)


def check_picture(file: Path | None, flag: str = "--out") -> None:
    """The same for pictures, whose names say what they are."""
    check_out(file, flag)
    if file is not None and file.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise typer.BadParameter(f"{file} is not named .png, .svg or .pdf", param_hint=flag)

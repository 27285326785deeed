"""Options that several verbs share."""

import json
import math
import os
import shutil
import sys
from typing import Annotated, Any

import typer

Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto: CUDA where there is one.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16, float16 or float64; auto: as stored.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]

# How a data source is read.
Format = Annotated[str, typer.Option(help="text, jsonl, csv, tsv, parquet, conll, squad; auto: by name.")]
_BY = "by name, or by number from 1 where the first row is no header"
TextColumn = Annotated[str | None, typer.Option("--text", help=f"Column of the text, {_BY}.")]
PairColumns = Annotated[str | None, typer.Option("--pairs", help=f"Columns of pairs, SOURCE,TARGET, {_BY}.")]
LabelColumn = Annotated[str | None, typer.Option("--label", help=f"Column of the label, {_BY}.")]
Separator = Annotated[str | None, typer.Option(help=r"Between the documents of a text file; \n is a line end.")]
Scheme = Annotated[str, typer.Option(help="Tags of token-tag files: bio, iob1 (rewritten as BIO), or any.")]
Errors = Annotated[str, typer.Option(help="Bytes that are not UTF-8: strict (an error) or replace.")]


def unescaped(separator: str | None) -> str | None:
    """What a shell makes hard to type."""
    if separator is not None:
        for written, meant in (("\\n", "\n"), ("\\t", "\t"), ("\\r", "\r")):
            separator = separator.replace(written, meant)
    return separator


def print_json(value: Any) -> None:
    print(json.dumps(_finite(value), ensure_ascii=False))


def _finite(value: Any) -> Any:
    """JSON has no infinity."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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

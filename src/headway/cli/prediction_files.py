"""The texts that an encoder's verbs read, from arguments, stdin or a file, and the results that they write."""

import json as json_lines
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from headway.cli.option_use import OnlyWith
from headway.cli.options import check_new_file
from headway.cli.prompt_files import JSON_LINES, read_texts

Texts = Annotated[list[str] | None, typer.Argument(help="Texts. Default: the lines of stdin.")]


@dataclass(frozen=True)
class TextFileFlags:
    """Where texts come from and results go to."""

    section: ClassVar = "Files"

    source: Annotated[
        Path | None,
        typer.Option("-i", "--in", metavar="FILE", help='One text per line, or .jsonl: {"text": …}.'),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Write one JSON object per text here."),
    ] = None
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace --out if it exists."),
        OnlyWith("--out", why="has no effect without a file: add --out FILE"),
    ] = False

    def check(self) -> None:
        """Refuse an output that cannot be written, or that is the input, before anything is computed."""
        if self.out is not None and self.source is not None and self.out.exists() and self.out.samefile(self.source):
            raise typer.BadParameter(f"{self.out} is the input file: name another file", param_hint="--out")
        check_new_file(self.out, "--out", overwrite=self.overwrite)


def read_records(
    texts: Sequence[str] | None, file: Path | None, field: str = "text", *, keep_blank: bool = False
) -> list[dict[str, Any]]:
    """The texts as {field: text}, with the other fields that a file of JSON lines has. Blank lines are left out, unless
    `keep_blank`."""
    if texts and file is not None:
        raise typer.BadParameter("cannot be combined with texts on the command line", param_hint="--in")
    if file is None and texts and list(texts) != ["-"]:
        return [{field: text} for text in texts]
    if file is None and not texts and sys.stdin.isatty():
        raise typer.BadParameter("give a text, --in FILE, or lines on stdin", param_hint="TEXTS")
    records = read_texts("-" if file is None else str(file), field)
    kept = [record for record in records if record[field].strip()]
    if not kept:
        from headway.errors import DataError

        raise DataError(f"{file or 'stdin'} holds only blank lines: give one text per line")
    return records if keep_blank else kept


def write_records(results: Sequence[Mapping[str, Any]], out: Path) -> None:
    """One JSON object per line, all or nothing."""
    from headway.files import non_finite_to_null, write_text

    lines = [json_lines.dumps(non_finite_to_null(dict(result)), ensure_ascii=False) for result in results]
    write_text(out, "".join(f"{line}\n" for line in lines))


def is_json_lines(file: Path) -> bool:
    return file.suffix.lower() in JSON_LINES

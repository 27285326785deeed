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

TABLES = {".csv": ",", ".tsv": "\t"}  # file name extension → what separates the columns

Texts = Annotated[list[str] | None, typer.Argument(help="Texts. Default: the lines of stdin.")]


@dataclass(frozen=True)
class TextFileFlags:
    """Where texts come from and results go to."""

    section: ClassVar = "Files"

    source: Annotated[
        Path | None,
        typer.Option(
            "-i", "--in", metavar="FILE", help='One text per line; .jsonl: {"text": …}; .csv, .tsv: column text.'
        ),
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
        if self.out is not None and self.out.suffix.lower() == ".gz":
            raise typer.BadParameter(f"{self.out} would not be compressed: leave out .gz", param_hint="--out")
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
        raise typer.BadParameter(f"give a {field}, --in FILE, or lines on stdin", param_hint=f"{field.upper()}S")
    is_table = file is not None and file.suffix.lower() in TABLES
    records = _read_table(file, field) if file is not None and is_table else read_texts(str(file or "-"), field)
    kept = [record for record in records if record[field].strip()]
    if not kept:
        from headway.errors import DataError

        raise DataError(f"{file or 'stdin'} holds only blank lines: give one text per line")
    return records if keep_blank else kept


def _read_table(file: Path, field: str) -> list[dict[str, Any]]:
    """The rows of a table with a header, by the names of its columns, one of which is `field`."""
    from headway.data.csv_rows import csv_rows
    from headway.data.text_files import iter_lines, read_errors
    from headway.errors import DataError

    with read_errors(str(file)):
        rows = csv_rows(iter_lines(file, line_endings="\n"), TABLES[file.suffix.lower()], str(file))
        header = next(rows, (0, [""]))[1]
        if field not in header:
            raise DataError(
                f"{file} has no column {field!r} but {', '.join(header)}: name the columns in its first line"
            )
        records = []
        for number, row in rows:
            if len(row) != len(header):
                raise DataError(f"{file}, line {number} has {len(row)} columns, the header has {len(header)}")
            records.append(dict(zip(header, row, strict=True)))
    return records


def merged(record: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record and those of its result. Where both have a field, that of the record is `input_…`."""
    own_fields = {
        f"input_{name}" if name in result and result[name] != value else name: value for name, value in record.items()
    }
    return {**own_fields, **result}


def write_records(results: Sequence[Mapping[str, Any]], out: Path) -> None:
    """One JSON object per line, all or nothing."""
    from headway.files import non_finite_to_null, write_text

    lines = [json_lines.dumps(non_finite_to_null(dict(result)), ensure_ascii=False) for result in results]
    write_text(out, "".join(f"{line}\n" for line in lines))


def is_json_lines(file: Path) -> bool:
    return file.suffix.lower() in JSON_LINES

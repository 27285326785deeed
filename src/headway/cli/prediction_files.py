"""The texts that an encoder's verbs read, from arguments, stdin or a file, and the results that they write."""

import json as json_lines
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from headway.cli.option_use import OnlyWith
from headway.cli.options import check_new_file, print_json
from headway.cli.prompt_files import JSON_LINES, read_texts

TABLES = (".csv", ".tsv")

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

    @property
    def table_suffixes(self) -> tuple[str, ...]:
        """The suffixes of tables that --out may have; any other file holds JSON lines."""
        return ()

    def check(self) -> None:
        """Refuse an output that cannot be written, or that is the input, before anything is computed."""
        if self.out is not None and self.out.suffix.lower() in set(TABLES) - set(self.table_suffixes):
            names = " or ".join((*self.table_suffixes, ".jsonl"))
            raise typer.BadParameter(f"{self.out} is not a format for results: use {names}", param_hint="--out")
        if self.out is not None and self.source is not None and self.out.exists() and self.out.samefile(self.source):
            raise typer.BadParameter(f"{self.out} is the input file: name another file", param_hint="--out")
        if self.out is not None and self.out.suffix.lower() == ".gz":
            raise typer.BadParameter(f"{self.out} would not be compressed: leave out .gz", param_hint="--out")
        check_new_file(self.out, "--out", overwrite=self.overwrite)


@dataclass(frozen=True)
class TextTableFlags(TextFileFlags):
    """The same, for texts that may be a column of a table."""

    column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Column of a table, or field of JSON lines, that holds the text. Default: that of the run's data if "
            "the file has it, else text.",
        ),
        OnlyWith("--in"),
    ] = None

    @property
    def has_columns(self) -> bool:
        return self.source is not None and self.source.suffix.lower() in (*TABLES, *JSON_LINES)

    def text_column(self, model: str) -> str:
        """The column that is named; else the one that a run was trained on, if the file has it; else "text"."""
        if self.column is None and self.source is not None and self.has_columns:
            trained_on, _ = training_columns(model)
            if trained_on is not None and _has_column(self.source, trained_on):
                return trained_on
        return self.column or "text"

    def read(self, texts: Sequence[str] | None, model: str, *, keep_blank: bool = False) -> list[dict[str, Any]]:
        """The texts as {"text": text}, with the other fields that a file has. Blank lines are left out, unless
        `keep_blank`."""
        if self.column is not None and self.source is not None and not self.has_columns:
            raise typer.BadParameter(f"{self.source} has lines, not columns: leave it out", param_hint="--column")
        column = self.text_column(model)
        records = read_records(texts, self.source, column, keep_blank=keep_blank)
        return records if column == "text" else [renamed_field(record, column, "text") for record in records]


def renamed_field(record: Mapping[str, Any], name: str, new_name: str) -> dict[str, Any]:
    """The record with one of its fields under another name."""
    others = {other: value for other, value in record.items() if other != name}
    return merged(others, {new_name: record[name]})


def _has_column(file: Path, name: str) -> bool:
    """Whether the first row of a table, or the first object of JSON lines, has this column."""
    from headway.data.text_files import iter_lines, read_errors

    with read_errors(str(file)):
        if not is_json_lines(file):
            _, header = next(_table_rows(file, name), (0, []))
            return name in [cell.strip() for cell in header]
        first = next((line for line in iter_lines(file) if line.strip()), "")
    try:
        return name in json_lines.loads(first)
    except (ValueError, TypeError):
        return False


def training_columns(model: str) -> tuple[str | None, str | None]:
    """The columns of the text, and of a second text, that a run was trained on; None for other models."""
    from headway.config import load_recipe
    from headway.errors import ConfigError
    from headway.runs import Run

    path = Path(model)
    run = path.parents[1] if path.parent.name == "checkpoints" else path
    if not Run.exists(run):
        return None, None
    try:
        data = load_recipe(run).data
    except ConfigError:  # of an older version, or with a plug-in that is not loaded
        return None, None
    return data.text, data.text_pair


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

        what = "no text" if is_table else "only blank lines"
        raise DataError(f"{file or 'stdin'} holds {what}: give one text per {'row' if is_table else 'line'}")
    if not keep_blank and len(kept) < len(records):
        from headway.display import print_status
        from headway.errors import count

        n_blank = len(records) - len(kept)
        has_rows = is_table or (file is not None and is_json_lines(file))
        rows, blank_lines = count(n_blank, "row"), count(n_blank, "blank line")
        skipped = f"{rows} of {file} without a {field}" if has_rows else f"{blank_lines} of {file or 'stdin'}"
        print_status(f"note: skipped {skipped}")
    return records if keep_blank else kept


def _read_table(file: Path, field: str) -> list[dict[str, Any]]:
    """The rows of a table with a header, by the names of its columns, one of which is `field`."""
    from headway.data.text_files import read_errors
    from headway.errors import DataError, count

    with read_errors(str(file)):
        rows = _table_rows(file, field)
        header = [name.strip() for name in next(rows, (0, []))[1]]
        if header.count(field) != 1:
            found = f"{header.count(field)} columns {field!r}" if field in header else f"no column {field!r}"
            raise DataError(
                f"{file} has {found} in its first line, {', '.join(header)[:80]!r}: name the column with --column"
            )
        records = []
        for number, row in rows:
            if len(row) != len(header):
                raise DataError(
                    f"{file}, line {number} has {count(len(row), 'column')}, but the first line has {len(header)}: "
                    f"repair the row; in a .csv, put a text that holds the delimiter into quotes"
                )
            records.append(dict(zip(header, row, strict=True)))
    return records


def _table_rows(file: Path, field: str) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of each row, as training reads them: those of a .tsv have no quotes, and those of a .csv are
    separated by semicolons if the first line then has the column."""
    from headway.data.csv_rows import csv_rows
    from headway.data.text_files import iter_lines

    if file.suffix.lower() == ".tsv":
        return ((number, line.split("\t")) for number, line in enumerate(iter_lines(file), 1) if line)
    header = next((line for line in iter_lines(file) if line), "").split(";")
    delimiter = ";" if field in [name.strip().strip('"') for name in header] and len(header) > 1 else ","
    return csv_rows(iter_lines(file, line_endings="\n"), delimiter, str(file))


def merged(record: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record and those of its result. Where both have a field, that of the record is `input_…`."""
    own_fields = {
        f"input_{name}" if name in result and result[name] != value else name: value for name, value in record.items()
    }
    return {**own_fields, **result}


def write_records(results: Sequence[Mapping[str, Any]], out: Path) -> None:
    """One JSON object per line, or a row of a .csv, all or nothing."""
    from headway.files import non_finite_to_null, write_text

    if out.suffix.lower() == ".csv":
        text = _as_table(results)
    else:
        text = "".join(f"{json_lines.dumps(non_finite_to_null(dict(r)), ensure_ascii=False)}\n" for r in results)
    write_text(out, text)


def _as_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Rows of comma-separated values. Several labels are joined by ";", and probabilities have a column each."""
    import csv
    import io

    rows, labels = [], sorted({label for result in results for label in result.get("probabilities", {})})
    for result in results:
        cells = {name: value for name, value in result.items() if name != "probabilities"}
        cells |= {"labels": ";".join(cells["labels"])} if "labels" in cells else {}
        for name, value in cells.items():
            if isinstance(value, list | dict):
                cells[name] = json_lines.dumps(value, ensure_ascii=False)
        rows.append(merged(cells, {f"p({label})": result["probabilities"][label] for label in labels}))
    names = list(dict.fromkeys(name for row in rows for name in row))
    names.sort(key=lambda name: name in {f"p({label})" for label in labels})  # probabilities last
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def output_records(
    results: Sequence[Mapping[str, Any]],
    *,
    model: str,
    out: Path | None,
    json: bool,
    seconds: float,
    write: Callable[[Path], None] | None = None,
) -> bool:
    """Write results to a file, by `write` or as JSON lines, or print them as JSON; False if neither was asked for."""
    if out is None:
        if json:
            print_json({"model": model, "texts": results, "seconds": seconds})
        return json
    if write is not None:
        write(out)
    else:
        write_records(results, out)
    if json:
        print_json({"model": model, "out": str(out), "n_texts": len(results), "seconds": seconds})
    else:
        print(f"{len(results):,} text{'s' * (len(results) != 1)} in {seconds:.1f} s: {out}", file=sys.stderr)
    return True


def is_json_lines(file: Path) -> bool:
    return file.suffix.lower() in JSON_LINES

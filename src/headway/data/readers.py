"""File formats: one reader per format, each an iterator of records that streams its file.

Every error names the file, the line or row, and the way out.
"""

import csv
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from headway.data.records import Answer, Kind, LabelledText, Pair, Question, Record, TaggedSentence
from headway.data.text_files import iter_documents, iter_lines, read_errors, read_text
from headway.errors import ConfigError, DataError, install_command, suggest

TEXT_COLUMNS = ("text", "content", "sentence", "document")  # default text column: the first of these in the table

# File ending → format; the longest matching ending wins. Other files are read as text.
ENDINGS: dict[str, str] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".conll": "conll",
    ".bio": "conll",
    ".iob": "conll",
    ".bio.tsv": "conll",
    ".json": "squad",
    ".txt": "text",
}


@dataclass(frozen=True)
class ReadOptions:
    """How to read files."""

    format: str = "auto"
    text: str | None = None  # text column, by name or by number from 1
    pairs: str | None = None  # two columns, "source,target"
    label: str | None = None  # label column
    separator: str | None = None  # between the documents of a text file
    tag_scheme: str = "bio"  # tagging scheme of token-tag files: "bio", "iob1", "any"
    errors: str = "strict"  # invalid UTF-8: "strict", "replace"

    def __post_init__(self) -> None:
        for name, allowed in (
            ("format", ("auto", *READERS)),
            ("tag_scheme", ("bio", "iob1", "any")),
            ("errors", ("strict", "replace")),
        ):
            value = getattr(self, name)
            if value not in allowed:
                raise ConfigError(f"{name}={value!r} is not one of {', '.join(allowed)}." + suggest(value, allowed))
        for name in ("text", "label"):
            if getattr(self, name) == "":
                raise ConfigError(f"{name}='' names no column")
        if self.separator == "":
            raise ConfigError("separator='' is empty; give the text between documents, such as '\\n\\n'")
        if self.pairs is not None:
            self.pair_columns()
            if self.text is not None or self.label is not None:
                raise ConfigError("pairs names both columns; leave out text and label, which are for other data")

    def pair_columns(self) -> tuple[str, str]:
        names = [name.strip() for name in (self.pairs or "").split(",")]
        if len(names) != 2 or not all(names):
            raise ConfigError(f"pairs={self.pairs!r} is not two columns: write pairs='source,target' or pairs='1,2'")
        return names[0], names[1]

    def named_columns(self) -> list[str]:
        """The columns that the options name, in the order of a record's fields."""
        return [*self.pair_columns()] if self.pairs else [name for name in (self.text, self.label) if name]


def format_of(file: str | Path) -> str:
    name = str(file).lower().removesuffix(".gz")
    matching = [ending for ending in ENDINGS if name.endswith(ending)]
    return ENDINGS[max(matching, key=len)] if matching else "text"


def kind_of(format: str, options: ReadOptions) -> Kind:
    """The kind of records that files of this format contain."""
    if format in READER_KINDS:
        return READER_KINDS[format]
    if options.separator is not None and format != "text":
        raise ConfigError(f"separator={options.separator!r} is for text files; a {format} file has its own records")
    if options.tag_scheme != "bio" and format != "conll":
        raise ConfigError(f"tag_scheme={options.tag_scheme!r} is for token-tag files; this is a {format} file")
    if format in ("conll", "squad", "text", "lines", "misspellings"):
        for name in ("text", "pairs", "label"):
            if (value := getattr(options, name)) is not None:
                raise ConfigError(f"{name}={value!r} names a column, but a {format} file has no columns")
        kinds: dict[str, Kind] = {"conll": "tagged", "squad": "questions", "misspellings": "pairs"}
        return kinds.get(format, "text")
    return "pairs" if options.pairs else "labelled" if options.label else "text"


def read(file: Path, format: str, options: ReadOptions) -> Iterator[Record]:
    with read_errors(str(file)):
        yield from READERS[format](file, options)


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_documents(file: Path, options: ReadOptions) -> Iterator[str]:
    """One document per file, or per separator; a large file becomes several."""
    return iter_documents(file, options.separator, options.errors)


def read_lines(file: Path, options: ReadOptions) -> Iterator[str]:
    """One document per line, such as a sentence; empty lines count too."""
    return iter_lines(file, options.errors, line_endings="\n")


# ── tables ────────────────────────────────────────────────────────────────────────────────────────────────────────

TableRow = tuple[str, dict[str, Any] | list[str]]  # its location, such as "line 3", and its cells


def read_table(rows: Iterable[TableRow], file: Path, options: ReadOptions) -> Iterator[Record]:
    """Rows as records: a pair of columns, a text with a label, or a text."""
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{file} is empty: it has no rows")
    if isinstance(first[1], list):
        header, rows = _header(first, rows, options)
    else:
        header = list(first[1])
        rows = chain([first], rows)
    columns = options.named_columns()
    if not options.pairs and not options.text:
        columns.insert(0, _default_text_column(header, file, options, has_names=isinstance(first[1], dict)))
    for name in columns:
        if name not in header:
            existing = f" The columns are: {', '.join(map(repr, header[:20]))}"
            raise DataError(f"{file}: there is no column {name!r}." + suggest(name, header) + existing)
    if len(set(columns)) < len(columns):
        raise ConfigError(f"the same column is named twice: {', '.join(columns)}")
    column_indices = [header.index(name) for name in columns]
    for location, row in rows:
        if isinstance(row, list) and len(row) != len(header):
            raise DataError(
                f"{file}, {location} has {len(row)} columns, but the first row has {len(header)}: "
                f"{', '.join(row)!r:.60}"
            )
        values = []
        for name, i in zip(columns, column_indices, strict=True):
            value = row.get(name) if isinstance(row, dict) else (row[i] if i < len(row) else None)
            if value is None and name in row:
                raise DataError(f"{file}, {location}: column {name!r} is null; drop such rows, or use an empty string")
            if value is None:
                raise DataError(f"{file}, {location}: there is no column {name!r}; this row has {', '.join(row)}")
            if name == options.label and value == "":
                raise DataError(f"{file}, {location}: the label is empty; every text needs one")
            if not isinstance(value, str):
                if name != options.label:
                    raise DataError(f"{file}, {location}: column {name!r} holds {value!r:.40}, which is not text")
                value = str(value)
            values.append(value)
        yield Pair(*values) if options.pairs else LabelledText(*values) if options.label else values[0]


def _header(first: TableRow, rows: Iterator[TableRow], options: ReadOptions) -> tuple[list[str], Iterator[TableRow]]:
    """Column names, and the rows that follow. If the options name columns by number, the table has no header."""
    cells = first[1]
    assert isinstance(cells, list)
    columns = options.named_columns()
    if columns and all(name.isdecimal() for name in columns):
        return [str(i + 1) for i in range(len(cells))], chain([first], rows)
    return [cell.strip() for cell in cells], rows


def is_table_of_pairs(file: Path) -> bool:
    """Whether a .tsv file has two columns, and no header that names a text column: then its rows are pairs, the first
    one too. A .csv file usually has a header, so its columns have to be named."""
    line = next((line for line in iter_lines(file, "replace") if line), "")
    cells = [cell.strip() for cell in line.split("\t")]
    return format_of(file) == "tsv" and len(cells) == 2 and not set(cells) & set(TEXT_COLUMNS)


def _default_text_column(header: list[str], file: Path, options: ReadOptions, *, has_names: bool) -> str:
    for name in TEXT_COLUMNS:
        if name in header:
            return name
    candidates = [name for name in header if name != options.label]
    if len(candidates) == 1 and has_names:
        return candidates[0]
    raise DataError(
        f"{file}: which column is the text? The first row is: {', '.join(map(repr, header))}. Call it 'text', or "
        f"name a column as text, or two as pairs (data.text, data.pairs); use numbers from 1 if the first row is not a "
        f"header"
    )


def read_jsonl(file: Path, options: ReadOptions) -> Iterator[Record]:
    def rows() -> Iterator[TableRow]:
        for number, line in enumerate(iter_lines(file, options.errors), start=1):
            if not line.strip():
                continue
            try:
                value = msgspec.json.decode(line)
            except msgspec.DecodeError as error:
                raise DataError(f"{file}, line {number} is not JSON: {error}") from None
            if not isinstance(value, dict):
                raise DataError(f"{file}, line {number} is not a JSON object with columns: {line:.40}")
            yield f"line {number}", value

    return read_table(rows(), file, options)


def read_csv(file: Path, options: ReadOptions) -> Iterator[Record]:
    def rows() -> Iterator[TableRow]:
        csv.field_size_limit(1 << 30)
        lines = iter_lines(file, options.errors)
        first = next((line for line in lines if line), "")
        reader = csv.reader(
            (f"{line}\n" for line in chain([first], lines)), strict=True, delimiter=_delimiter(first, options)
        )
        while True:
            try:
                row = next(reader, None)
            except csv.Error as error:
                raise DataError(f"{file}, line {reader.line_num} is not CSV: {error}") from None
            if row is None:
                return
            if row:
                yield f"line {reader.line_num}", row

    return read_table(rows(), file, options)


def _delimiter(header: str, options: ReadOptions) -> str:
    """A comma; or a semicolon, as spreadsheets write in half of Europe, if that yields the columns named."""
    columns = set(options.named_columns())
    names = {cell.strip() for row in csv.reader([header], delimiter=";") for cell in row}
    is_match = columns <= names if columns else bool(names & set(TEXT_COLUMNS))
    return ";" if is_match and len(names) > 1 else ","


def read_tsv(file: Path, options: ReadOptions) -> Iterator[Record]:
    """Tab-separated columns, without quoting."""
    lines = enumerate(iter_lines(file, options.errors), start=1)
    return read_table(((f"line {n}", line.split("\t")) for n, line in lines if line), file, options)


def read_parquet(file: Path, options: ReadOptions) -> Iterator[Record]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise DataError(f"{file}: reading Parquet needs pyarrow: {install_command('parquet')}") from None

    def rows() -> Iterator[TableRow]:
        number = 0
        try:
            with parquet.ParquetFile(file) as table:
                columns = options.named_columns()
                names = table.schema_arrow.names
                is_selection = bool(options.text) and all(name in names for name in columns)
                for batch in table.iter_batches(batch_size=1024, columns=columns if is_selection else None):
                    for row in batch.to_pylist():
                        number += 1
                        yield f"row {number}", row
        except pyarrow.ArrowException as error:
            raise DataError(f"{file} is damaged or not a Parquet file: {error}") from None

    return read_table(rows(), file, options)


# ── tags and questions ────────────────────────────────────────────────────────────────────────────────────────────


def read_conll(file: Path, options: ReadOptions) -> Iterator[Record]:
    """Token-tag files: one word per line with its tag in the last column, an empty line between sentences."""
    words: list[str] = []
    tags: list[str] = []
    first_line = 1

    def end_sentence() -> Iterator[TaggedSentence]:
        if words and words != ["-DOCSTART-"]:
            yield TaggedSentence(
                tuple(words), tuple(check_tags(tags, options.tag_scheme, f"{file}, line ", first_line))
            )
        words.clear()
        tags.clear()

    for number, line in enumerate(iter_lines(file, options.errors), start=1):
        cells = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
        if not line.strip():
            yield from end_sentence()
            first_line = number + 1
            continue
        if len(cells) < 2:
            raise DataError(f"{file}, line {number}: {line!r:.40} is a word without a tag; expected 'word<TAB>tag'")
        words.append(cells[0])
        tags.append(cells[-1])
    yield from end_sentence()


def check_tags(tags: list[str], tag_scheme: str, location: str = "tag ", first: int = 1) -> list[str]:
    """Tags in BIO: B-X begins an entity of type X, I-X continues it, O is outside. Errors name `location` and the
    tag's number, counted from `first`.

    IOB1 begins an entity with I-X, and with B-X only right after another X (Ramshaw & Marcus 1995); it is converted.
    """
    if tag_scheme == "any":
        return tags
    bio_tags: list[str] = []
    for i, tag in enumerate(tags):
        previous = bio_tags[-1] if bio_tags else "O"
        if not re.fullmatch(r"O|[BI]-.+", tag):
            raise DataError(
                f"{location}{first + i}: tag {tag!r} is not BIO (O, B-TYPE or I-TYPE); "
                f"read other tags, such as parts of speech, with --tag-scheme any (data.tag_scheme)"
            )
        is_continued = previous != "O" and previous[2:] == tag[2:]
        if tag.startswith("I-") and not is_continued:
            if tag_scheme == "bio":
                raise DataError(
                    f"{location}{first + i}: tag {tag!r} follows {previous!r}, but in BIO an entity begins with "
                    f"B-{tag[2:]}; if the file uses IOB1, read it with --tag-scheme iob1 (data.tag_scheme)"
                )
            tag = f"B-{tag[2:]}"
        bio_tags.append(tag)
    return bio_tags


def read_squad(file: Path, options: ReadOptions) -> Iterator[Record]:
    """SQuAD's JSON: articles, paragraphs, questions, answers with their character offset."""
    try:
        document = msgspec.json.decode(read_text(file, options.errors))
        for article in document["data"]:
            for paragraph in article["paragraphs"]:
                context = paragraph["context"]
                for question in paragraph["qas"]:
                    answers = [Answer(a["text"], a["answer_start"]) for a in question.get("answers", [])]
                    for answer in answers:
                        if context[answer.start : answer.start + len(answer.text)] != answer.text:
                            raise DataError(
                                f"{file}, question {question['id']}: the answer {answer.text!r:.60} is not in the "
                                f"context at character {answer.start}"
                            )
                    yield Question(str(question["id"]), question["question"], context, tuple(answers))
    except msgspec.DecodeError as error:
        raise DataError(f"{file} is not JSON: {error}; for one JSON object per line, use --format jsonl") from None
    except (KeyError, TypeError, AttributeError):
        raise DataError(
            f'{file} is not in SQuAD format: {{"data": [{{"paragraphs": [{{"context": …, "qas": […]}}]}}]}}; '
            f"write other records as JSON lines (.jsonl)"
        ) from None


def read_misspellings(file: Path, options: ReadOptions) -> Iterator[Record]:
    """Peter Norvig's spelling lists: "right: wrong, wrong*3", one word per line with its misspellings and, after the
    star, their counts. Each misspelling becomes one pair (wrong, right)."""
    for number, line in enumerate(iter_lines(file, options.errors), start=1):
        right, colon, misspellings = line.partition(":")
        if not line.strip():
            continue
        if not colon or not right.strip():
            raise DataError(f"{file}, line {number}: {line!r:.40} is not of the form 'right: wrong, wrong*3'")
        for wrong in dict.fromkeys(re.sub(r"\*\d+$", "", cell.strip()) for cell in misspellings.split(",")):
            if wrong:
                yield Pair(wrong, right.strip())


READERS: dict[str, Callable[[Path, ReadOptions], Iterator[Record]]] = {
    "text": read_documents,
    "lines": read_lines,
    "jsonl": read_jsonl,
    "csv": read_csv,
    "tsv": read_tsv,
    "parquet": read_parquet,
    "conll": read_conll,
    "squad": read_squad,
    "misspellings": read_misspellings,
}


READER_KINDS: dict[str, Kind] = {}  # the records of registered formats


def read_parallel(source: Path, target: Path, options: ReadOptions) -> Iterator[Pair]:
    """Two parallel files, one sentence per line: line n of one is the translation of line n of the other."""
    with read_errors(f"{source} or {target}"):
        yield from _read_parallel(source, target, options)


def _read_parallel(source: Path, target: Path, options: ReadOptions) -> Iterator[Pair]:
    source_lines, target_lines = iter_lines(source, options.errors), iter_lines(target, options.errors)
    number = 0
    while True:
        number += 1
        source_line, target_line = next(source_lines, None), next(target_lines, None)
        if source_line is None and target_line is None:
            return
        if source_line is None or target_line is None:
            longer, shorter = (target, source) if source_line is None else (source, target)
            n_extra = sum(1 for _ in (target_lines if source_line is None else source_lines)) + 1
            raise DataError(
                f"{source} and {target} are not parallel: {shorter} ends after line {number - 1:,}, {longer} has "
                f"{n_extra:,} more from line {number:,} on; line n of one must translate line n of the other"
            )
        yield Pair(source_line, target_line)

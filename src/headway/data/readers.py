"""File formats: one reader per format, each an iterator of records that streams its file.

Every error names the file, the line or row, and the way out.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import msgspec

from headway.data.csv_rows import csv_rows
from headway.data.records import Answer, Kind, LabelledText, Pair, Question, Record, TaggedSentence, texts_of
from headway.data.tag_schemes import TAG_SCHEMES, check_tags
from headway.data.text_files import (
    MAX_RECORD_BYTES,
    decode_text,
    iter_documents,
    iter_line_batches,
    iter_lines,
    open_bytes,
    read_errors,
    skip_bom,
)
from headway.errors import ConfigError, DataError, HeadwayError, install_command, suggest
from headway.file_reading import check_regular, parse_json

BATCH_CHARS = 1 << 20  # text per list of records
MAX_HEADER_CHARS = 1 << 16  # of a CSV header that tell its delimiter
PARQUET_BATCH_ROWS = 1024
MAX_PARQUET_ROW_BYTES = 16 << 20  # on average in a row group
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
    tag_scheme: str = "bio"  # tagging scheme of token-tag files: "bio", "bioes", "iob1", "any"
    errors: str = "strict"  # invalid UTF-8: "strict", "replace"
    text_pair: str | None = None  # column of a second text, beside a label
    label_separator: str | None = None  # between the labels of a text; multi-label data

    def __post_init__(self) -> None:
        for name, allowed in (
            ("format", ("auto", *READERS)),
            ("tag_scheme", TAG_SCHEMES),
            ("errors", ("strict", "replace")),
        ):
            value = getattr(self, name)
            if value not in allowed:
                raise ConfigError(f"{name}={value!r} is not one of {', '.join(allowed)}." + suggest(value, allowed))
        for name in ("text", "text_pair", "label"):
            if getattr(self, name) == "":
                raise ConfigError(f"{name}='' names no column")
        if self.label_separator == "":
            raise ConfigError("label_separator='' is empty; give the text between two labels, such as ';'")
        for name in ("text_pair", "label_separator"):
            if (value := getattr(self, name)) is not None and self.label is None:
                raise ConfigError(f"{name}={value!r} is for texts with labels: name the label column too (label)")
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
        if self.pairs:
            return [*self.pair_columns()]
        return [name for name in (self.text, self.text_pair, self.label) if name]

    def split_label(self, label: str) -> str | tuple[str, ...]:
        """A label as it is, or the labels between separators, each once."""
        if self.label_separator is None:
            return label
        names = (name.strip() for name in label.split(self.label_separator))
        return tuple(dict.fromkeys(name for name in names if name))


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
        for name in ("text", "pairs", "label"):  # text_pair needs a label
            if (value := getattr(options, name)) is not None:
                verb = {"conll": "tag", "squad": "answer"}.get(format) if name == "label" else None
                hint = "" if verb is None else f"; to train on such a file, use `headway train {verb}`"
                raise ConfigError(f"{name}={value!r} names a column, but a {format} file has no columns{hint}")
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


def read_batches(file: Path, format: str, options: ReadOptions) -> Iterator[list[Record]]:
    """The records of `read` in lists of about a megabyte, so that millions of lines are read at the speed of C."""
    if format != "lines":
        yield from batches_of(read(file, format, options))
        return
    with read_errors(str(file)):
        for lines in iter_line_batches(file, options.errors, line_endings="\n"):
            yield list[Record](lines)


def batches_of(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Records in lists of about BATCH_CHARS characters; the first one alone, since the caller may want no more."""
    batch: list[Record] = []
    n_chars = BATCH_CHARS
    try:
        for record in records:
            batch.append(record)
            n_chars += len(record) if isinstance(record, str) else sum(map(len, texts_of(record)))
            if n_chars >= BATCH_CHARS:
                del record  # it may be large
                yield batch
                batch, n_chars = [], 0
    except HeadwayError:
        yield batch  # the records before the faulty one
        raise
    yield batch


# ── tables ────────────────────────────────────────────────────────────────────────────────────────────────────────

TableRow = tuple[int, dict[str, Any] | list[str]]  # its line or row number, and its cells


def read_table(rows: Iterable[TableRow], file: Path, options: ReadOptions, unit: str = "line") -> Iterator[Record]:
    """Rows as records: a pair of columns, a text with a label, or a text."""
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{file} is empty: it has no rows; delete it, or add rows")
    if isinstance(first[1], list):
        header, rows = _header(first, rows, options)
    else:
        header, rows = list(first[1]), chain([first], rows)
    columns = select_columns(header, file, options, has_names=isinstance(first[1], dict))
    del first  # a row may be large
    indices = [header.index(name) for name in columns]
    for number, row in rows:
        if isinstance(row, list):
            if len(row) != len(header):
                raise DataError(
                    f"{file}, {unit} {number} has {len(row)} columns, but the first row has {len(header)}: "
                    f"{', '.join(row)[:60]!r}; put a field that holds the delimiter into quotes, or repair the row"
                )
            values = [row[i] for i in indices]
        else:
            values = [_cell(row, name, f"{file}, {unit} {number}", options) for name in columns]
        del row
        if options.label and not values[-1] and options.label_separator is None:
            raise DataError(f"{file}, {unit} {number}: the label is empty; every text needs one")
        yield _record(values, options)


def _record(values: list[str], options: ReadOptions) -> Record:
    """The cells of the columns that `select_columns` chose, as a record."""
    if options.pairs:
        return Pair(*values)
    if options.label is None:
        return values[0]
    return LabelledText(values[0], options.split_label(values[-1]), *values[1:-1])


def select_columns(header: list[str], file: Path, options: ReadOptions, *, has_names: bool) -> list[str]:
    """The columns of a record, in the order of its fields: those that the options name, and a text by default."""
    columns = options.named_columns()
    if not options.pairs and not options.text:
        columns.insert(0, _default_text_column(header, file, options, has_names=has_names))
    for name in columns:
        if name not in header:
            existing = f" The columns are: {', '.join(map(repr, header[:20]))}"
            setting = next((s for s in ("text", "text_pair", "label") if getattr(options, s) == name), "pairs")
            way_out = f"; name another one with {setting} (data.{setting}=COLUMN)"
            raise DataError(f"{file}: there is no column {name!r}." + suggest(name, header) + existing + way_out)
        if header.count(name) > 1:
            raise DataError(f"{file}: {header.count(name)} columns are called {name!r}; rename all but one")
    if len(set(columns)) < len(columns):
        raise ConfigError(f"the same column is named twice: {', '.join(columns)}")
    return columns


def _cell(row: dict[str, Any], name: str, location: str, options: ReadOptions) -> str:
    """The text in a column of a row that has names; a label may also be a number, and several labels a list."""
    value, is_label = row.get(name), name == options.label
    if isinstance(value, str):
        return value
    if is_label and isinstance(value, list) and all(isinstance(label, str) for label in value):
        return _joined_labels(value, location, options)
    if value is None:
        if name in row:
            way_out = "give a label, or drop the row" if is_label else "drop such rows, or use an empty string"
            raise DataError(f"{location}: column {name!r} is null; {way_out}")
        raise DataError(f"{location}: there is no column {name!r}; this row has {', '.join(row)[:200]}")
    if is_label and isinstance(value, (bool, int, float)):
        return str(value)
    allowed = "neither text nor a number" if is_label else "not text"
    raise DataError(f"{location}: column {name!r} holds {repr(value)[:40]}, which is {allowed}")


def _joined_labels(labels: list[str], location: str, options: ReadOptions) -> str:
    """A list of labels as one text, which `split_label` splits again."""
    separator = options.label_separator
    if separator is None:
        raise DataError(
            f"{location}: column {options.label!r} holds a list of labels; to train on several labels per text, set "
            f"label_separator (data.label_separator=';')"
        )
    wrong = [label for label in labels if separator in label or label.strip() != label or not label]
    if wrong:
        raise DataError(
            f"{location}: the label {wrong[0]!r} is empty, has spaces around it or contains label_separator="
            f"{separator!r}: choose a separator that no label contains, or repair the label"
        )
    return separator.join(labels)


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
    if format_of(file) != "tsv":
        return False
    with read_errors(str(file)):
        line = next((line for line in iter_lines(file, "replace") if line), "")
    cells = [cell.strip() for cell in line.split("\t")]
    return len(cells) == 2 and not set(cells) & set(TEXT_COLUMNS)


def _default_text_column(header: list[str], file: Path, options: ReadOptions, *, has_names: bool) -> str:
    for name in TEXT_COLUMNS:
        if name in header:
            return name
    candidates = [name for name in header if name not in (options.label, options.text_pair)]
    if len(candidates) == 1 and has_names:
        return candidates[0]
    raise DataError(
        f"{file}: which column is the text? The first row is: {', '.join(map(repr, header))[:400]}. Call it 'text', or "
        f"name a column as text, or two as pairs (data.text, data.pairs); use numbers from 1 if the first row is not a "
        f"header"
    )


def read_jsonl(file: Path, options: ReadOptions) -> Iterator[Record]:
    def rows() -> Iterator[TableRow]:
        number = 0
        for line in iter_lines(file, options.errors):
            number += 1
            if not line or line.isspace():
                continue
            try:
                value = parse_json(line)
            except ValueError as error:
                raise DataError(f"{file}, line {number} is not JSON: {error}; write one object per line") from None
            if not isinstance(value, dict):
                raise DataError(f"{file}, line {number} is not a JSON object with columns: {line:.40}")
            del line  # it may be large
            yield number, value

    return read_table(rows(), file, options)


def read_csv(file: Path, options: ReadOptions) -> Iterator[Record]:
    lines = iter_lines(file, options.errors, line_endings="\n")
    first = next((line for line in iter_lines(file, options.errors) if line), "")
    return read_table(csv_rows(lines, _delimiter(first[:MAX_HEADER_CHARS], options), str(file)), file, options)


def _delimiter(header: str, options: ReadOptions) -> str:
    """A comma; or a semicolon, as spreadsheets write in half of Europe, if that yields the columns named."""
    columns = set(options.named_columns())
    names = {cell.strip().strip('"') for cell in header.split(";")}
    is_match = columns <= names if columns else bool(names & set(TEXT_COLUMNS))
    return ";" if is_match and len(names) > 1 else ","


def read_tsv(file: Path, options: ReadOptions) -> Iterator[Record]:
    """Tab-separated columns, without quoting."""

    def rows() -> Iterator[TableRow]:
        number = 0
        for line in iter_lines(file, options.errors):
            number += 1  # noqa: SIM113 (`enumerate` would hold on to the line)
            if line:
                row = line.split("\t")
                del line  # it may be large
                yield number, row

    return read_table(rows(), file, options)


def read_parquet(file: Path, options: ReadOptions) -> Iterator[Record]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise DataError(f"{file}: reading Parquet needs pyarrow: {install_command('parquet')}") from None

    def rows() -> Iterator[TableRow]:
        number = 0
        check_regular(file, error=DataError)  # pyarrow opens it by name
        try:
            with parquet.ParquetFile(file, memory_map=True) as table:
                columns = select_columns(table.schema_arrow.names, file, options, has_names=True)
                batch_rows = _parquet_batch_rows(table.metadata, columns, file)
                for batch in table.iter_batches(batch_rows, columns=columns, use_threads=False):
                    for i in range(batch.num_rows):
                        number += 1
                        yield number, {name: cells[i].as_py() for name, cells in zip(columns, batch, strict=True)}
        except UnicodeDecodeError as error:
            raise DataError(f"{file}, row {number} is not UTF-8: {error}; write it again from text") from None
        except (pyarrow.ArrowException, ValueError, OverflowError) as error:
            if isinstance(error, HeadwayError):
                raise
            raise DataError(f"{file} is damaged or not a Parquet file: {error}; download or write it again") from None

    return read_table(rows(), file, options, unit="row")


def _parquet_batch_rows(metadata: Any, columns: list[str], file: Path) -> int:
    """How many rows to read at once: fewer if they are large. pyarrow needs several times the memory of a value."""
    largest = 1
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        chunks = [group.column(i) for i in range(group.num_columns)]
        size = sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema in columns)
        largest = max(largest, size // max(group.num_rows, 1))
    if largest > MAX_PARQUET_ROW_BYTES:
        raise DataError(
            f"{file} has rows of {largest:,} bytes on average, and the limit is {MAX_PARQUET_ROW_BYTES:,} for "
            f"Parquet; write them as JSON lines (.jsonl), or as shorter texts"
        )
    return max(1, min(PARQUET_BATCH_ROWS, BATCH_CHARS * 8 // largest))


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

    number = 0
    for line in iter_lines(file, options.errors):
        number += 1
        cells = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
        if not line.strip():
            yield from end_sentence()
            first_line = number + 1
            continue
        if len(cells) < 2:
            raise DataError(
                f"{file}, line {number}: {line!r:.40} is a word without a tag; expected 'word tag', or a blank line"
            )
        words.append(cells[0])
        tags.append(cells[-1])
        del line, cells  # they may be large
    yield from end_sentence()


def read_squad(file: Path, options: ReadOptions) -> Iterator[Record]:
    """SQuAD's JSON: articles, paragraphs, questions, answers with their character offset."""
    with open_bytes(file) as stream:
        start = skip_bom(stream)
        data = stream.read(MAX_RECORD_BYTES + 1)
    if len(data) > MAX_RECORD_BYTES:
        raise DataError(f"{file} is larger than {MAX_RECORD_BYTES:,} bytes, the limit of a SQuAD file; split it")
    if options.errors == "replace":
        data = data.decode("utf-8", "replace").encode()
    try:
        articles = msgspec.json.decode(data, type=_SquadFile).data
    except msgspec.ValidationError as error:
        raise DataError(
            f'{file} is not in SQuAD format: {{"data": [{{"paragraphs": [{{"context": …, "qas": […]}}]}}]}}; {error}; '
            f"write other records as JSON lines (.jsonl)"
        ) from None
    except RecursionError:
        raise DataError(f"{file} is not in SQuAD format: the JSON is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        decode_text(data, str(file), options.errors, start)  # names the byte if it is not UTF-8
        raise DataError(
            f'{file} is not JSON: {error}; a SQuAD file is one object, {{"data": [{{"paragraphs": […]}}]}}; for one '
            f"JSON object per line, set data.format=jsonl (headway data: --format jsonl)"
        ) from None
    del data  # it may be large
    for paragraph in (paragraph for article in articles for paragraph in article.paragraphs):
        for question in paragraph.qas:
            for answer in question.answers:
                start, end = answer.answer_start, answer.answer_start + len(answer.text)
                if paragraph.context[start:end] != answer.text:
                    raise DataError(
                        f"{file}, question {question.id}: the answer {answer.text[:60]!r} is not in the context at "
                        f"character {start}"
                    )
            answers = tuple(Answer(answer.text, answer.answer_start) for answer in question.answers)
            yield Question(str(question.id), question.question, paragraph.context, answers)


class _SquadAnswer(msgspec.Struct):
    text: str
    answer_start: Annotated[int, msgspec.Meta(ge=0)]


class _SquadQuestion(msgspec.Struct):
    id: str | int
    question: str
    answers: list[_SquadAnswer] = []


class _SquadParagraph(msgspec.Struct):
    context: str
    qas: list[_SquadQuestion]


class _SquadArticle(msgspec.Struct):
    paragraphs: list[_SquadParagraph]


class _SquadFile(msgspec.Struct):
    data: list[_SquadArticle]


def read_misspellings(file: Path, options: ReadOptions) -> Iterator[Record]:
    """Peter Norvig's spelling lists: "right: wrong, wrong*3", one word per line with its misspellings and, after the
    star, their counts. Each misspelling becomes one pair (wrong, right)."""
    number = 0
    for line in iter_lines(file, options.errors):
        number += 1
        right, colon, misspellings = line.partition(":")
        if not line or line.isspace():
            continue
        if not colon or not right.strip():
            raise DataError(f"{file}, line {number}: {line[:40]!r} is not of the form 'right: wrong, wrong*3'")
        del line  # it may be large
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

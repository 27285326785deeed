"""Reading files, whatever is in them, a record at a time and never more in memory than that.

Every reader takes a file and yields records; every complaint names the file, the line or byte, and the way out. Files
whose name ends in `.gz` are read through gzip.
"""

import codecs
import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from headway.data.records import Answer, Kind, Labelled, Pair, Question, Record, Tagged
from headway.errors import ConfigError, DataError, suggest

LARGE = 8 << 20  # a text file of more bytes is read as several documents
BLOCK = 1 << 20  # of about this size
TEXT_COLUMNS = ("text", "content", "sentence", "document")  # where none is named, the first of these that is there

# Endings → format; the longest that fits. What is not here is text.
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
    """How files are to be read."""

    format: str = "auto"
    text: str | None = None  # column of the text, by name or by number from 1
    pairs: str | None = None  # two columns, "source,target"
    label: str | None = None  # column of the label
    separator: str | None = None  # between the documents of a text file
    tag_scheme: str = "bio"  # how tags of token-tag files are written: "bio", "iob1", "any"
    errors: str = "strict"  # bytes that are not UTF-8: "strict", "replace"

    def __post_init__(self) -> None:
        for name, allowed in (
            ("format", ("auto", *dict.fromkeys(ENDINGS.values()), "lines", "misspellings")),
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
            raise ConfigError("separator='' separates nothing; give the text between documents, such as '\\n\\n'")
        if self.pairs is not None:
            self.pair_columns()
            if self.text is not None or self.label is not None:
                raise ConfigError("pairs names both columns; text and label are for other kinds of data")

    def pair_columns(self) -> tuple[str, str]:
        names = [name.strip() for name in (self.pairs or "").split(",")]
        if len(names) != 2 or not all(names):
            raise ConfigError(f"pairs={self.pairs!r} is not two columns: write pairs='source,target' or pairs='1,2'")
        return names[0], names[1]


def format_of(file: str | Path) -> str:
    name = str(file).lower().removesuffix(".gz")
    fitting = [ending for ending in ENDINGS if name.endswith(ending)]
    return ENDINGS[max(fitting, key=len)] if fitting else "text"


def kind_of(format: str, how: ReadOptions) -> Kind:
    """What kind of records a file of this format gives."""
    if how.separator is not None and format != "text":
        raise ConfigError(f"separator={how.separator!r} is for text files; {format} files have records of their own")
    if how.tag_scheme != "bio" and format != "conll":
        raise ConfigError(f"tag_scheme={how.tag_scheme!r} is for token-tag files, and this is {format}")
    if format in ("conll", "squad", "text", "lines", "misspellings"):
        for name in ("text", "pairs", "label"):
            if getattr(how, name) is not None:
                raise ConfigError(f"{name}={getattr(how, name)!r} names a column, but a {format} file has no columns")
        kinds: dict[str, Kind] = {"conll": "tagged", "squad": "questions", "misspellings": "pairs"}
        return kinds.get(format, "text")
    return "pairs" if how.pairs else "labelled" if how.label else "text"


def read(file: Path, format: str, how: ReadOptions) -> Iterator[Record]:
    with readable(str(file)):
        yield from READERS[format](file, how)


@contextmanager
def readable(name: str) -> Iterator[None]:
    """What the system says of a file that cannot be read, as an error of ours."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{name} is damaged: {error}") from None
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror or error}") from None


# ── bytes and lines ───────────────────────────────────────────────────────────────────────────────────────────────


def open_bytes(file: Path) -> BufferedIOBase:
    return gzip.open(file, "rb") if file.suffix.lower() == ".gz" else open(file, "rb")


def decode_text(data: bytes, name: str, errors: str = "strict", offset: int = 0) -> str:
    """Bytes as text; `offset` is where in the file they begin, for the complaint."""
    try:
        return data.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name} is not UTF-8: byte 0x{data[error.start]:02x} at offset {offset + error.start:,}; "
            + _way_out(data, name)
        ) from None


def _way_out(data: bytes, name: str) -> str:
    """What to do about bytes that are not UTF-8, by what they look like."""
    if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return f"it begins as UTF-16 does; convert it first: iconv -f utf-16 -t utf-8 {name} > converted.txt"
    if b"\0" in data[:4096]:
        return "it looks like a binary file, not text"
    if name == "stdin":
        return "convert it first, such as by: iconv -f latin1 -t utf-8"
    return (
        f"convert it first, such as: iconv -f latin1 -t utf-8 {name} > converted.txt; or where data is read for "
        f"training, data.errors=replace (--errors replace) puts � for each wrong byte"
    )


def read_text(file: str | Path, errors: str = "strict") -> str:
    """A UTF-8 file as it is, line ends included."""
    with readable(str(file)), open_bytes(Path(file)) as opened:
        begin = skip_mark(opened)
        return decode_text(opened.read(), str(file), errors, begin)


def lines(file: Path, errors: str = "strict") -> Iterator[str]:
    """The lines of a file without their ends."""
    with open_bytes(file) as opened:
        offset = skip_mark(opened)
        for line in opened:
            yield decode_text(line, str(file), errors, offset).rstrip("\r\n")
            offset += len(line)


def skip_mark(opened: BufferedIOBase) -> int:
    """Step over the byte-order mark that some programs put before a text; how many bytes it took."""
    size = len(codecs.BOM_UTF8) if opened.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0
    opened.seek(size)
    return size


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_documents(file: Path, how: ReadOptions) -> Iterator[str]:
    """A file is a document; or what stands between separators is; a large file is cut at line ends."""
    with open_bytes(file) as opened:
        begin = skip_mark(opened)
        cuts = _blocks(opened) if how.separator is None else _separated(opened, how.separator.encode())
        for data, offset in cuts:
            text = decode_text(data, str(file), how.errors, begin + offset)
            if text.strip():
                yield text


def read_lines(file: Path, how: ReadOptions) -> Iterator[str]:
    """Every line is a document, such as a sentence; an empty one too."""
    with open_bytes(file) as opened:
        offset = skip_mark(opened)
        for line in opened:
            yield decode_text(line, str(file), how.errors, offset).removesuffix("\n")
            offset += len(line)


def _separated(opened: BufferedIOBase, separator: bytes) -> Iterator[tuple[bytes, int]]:
    buffer, offset, searched = bytearray(), 0, 0
    while chunk := opened.read(BLOCK):
        buffer += chunk
        begin = 0
        while (end := buffer.find(separator, max(begin, searched))) >= 0:
            yield bytes(buffer[begin:end]), offset + begin
            begin = end + len(separator)
        del buffer[:begin]
        offset += begin
        searched = max(0, len(buffer) - len(separator) + 1)  # what is before cannot begin a separator
    yield bytes(buffer), offset


def _blocks(opened: BufferedIOBase) -> Iterator[tuple[bytes, int]]:
    start = opened.read(LARGE + 1)
    if len(start) <= LARGE:
        yield start, 0
        return
    buffer, offset = start, 0
    while True:
        while len(buffer) > BLOCK:
            cut = buffer.rfind(b"\n", 0, BLOCK) + 1 or _character_end(buffer, BLOCK)
            yield buffer[:cut], offset
            buffer, offset = buffer[cut:], offset + cut
        chunk = opened.read(LARGE)
        if not chunk:
            break
        buffer += chunk
    yield buffer, offset


def _character_end(data: bytes, place: int) -> int:
    """The last place at or before this one where no UTF-8 character is cut in two."""
    end = place
    while end > place - 4 and data[end] & 0xC0 == 0x80:
        end -= 1
    return end


# ── tables ────────────────────────────────────────────────────────────────────────────────────────────────────────

TableRow = tuple[str, dict[str, Any] | list[str]]  # where it is, such as "line 3", and what it holds


def read_table(rows: Iterable[TableRow], file: Path, how: ReadOptions) -> Iterator[Record]:
    """Rows as records: a pair of columns, a text with a label, or a text."""
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{file} is empty: there is no row in it")
    if isinstance(first[1], list):
        header, rows = _header(first, rows, how)
    else:
        header = list(first[1])
        rows = chain([first], rows)
    if how.pairs:
        wanted = [*how.pair_columns()]
    else:
        wanted = [how.text or _text_column(header, file, how, has_names=isinstance(first[1], dict))]
        wanted += [how.label] if how.label else []
    for name in wanted:
        if name not in header:
            there = f" There are: {', '.join(map(repr, header[:20]))}"
            raise DataError(f"{file}: there is no column {name!r}." + suggest(name, header) + there)
    if len(set(wanted)) < len(wanted):
        raise ConfigError(f"one column is asked for twice: {', '.join(wanted)}")
    places = [header.index(name) for name in wanted]
    for where, row in rows:
        if isinstance(row, list) and len(row) != len(header):
            raise DataError(
                f"{file}, {where} has {len(row)} columns, but the first row has {len(header)}: {', '.join(row)!r:.60}"
            )
        values = []
        for name, place in zip(wanted, places, strict=True):
            value = row.get(name) if isinstance(row, dict) else (row[place] if place < len(row) else None)
            if value is None and name in row:
                raise DataError(f"{file}, {where}: column {name!r} is null; leave such rows out, or put an empty text")
            if value is None:
                raise DataError(f"{file}, {where}: there is no column {name!r}; this row has {', '.join(row)}")
            if name == how.label and value == "":
                raise DataError(f"{file}, {where}: the label is empty; every text needs one")
            if not isinstance(value, str):
                if name != how.label:
                    raise DataError(f"{file}, {where}: column {name!r} holds {value!r:.40}, which is not text")
                value = str(value)
            values.append(value)
        yield Pair(*values) if how.pairs else Labelled(*values) if how.label else values[0]


def _header(first: TableRow, rows: Iterator[TableRow], how: ReadOptions) -> tuple[list[str], Iterator[TableRow]]:
    """The names of the columns, where the first row of a table holds them: numbers ask for a table without any."""
    cells = first[1]
    assert isinstance(cells, list)
    asked = [*how.pair_columns()] if how.pairs else [name for name in (how.text, how.label) if name]
    if asked and all(name.isdecimal() for name in asked):
        return [str(i + 1) for i in range(len(cells))], chain([first], rows)
    return [cell.strip() for cell in cells], rows


def _text_column(header: list[str], file: Path, how: ReadOptions, *, has_names: bool) -> str:
    for name in TEXT_COLUMNS:
        if name in header:
            return name
    rest = [name for name in header if name != how.label]
    if len(rest) == 1 and has_names:
        return rest[0]
    raise DataError(
        f"{file}: which column is the text? There are: {', '.join(map(repr, header))}. Name one (--text, data.text), "
        f"or two for pairs (--pairs, data.pairs); by number from 1 where the first row is no header"
    )


def read_jsonl(file: Path, how: ReadOptions) -> Iterator[Record]:
    def rows() -> Iterator[TableRow]:
        for number, line in enumerate(lines(file, how.errors), start=1):
            if not line.strip():
                continue
            try:
                value = msgspec.json.decode(line)
            except msgspec.DecodeError as error:
                raise DataError(f"{file}, line {number} is not JSON: {error}") from None
            if not isinstance(value, dict):
                raise DataError(f"{file}, line {number} is not a JSON object with columns, but {line:.40}")
            yield f"line {number}", value

    return read_table(rows(), file, how)


def read_csv(file: Path, how: ReadOptions) -> Iterator[Record]:
    def rows() -> Iterator[TableRow]:
        csv.field_size_limit(1 << 30)
        rest = lines(file, how.errors)
        first = next((line for line in rest if line), "")
        reader = csv.reader(
            (f"{line}\n" for line in chain([first], rest)), strict=True, delimiter=_delimiter(first, how)
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

    return read_table(rows(), file, how)


def _delimiter(header: str, how: ReadOptions) -> str:
    """A comma; or a semicolon, as spreadsheets write in half of Europe, where that gives the columns asked for."""
    asked = set(how.pair_columns() if how.pairs else filter(None, (how.text, how.label)))
    names = {cell.strip() for row in csv.reader([header], delimiter=";") for cell in row}
    found = asked <= names if asked else bool(names & set(TEXT_COLUMNS))
    return ";" if found and len(names) > 1 else ","


def read_tsv(file: Path, how: ReadOptions) -> Iterator[Record]:
    """Tabs between columns, nothing quoted."""
    numbered = enumerate(lines(file, how.errors), start=1)
    return read_table(((f"line {n}", line.split("\t")) for n, line in numbered if line), file, how)


def read_parquet(file: Path, how: ReadOptions) -> Iterator[Record]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise DataError(f"{file}: reading Parquet needs pyarrow: pip install 'headway[parquet]'") from None

    def rows() -> Iterator[TableRow]:
        number = 0
        try:
            with parquet.ParquetFile(file) as opened:
                wanted = [*how.pair_columns()] if how.pairs else [name for name in (how.text, how.label) if name]
                names = opened.schema_arrow.names
                columns = wanted if wanted and all(name in names for name in wanted) and how.text else None
                for batch in opened.iter_batches(batch_size=1024, columns=columns):
                    for row in batch.to_pylist():
                        number += 1
                        yield f"row {number}", row
        except pyarrow.ArrowException as error:
            raise DataError(f"{file} is damaged or no Parquet file: {error}") from None

    return read_table(rows(), file, how)


# ── tags and questions ────────────────────────────────────────────────────────────────────────────────────────────


def read_conll(file: Path, how: ReadOptions) -> Iterator[Record]:
    """Token-tag files: a word a line with its tag in the last column, an empty line between sentences."""
    words: list[str] = []
    tags: list[str] = []
    begin = 1

    def sentence() -> Iterator[Tagged]:
        if words and words != ["-DOCSTART-"]:
            yield Tagged(tuple(words), tuple(check_tags(tags, how.tag_scheme, f"{file}, line ", begin)))
        words.clear()
        tags.clear()

    for number, line in enumerate(lines(file, how.errors), start=1):
        cells = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
        if not line.strip():
            yield from sentence()
            begin = number + 1
            continue
        if len(cells) < 2:
            raise DataError(f"{file}, line {number}: {line!r:.40} is a word without a tag; expected 'word<TAB>tag'")
        words.append(cells[0])
        tags.append(cells[-1])
    yield from sentence()


def check_tags(tags: list[str], tag_scheme: str, where: str = "tag ", begin: int = 1) -> list[str]:
    """Tags in BIO: B-X begins something of type X, I-X continues it, O is nothing.

    IOB1 begins with I-X, and with B-X only right after another X (Ramshaw & Marcus 1995): it is rewritten.
    """
    if tag_scheme == "any":
        return tags
    found: list[str] = []
    for i, tag in enumerate(tags):
        before = found[-1] if found else "O"
        if not re.fullmatch(r"O|[BI]-.+", tag):
            raise DataError(
                f"{where}{begin + i}: tag {tag!r} is not BIO (O, B-TYPE or I-TYPE); "
                f"tags of another sort, such as parts of speech, are read with --tag-scheme any (data.tag_scheme)"
            )
        continues = before != "O" and before[2:] == tag[2:]
        if tag.startswith("I-") and not continues:
            if tag_scheme == "bio":
                raise DataError(
                    f"{where}{begin + i}: tag {tag!r} follows {before!r}, but in BIO what it continues begins with "
                    f"B-{tag[2:]}; if the file is written in IOB1, read it with --tag-scheme iob1 (data.tag_scheme)"
                )
            tag = f"B-{tag[2:]}"
        found.append(tag)
    return found


def read_squad(file: Path, how: ReadOptions) -> Iterator[Record]:
    """Question answering as SQuAD writes it: articles, paragraphs, questions, answers with their place."""
    try:
        document = msgspec.json.decode(read_text(file, how.errors))
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
        raise DataError(f"{file} is not JSON: {error}; for a JSON object a line, use --format jsonl") from None
    except (KeyError, TypeError, AttributeError):
        raise DataError(
            f'{file} is not laid out as SQuAD is: {{"data": [{{"paragraphs": [{{"context": …, "qas": […]}}]}}]}}; '
            f"records of another sort can be given as JSON lines (.jsonl)"
        ) from None


def read_misspellings(file: Path, how: ReadOptions) -> Iterator[Record]:
    """Lists as Peter Norvig's: "right: wrong, wrong*3", a word a line and how it was misspelt, how often after the
    star. Each way is one pair from wrong to right."""
    for number, line in enumerate(lines(file, how.errors), start=1):
        right, colon, wrongs = line.partition(":")
        if not line.strip():
            continue
        if not colon or not right.strip():
            raise DataError(f"{file}, line {number}: {line!r:.40} is not of the form 'right: wrong, wrong*3'")
        for wrong in dict.fromkeys(re.sub(r"\*\d+$", "", cell.strip()) for cell in wrongs.split(",")):
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


def read_parallel(source: Path, target: Path, how: ReadOptions) -> Iterator[Pair]:
    """Two files, a sentence a line, line by line translations of each other."""
    with readable(f"{source} or {target}"):
        yield from _read_parallel(source, target, how)


def _read_parallel(source: Path, target: Path, how: ReadOptions) -> Iterator[Pair]:
    ours, theirs = lines(source, how.errors), lines(target, how.errors)
    number = 0
    while True:
        number += 1
        left, right = next(ours, None), next(theirs, None)
        if left is None and right is None:
            return
        if left is None or right is None:
            longer, shorter = (target, source) if left is None else (source, target)
            rest = sum(1 for _ in (theirs if left is None else ours)) + 1
            raise DataError(
                f"{source} and {target} do not go together: {shorter} ends after line {number - 1:,}, {longer} has "
                f"{rest:,} more from line {number:,} on; line n of one must be the translation of line n of the other"
            )
        yield Pair(left, right)

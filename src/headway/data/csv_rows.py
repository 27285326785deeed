"""CSV as RFC 4180 defines it: rows of fields, streamed from lines.

Python's `csv` takes four bytes per character while it reads a field, and loses the line ends in a quoted field unless
it reads the file itself. This reader keeps fields exactly; a test compares it with `csv`.
"""

import io
import re
from collections.abc import Iterator

from headway.data.text_files import MAX_RECORD_BYTES
from headway.errors import DataError

_QUOTED = re.compile(r'[^"]*+(?:""[^"]*+)*+')  # up to the closing quote or the end of the line; "" is one quote


def csv_rows(lines: Iterator[str], delimiter: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """(line number, fields) of each row that is not empty; `lines` end where "\\n" was, and may end in "\\r"."""
    number = 0
    for line in lines:
        number += 1
        if '"' in line:
            number, row = _quoted_row(line, number, lines, delimiter, name)
        elif line := line.rstrip("\r"):
            if "\r" in line:
                raise _stray_return(name, number)
            row = line.split(delimiter)
        else:
            continue
        del line  # it may be large
        yield number, row


def _quoted_row(line: str, number: int, lines: Iterator[str], delimiter: str, name: str) -> tuple[int, list[str]]:
    """The row that starts on a line with a quote in it; it may take in more lines."""
    row: list[str] = []
    position = 0
    while True:
        if line.startswith('"', position):
            field, line, number, position = _quoted_field(line, position + 1, number, lines, name)
            row.append(field)
            if position == len(line) or (line[position] == "\r" and not line[position:].strip("\r")):
                return number, row
            if not line.startswith(delimiter, position):
                raise DataError(
                    f"{name}, line {number} is not CSV: {line[position : position + 20]!r} follows a closing quote, "
                    f"where {delimiter!r} or the end of the line is expected; double each quote inside a quoted field"
                )
            position += len(delimiter)
            continue
        end = line.find(delimiter, position)
        field = line[position:end] if end >= 0 else line[position:].rstrip("\r")
        if "\r" in field:
            raise _stray_return(name, number)
        row.append(field)
        if end < 0:
            return number, row
        position = end + len(delimiter)


def _quoted_field(line: str, start: int, number: int, lines: Iterator[str], name: str) -> tuple[str, str, int, int]:
    """A field from after its opening quote: its text, and the line, its number and the position where it ends."""
    first, field = number, io.StringIO(newline="")
    while True:
        match = _QUOTED.match(line, start)
        assert match is not None  # it also matches the empty string
        end = match.end()
        if end < len(line) and not field.tell():
            return line[start:end].replace('""', '"'), line, number, end + 1
        field.write(line[start:end].replace('""', '"'))
        if end < len(line):
            return field.getvalue(), line, number, end + 1
        field.write("\n")
        next_line = next(lines, None)
        if next_line is None or field.tell() > MAX_RECORD_BYTES:
            limit = f" within {MAX_RECORD_BYTES:,} characters" if next_line is not None else ""
            raise DataError(
                f"{name}, line {first} is not CSV: the quote that opens a field is never closed{limit}; close it, or "
                f"double it if it is part of the text, in a quoted field"
            )
        line, start, number = next_line, 0, number + 1


def _stray_return(name: str, number: int) -> DataError:
    return DataError(
        f"{name}, line {number} is not CSV: it has a carriage return (\\r) inside; put the field into quotes, or "
        f"convert lines that end in \\r alone: tr '\\r' '\\n' < {name} > converted.csv"
    )

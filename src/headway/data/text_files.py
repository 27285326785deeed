"""UTF-8 text files: open, decode, and read by line or by document, streaming.

Every error names the file, the byte and the way out. Files whose name ends in `.gz` are decompressed.
"""

import codecs
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path

from headway.errors import DataError

SPLIT_ABOVE_BYTES = 8 << 20  # a larger text file is read as several documents
DOCUMENT_BYTES = 1 << 20  # of about this size


@contextmanager
def read_errors(name: str) -> Iterator[None]:
    """Turn the system's errors about a file into a `DataError` that names it."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{name} is damaged: {error}") from None
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror or error}") from None


def open_bytes(file: Path) -> BufferedIOBase:
    return gzip.open(file, "rb") if file.suffix.lower() == ".gz" else open(file, "rb")


def decode_text(data: bytes, name: str, errors: str = "strict", offset: int = 0) -> str:
    """Decode UTF-8; `offset` is the position of `data` in the file, for the error message."""
    try:
        return data.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name} is not UTF-8: byte 0x{data[error.start]:02x} at offset {offset + error.start:,}; "
            + _encoding_hint(data, name)
        ) from None


def _encoding_hint(data: bytes, name: str) -> str:
    """Advice for bytes that are not UTF-8, by the encoding they look like."""
    if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return f"it starts with a UTF-16 byte-order mark; convert it: iconv -f utf-16 -t utf-8 {name} > converted.txt"
    if b"\0" in data[:4096]:
        return "it looks like a binary file, not text"
    if name == "stdin":
        return "convert it first, for example: iconv -f latin1 -t utf-8"
    return (
        f"convert it first, for example: iconv -f latin1 -t utf-8 {name} > converted.txt; for training data, "
        f"data.errors=replace (headway data: --errors replace) substitutes � for each invalid byte"
    )


def read_text(file: str | Path, errors: str = "strict") -> str:
    """The text of a UTF-8 file, line endings unchanged."""
    with read_errors(str(file)), open_bytes(Path(file)) as stream:
        offset = skip_bom(stream)
        return decode_text(stream.read(), str(file), errors, offset)


def iter_lines(file: Path, errors: str = "strict", *, line_endings: str = "\r\n") -> Iterator[str]:
    """The lines of a file, without the characters of `line_endings` at their ends."""
    with open_bytes(file) as stream:
        offset = skip_bom(stream)
        for line in stream:
            yield decode_text(line, str(file), errors, offset).rstrip(line_endings)
            offset += len(line)


def iter_documents(file: Path, separator: str | None = None, errors: str = "strict") -> Iterator[str]:
    """The documents of a text file: the text between separators, or the file; a large file is cut at line ends."""
    with open_bytes(file) as stream:
        start = skip_bom(stream)
        chunks = _cut_at_lines(stream) if separator is None else _cut_at_separators(stream, separator.encode())
        for data, offset in chunks:
            text = decode_text(data, str(file), errors, start + offset)
            if text.strip():
                yield text


def skip_bom(stream: BufferedIOBase) -> int:
    """Skip the UTF-8 byte-order mark that some programs write; returns its size in bytes, or 0."""
    size = len(codecs.BOM_UTF8) if stream.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0
    stream.seek(size)
    return size


def _cut_at_separators(stream: BufferedIOBase, separator: bytes) -> Iterator[tuple[bytes, int]]:
    """(bytes, offset) of the text between separators."""
    buffer, offset, n_searched = bytearray(), 0, 0
    while chunk := stream.read(DOCUMENT_BYTES):
        buffer += chunk
        start = 0
        while (end := buffer.find(separator, max(start, n_searched))) >= 0:
            yield bytes(buffer[start:end]), offset + start
            start = end + len(separator)
        del buffer[:start]
        offset += start
        n_searched = max(0, len(buffer) - len(separator) + 1)  # no separator starts before this
    yield bytes(buffer), offset


def _cut_at_lines(stream: BufferedIOBase) -> Iterator[tuple[bytes, int]]:
    """(bytes, offset) of the whole file, or of blocks of it if it is large."""
    buffer, offset = stream.read(SPLIT_ABOVE_BYTES + 1), 0
    if len(buffer) <= SPLIT_ABOVE_BYTES:
        yield buffer, 0
        return
    while True:
        while len(buffer) > DOCUMENT_BYTES:
            end = buffer.rfind(b"\n", 0, DOCUMENT_BYTES) + 1 or _character_boundary(buffer, DOCUMENT_BYTES)
            yield buffer[:end], offset
            buffer, offset = buffer[end:], offset + end
        chunk = stream.read(SPLIT_ABOVE_BYTES)
        if not chunk:
            break
        buffer += chunk
    yield buffer, offset


def _character_boundary(data: bytes, position: int) -> int:
    """The last position up to this one that does not cut a UTF-8 character in two."""
    end = position
    while end > position - 4 and data[end] & 0xC0 == 0x80:
        end -= 1
    return end

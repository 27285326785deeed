"""UTF-8 text files: open, decode, and read by line or by document, streaming.

Every error names the file, the byte and the way out. Files whose name ends in `.gz` are decompressed. Lines are read in
batches, since a file may have millions of them, and a line in pieces, since it may be most of the file.
"""

import codecs
import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path

from headway.data.file_types import SNIFF_BYTES, advice
from headway.errors import DataError
from headway.file_reading import open_regular

SPLIT_ABOVE_BYTES = 8 << 20  # a larger text file is read as several documents
DOCUMENT_BYTES = 1 << 20  # of about this size
BATCH_BYTES = 1 << 20  # lines are decoded in batches of about this size
MAX_RECORD_BYTES = 256 << 20  # of a line, a row, or a document between separators: it has to fit into memory


@contextmanager
def read_errors(name: str) -> Iterator[None]:
    """Turn the system's errors about a file into a `DataError` that names it."""
    try:
        yield
    except gzip.BadGzipFile as error:
        raise DataError(
            f"{name} is damaged or not a gzip file: {error}; make it again, or drop .gz from the name of plain text"
        ) from None
    except (EOFError, zlib.error) as error:
        raise DataError(f"{name} is damaged: {error}; copy or download it again") from None
    except OSError as error:
        if os.path.islink(name) and not os.path.exists(name):
            raise DataError(
                f"{name} is a broken link to {os.readlink(name)}, which does not exist; repair it, or delete it"
            ) from None
        raise DataError(f"{name} cannot be read: {error.strerror or error}") from None


@contextmanager
def open_bytes(file: Path) -> Iterator[BufferedIOBase]:
    """A regular file, decompressed if it ends in .gz; a pipe or a device is refused instead of blocking."""
    with open_regular(file, error=DataError) as stream:
        if file.suffix.lower() != ".gz":
            yield stream
            return
        with gzip.GzipFile(fileobj=stream) as decompressed:
            yield decompressed


def decode_text(data: bytes, name: str, errors: str = "strict", offset: int = 0) -> str:
    """Decode UTF-8; `offset` is the position of `data` in the file, for the error message."""
    try:
        return data.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise _not_utf8(data[error.start], offset + error.start, name, data[:SNIFF_BYTES]) from None


def read_text(file: str | Path, errors: str = "strict") -> str:
    """The text of a UTF-8 file, line endings unchanged."""
    file = Path(file)
    with read_errors(str(file)), open_bytes(file) as stream:
        offset = skip_bom(stream)
        return _decode(stream.read(), file, errors, offset)


def iter_lines(file: Path, errors: str = "strict", *, line_endings: str = "\r\n") -> Iterator[str]:
    """The lines of a file, without the characters of `line_endings` at their ends."""
    for lines in iter_line_batches(file, errors, line_endings=line_endings):
        if len(lines) == 1:
            yield lines.pop()  # it may be large: keep no second reference
        else:
            yield from lines


def iter_line_batches(file: Path, errors: str = "strict", *, line_endings: str = "\r\n") -> Iterator[list[str]]:
    """`iter_lines` in lists of about BATCH_BYTES; a longer line is a list of its own.

    At most two copies of a line are in memory: its bytes, and the text that is made of them.
    """
    n_lines = 0
    for data, offset in _line_blocks(file):
        if len(data) > MAX_RECORD_BYTES:
            raise DataError(
                f"{file}, line {n_lines + 1:,} is longer than {MAX_RECORD_BYTES:,} bytes, the limit of one "
                f"line; break it into lines, or read the file as text (format text)"
            )
        if data.endswith(b"\n"):
            del data[-1:]
        try:
            lines = _decode(data, file, errors, offset).split("\n")
        except DataError:  # read the lines before the faulty one, as if they were read one by one
            for line in data.split(b"\n"):
                yield [_decode(line, file, errors, offset).rstrip(line_endings)]
                offset += len(line) + 1
            raise
        if "\r" in line_endings and b"\r" in data:
            lines = [line.rstrip("\r") for line in lines]
        n_lines += len(lines)
        data.clear()  # frees the bytes of a long line before its text is used
        yield lines


def _line_blocks(file: Path) -> Iterator[tuple[bytearray, int]]:
    """(bytes, offset) of whole lines; the block of a line of more than BATCH_BYTES holds nothing else."""
    with open_bytes(file) as stream:
        offset = skip_bom(stream)
        pending = bytearray()
        while len(pending) <= MAX_RECORD_BYTES and (chunk := stream.read(BATCH_BYTES)):
            ends = [chunk.find(b"\n") + 1] if len(pending) >= BATCH_BYTES else []  # the end of a long line
            start = 0
            for end in [*ends, chunk.rfind(b"\n") + 1]:
                if end > start:
                    pending += chunk[start:end]
                    size = len(pending)
                    yield pending, offset
                    offset += size
                    pending, start = bytearray(), end
            pending += chunk[start:]
        if pending:
            yield pending, offset


def iter_documents(file: Path, separator: str | None = None, errors: str = "strict") -> Iterator[str]:
    """The documents of a text file: the text between separators, or the file; a large file is cut at line ends."""
    with open_bytes(file) as stream:
        start = skip_bom(stream)
        chunks = _cut_at_lines(stream) if separator is None else _cut_at_separators(stream, separator.encode(), file)
        for data, offset in chunks:
            text = _decode(data, file, errors, start + offset)
            del data
            if text and not text.isspace():
                yield text


def skip_bom(stream: BufferedIOBase) -> int:
    """Skip the UTF-8 byte-order mark that some programs write; returns its size in bytes, or 0."""
    size = len(codecs.BOM_UTF8) if stream.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0
    stream.seek(size)
    return size


def _decode(data: bytes | bytearray, file: Path, errors: str, offset: int) -> str:
    """The text of a part of a file. A NUL byte is an error, as bytes that are not UTF-8 are: it occurs in UTF-16
    and binary files, not in text."""
    try:
        text = str(data, "utf-8", errors)
    except UnicodeDecodeError as error:
        raise _not_utf8(data[error.start], offset + error.start, str(file), _head(file)) from None
    if (nul := data.find(0)) < 0:
        return text
    if errors == "replace":
        return text.replace("\0", "\ufffd")
    raise DataError(
        f"{file} has a NUL byte at offset {offset + nul:,}, so it is not text; {advice(_head(file), str(file))}"
    )


def _not_utf8(byte: int, offset: int, name: str, head: bytes) -> DataError:
    return DataError(f"{name} is not UTF-8: byte 0x{byte:02x} at offset {offset:,}; {advice(head, name)}")


def _head(file: Path) -> bytes:
    """The first bytes of a file, which tell what it is."""
    with open_bytes(file) as stream:
        return stream.read(SNIFF_BYTES)


def _cut_at_separators(stream: BufferedIOBase, separator: bytes, file: Path) -> Iterator[tuple[bytearray, int]]:
    """(bytes, offset) of the text between separators."""
    buffer, offset, n_searched = bytearray(), 0, 0
    while chunk := stream.read(DOCUMENT_BYTES):
        buffer += chunk
        start = 0
        while (end := buffer.find(separator, max(start, n_searched))) >= 0:
            yield buffer[start:end], offset + start
            start = end + len(separator)
        del buffer[:start]
        offset += start
        n_searched = max(0, len(buffer) - len(separator) + 1)  # no separator starts before this
        if len(buffer) > MAX_RECORD_BYTES:
            raise DataError(
                f"{file}: the document at byte {offset:,} is longer than {MAX_RECORD_BYTES:,} bytes, the limit of one; "
                f"is separator={separator.decode()!r} in the file? Without one, a file of any size is read"
            )
    yield buffer, offset


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

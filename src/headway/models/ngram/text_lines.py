"""The lines of an ARPA or count file: one at a time, and none so long that it fills the memory."""

import gzip
import zlib
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import IO, cast

from headway.errors import DataError
from headway.file_reading import open_regular

MAX_LINE_CHARACTERS = 1 << 20


def read_lines(file: str | Path) -> Iterator[str]:
    """The lines of a UTF-8 file, gzipped or not, with their ends. Only "\\n" ends a line."""
    try:
        with open_regular(file, error=DataError) as opened:
            is_gzip = opened.read(2) == b"\x1f\x8b"
            opened.seek(0)
            source = cast(IO[bytes], gzip.GzipFile(fileobj=opened)) if is_gzip else opened
            with TextIOWrapper(source, encoding="utf-8", newline="\n") as text:
                while line := text.readline(MAX_LINE_CHARACTERS):
                    if len(line) == MAX_LINE_CHARACTERS:
                        raise DataError(
                            f"{file} has a line of {MAX_LINE_CHARACTERS:,} characters: it is not a list of n-grams"
                        )
                    yield line
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 ({error}): convert it first") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file} cannot be read: {error}") from None

"""Read untrusted files: bounded in size, without blocking, with one clear error.

A pipe or a device in place of a file is refused instead of waited for. JSON becomes plain values that can be written
again: no lone surrogates, no nesting that exhausts the stack.
"""

import os
import stat
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from headway.errors import CheckpointError, HeadwayError, did_you_mean, nearest

MAX_SIBLINGS = 1000  # files that are compared with a mistyped name
MAX_JSON_BYTES = 64 * 2**20  # the tokenizer.json of a vocabulary of 256,000 has 35 MB

_FILE_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def suggest_file(path: Path) -> str:
    """ " Did you mean 'my.txt'?" if a file or folder beside a path that is not what it should be has a similar name."""
    try:
        names = sorted(sibling.name for sibling in islice(path.parent.iterdir(), MAX_SIBLINGS))
    except OSError:  # the folder does not exist either
        return ""
    others = [name for name in names if name != path.name and not name.startswith(".")]
    return did_you_mean([str(path.with_name(name)) for name in nearest(path.name, others)])


def open_regular(path: str | Path, *, error: type[HeadwayError] = CheckpointError) -> BufferedReader:
    """Open a regular file for reading. A pipe, device or folder raises `error`, a missing file FileNotFoundError."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a pipe would wait for its writer
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    kind = _FILE_KINDS.get(stat.S_IFMT(mode), "a special file")
    way_out = "name a file" if stat.S_ISDIR(mode) else "copy its content to a file, and use that one"
    raise error(f"{path} is {kind}, not a file: {way_out}")


def check_regular(path: str | Path, *, error: type[HeadwayError] = CheckpointError) -> None:
    """Refuse a pipe, a device or a folder before a library opens it by name."""
    open_regular(path, error=error).close()


def read_bytes(path: str | Path, *, max_bytes: int, error: type[HeadwayError] = CheckpointError) -> bytes:
    """The content of a regular file of at most `max_bytes`."""
    with open_regular(path, error=error) as file:
        data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            size = os.fstat(file.fileno()).st_size
            raise error(f"{path} has {size:,} bytes; at most {max_bytes:,} are read")
    return data


def read_utf8(path: str | Path, *, max_bytes: int = MAX_JSON_BYTES, error: type[HeadwayError] = CheckpointError) -> str:
    """Read a UTF-8 file, line ends unchanged. For config and vocabulary files; data/readers.py reads user text."""
    return read_bytes(path, max_bytes=max_bytes, error=error).decode("utf-8")


def read_json(
    path: str | Path, *, max_bytes: int = MAX_JSON_BYTES, error: type[HeadwayError] = CheckpointError
) -> dict[str, Any]:
    """The JSON object in a file; the error names the file and what is wrong with it."""
    try:
        document = parse_json(read_bytes(path, max_bytes=max_bytes, error=error))
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror or problem}") from None
    except HeadwayError:
        raise
    except ValueError as problem:
        raise error(f"{path} cannot be read: {problem}") from None
    if not isinstance(document, dict):
        raise error(f"{path} does not hold a JSON object")
    return document


def parse_json(text: str | bytes) -> Any:
    """Strict JSON; every fault is a ValueError: bad syntax, NaN, a lone surrogate, nesting that is too deep."""
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    except msgspec.DecodeError as problem:
        raise ValueError(str(problem)) from None

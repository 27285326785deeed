"""Writing to disk so that a reader never meets half a file: aside first, then renamed into place."""

import fcntl
import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headway.errors import CheckpointError

CHECKSUMS = "checksums.json"


def finite(value: Any) -> Any:
    """The same for JSON, which has no infinity: null instead."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def new_directory(path: str | Path, *, overwrite: bool = False, aside: Path | None = None) -> Iterator[Path]:
    """A folder to fill; it takes the name `path`, whole and flushed to disk, when the block ends well.

    Until then it is beside it, as `aside` where other processes must know, else by a name nobody has.

    If the block fails, or the power does, whatever was at `path` is still there. Overwriting takes two renames: should
    the power fail between them, the old folder is whole beside its place, as `.NAME.….old/NAME`.
    """
    path = Path(path)
    if path.exists() and not overwrite and not (path.is_dir() and not any(path.iterdir())):
        raise CheckpointError(
            f"{path} is there already and would be lost; choose another place (in Python also overwrite=True)"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    if aside is None:
        aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent))
    else:
        shutil.rmtree(aside, ignore_errors=True)  # of a writer that was killed
        aside.mkdir()
    aside.chmod(0o755)
    try:
        yield aside
        for file in aside.rglob("*"):
            flush(file)
        old = None
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".old", dir=path.parent)) / path.name
            path.rename(old)
        try:
            aside.rename(path)
        except OSError:
            if old is not None:
                old.rename(path)
                old.parent.rmdir()
            raise
        flush(path.parent)
        if old is not None:
            shutil.rmtree(old.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write_text(path: str | Path, text: str) -> None:
    """Replace a file's content in one move."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | Path, data: bytes) -> None:
    write_chunks(path, [data])


def write_chunks(path: str | Path, chunks: Iterable[bytes]) -> None:
    """The same for what is made piece by piece."""
    path = Path(path)
    if path.exists() and not path.is_file():  # a pipe or a device has no halves to be met, and must stay what it is
        with open(path, "wb") as pipe:
            pipe.writelines(chunks)
        return
    path = path.resolve()  # not the link, what it leads to
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException as error:
        os.unlink(name)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a full disk does not say where
        raise


def read_utf8(path: str | Path) -> str:
    """A file of ours or of another tool, line ends as they are; not for the user's own text, which has its own care."""
    return Path(path).read_bytes().decode("utf-8")


def flush(path: Path) -> None:
    """Have the system write a file or folder to disk before going on."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock that the system releases when this process ends, however it ends. Without `wait`, one that another
    process holds is a BlockingIOError."""
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield


def free_name(path: Path) -> Path:
    """`path`, or `path-2`, `path-3`, … : the first that nothing is called yet."""
    candidate, n = path, 2
    while candidate.exists():
        candidate, n = path.with_name(f"{path.name}-{n}"), n + 1
    return candidate


# ── is a folder as it was written? ────────────────────────────────────────────────────────────────────────────────


def seal(folder: Path) -> None:
    """Write down what every file of a folder is, so that `verify` can tell later."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != CHECKSUMS)
    sums = {path.relative_to(folder).as_posix(): [path.stat().st_size, _digest(path)] for path in files}
    (folder / CHECKSUMS).write_text(_document(sums), encoding="utf-8")


def verify(folder: Path) -> None:
    """Refuse a folder in which a file is missing, or any byte is not what `seal` saw, by the file's name."""
    file = folder / CHECKSUMS
    try:
        text = file.read_text(encoding="utf-8")
        sums = json.loads(text)["files"]
        if text != _document(sums):
            raise ValueError
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing: the checkpoint is not whole") from None
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(f"{file} is damaged") from None
    for name, (size, digest) in sums.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing: the checkpoint is not whole")
        if path.stat().st_size != size:
            raise CheckpointError(f"{path} is damaged: {path.stat().st_size:,} bytes, {size:,} when it was written")
        if _digest(path) != digest:
            raise CheckpointError(f"{path} is damaged: its checksum is not the one it was written with")


def _document(sums: dict[str, Any]) -> str:
    """The listing with a checksum of itself, in one possible form: a change to any byte of it shows."""
    listed = json.dumps(sums, sort_keys=True)
    return json.dumps({"files": sums, "sha256": hashlib.sha256(listed.encode()).hexdigest()}, sort_keys=True) + "\n"


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

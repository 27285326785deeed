"""Atomic writes: files and folders are written under a temporary name, flushed and renamed into place.

A reader sees the old content or the new one, never a part; a crash or power cut leaves one of the two.
"""

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

from filelock import FileLock, Timeout

from headway.errors import CheckpointError

CHECKSUMS = "checksums.json"


def non_finite_to_null(value: Any) -> Any:
    """A copy for JSON, which has no infinity or NaN: null instead."""
    if isinstance(value, dict):
        return {key: non_finite_to_null(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [non_finite_to_null(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def new_directory(path: str | Path, *, overwrite: bool = False, partial: Path | None = None) -> Iterator[Path]:
    """Yield a temporary folder to fill. When the block succeeds it is flushed to disk and renamed to `path`.

    The temporary folder lies beside `path`: under the name `partial` if other processes must know it, else under a
    random one. If the block raises, or the power fails, whatever was at `path` is still there. Overwriting takes two
    renames; if the power fails between them, the old folder is intact at `.NAME.….old/NAME`.
    """
    path = Path(path)
    if path.exists() and not overwrite and not (path.is_dir() and not any(path.iterdir())):
        raise CheckpointError(
            f"{path} exists and is not overwritten; choose another path (in Python also overwrite=True)"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    if partial is None:
        partial = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent))
    else:
        shutil.rmtree(partial, ignore_errors=True)  # left by a writer that was killed
        partial.mkdir()
    partial.chmod(0o755)
    try:
        yield partial
        for file in partial.rglob("*"):
            flush(file)
        old = None
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".old", dir=path.parent)) / path.name
            path.rename(old)
        try:
            partial.rename(path)
        except OSError:
            if old is not None:
                old.rename(path)
                old.parent.rmdir()
            raise
        flush(path.parent)
        if old is not None:
            shutil.rmtree(old.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_text(path: str | Path, text: str) -> None:
    """Replace a file's content atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | Path, data: bytes) -> None:
    write_chunks(path, [data])


def write_chunks(path: str | Path, chunks: Iterable[bytes]) -> None:
    """Replace a file's content atomically, from an iterable of chunks."""
    path = Path(path)
    if path.exists() and not path.is_file():  # a pipe or a device: nothing to replace
        with open(path, "wb") as pipe:
            pipe.writelines(chunks)
        return
    path = path.resolve()  # keep a symbolic link, replace its target
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
            error.filename = str(path)  # ENOSPC comes without a file name
        raise


def flush(path: Path) -> None:
    """fsync a file or folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def file_lock(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a file lock, which the system releases if the process dies. Without `wait`, a lock held by another process
    raises BlockingIOError."""
    lock = FileLock(path, timeout=-1 if wait else 0)
    try:
        lock.acquire()
    except Timeout:
        raise BlockingIOError(f"{path} is locked by another process") from None
    try:
        yield
    finally:
        lock.release()


def free_name(path: Path) -> Path:
    """The first of `path`, `path-2`, `path-3`, … that does not exist."""
    candidate, n = path, 2
    while candidate.exists():
        candidate, n = path.with_name(f"{path.name}-{n}"), n + 1
    return candidate


# ── checksums ─────────────────────────────────────────────────────────────────────────────────────────────────────


def write_checksums(folder: Path) -> None:
    """Write size and SHA-256 of every file of a folder to checksums.json."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != CHECKSUMS)
    sums = {path.relative_to(folder).as_posix(): [path.stat().st_size, _digest(path)] for path in files}
    (folder / CHECKSUMS).write_text(_document(sums), encoding="utf-8")


def verify_checksums(folder: Path) -> None:
    """Check a folder against its checksums.json; the error names the missing or damaged file."""
    file = folder / CHECKSUMS
    try:
        text = file.read_text(encoding="utf-8")
        sums = json.loads(text)["files"]
        if text != _document(sums):
            raise ValueError
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing: the checkpoint is incomplete") from None
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(f"{file} is damaged") from None
    for name, (size, digest) in sums.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing: the checkpoint is incomplete")
        if path.stat().st_size != size:
            raise CheckpointError(f"{path} is damaged: it has {path.stat().st_size:,} bytes instead of {size:,}")
        if _digest(path) != digest:
            raise CheckpointError(f"{path} is damaged: its checksum does not match")


def _document(sums: dict[str, Any]) -> str:
    """The checksums with a checksum of themselves, in canonical form: a change to any byte is detected."""
    listed = json.dumps(sums, sort_keys=True)
    return json.dumps({"files": sums, "sha256": hashlib.sha256(listed.encode()).hexdigest()}, sort_keys=True) + "\n"


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

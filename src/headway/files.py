"""Atomic writes: files and folders are written under a temporary name, flushed and renamed into place.

A reader sees the old content or the new one, never a mixture; a crash or power cut leaves one of the two. Deleting is
atomic too: a folder is renamed before its files are removed, and not while a reader holds it.
"""

import errno
import fcntl
import hashlib
import json
import math
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar

from filelock import FileLock, Timeout

from headway.errors import CheckpointError, DataError, DiskError
from headway.file_reading import open_regular, parse_json, read_bytes
from headway.temporary_files import temporary_path

CHECKSUMS = "checksums.json"
MAX_CHECKSUMS_BYTES = 2**20  # thousands of files
MAX_READS = 100  # of a folder that is replaced each time while it is read
SECONDS_BETWEEN_READS = 0.01
SECONDS_TO_READ_PIPE = 1.0

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # no space, no quota, a limit, a broken disk

T = TypeVar("T")


def cache_folder() -> Path:
    """$HEADWAY_CACHE, or `headway` in the user's cache folder."""
    headway_cache = os.environ.get("HEADWAY_CACHE")
    folder = Path(headway_cache or os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        folder = folder.expanduser()
    except RuntimeError:
        raise DataError(f"{folder} names the home folder of an unknown user: set HEADWAY_CACHE to a folder") from None
    return folder if headway_cache else folder / "headway"


def non_finite_to_null(value: Any) -> Any:
    """A copy for JSON, which has no infinity or NaN: null instead."""
    if isinstance(value, dict):
        return {key: non_finite_to_null(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [non_finite_to_null(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def disk_errors(path: str | Path) -> Iterator[None]:
    """Raise errors of a full or failing disk as a DiskError that names `path`: the system often gives no file name."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_ERRORS or isinstance(error, DiskError):
            raise
        explained = DiskError(f"{path} cannot be written: {error.strerror}; make space on the disk")
        explained.errno, explained.filename = error.errno, str(path)
        raise explained from None


@contextmanager
def new_directory(path: str | Path, *, overwrite: bool = False, partial: Path | None = None) -> Iterator[Path]:
    """Yield a temporary folder to fill. When the block succeeds it is flushed to disk and renamed to `path`.

    The temporary folder lies beside `path`: under the name `partial` if other processes must know it, else under a
    random one. If the block raises, or the power fails, whatever was at `path` is still there. Overwriting takes two
    renames; if the power fails between them, the old folder is intact at `.NAME.….old/NAME`.
    """
    path = Path(path)
    if not overwrite and not _is_free(path):
        raise CheckpointError(
            f"{path} exists and is not overwritten; choose another path (in Python also overwrite=True)"
        )
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial or path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    with disk_errors(path), temporary_path(partial):
        shutil.rmtree(partial, ignore_errors=True)  # left by a writer that was killed
        partial.mkdir(mode=0o755)
        yield partial
        for file in [*partial.rglob("*"), partial]:
            flush(file)
        old = None
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".old", dir=path.parent)) / path.name
        try:
            if old is not None:
                path.rename(old)
            partial.rename(path)
        except BaseException:  # also an exception that a signal raises between the two
            if old is not None:
                if old.exists() and not path.exists():
                    old.rename(path)
                shutil.rmtree(old.parent, ignore_errors=True)
            raise
        flush(path.parent)
        if old is not None:
            shutil.rmtree(old.parent, ignore_errors=True)


def _is_free(path: Path) -> bool:
    """Whether there is nothing at a path, or an empty folder."""
    try:
        return not os.listdir(path)
    except FileNotFoundError:
        return not path.is_symlink()
    except NotADirectoryError:
        return False


def remove_directory(path: Path) -> bool:
    """Delete a folder atomically: it is renamed to a hidden name, then removed. Does nothing and returns False while a
    reader holds it (`read_directory`). A crash leaves the hidden folder, `.NAME.….removed`."""
    removed = path.with_name(f".{path.name}.{secrets.token_hex(4)}.removed")
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with temporary_path(removed), _locked(handle, fcntl.LOCK_EX) as is_held:
        if is_held:
            path.rename(removed)
    return is_held


def read_directory(find: Callable[[], Path], read: Callable[[Path], T]) -> T:
    """Read one consistent version of the folder that `find` returns, though other processes may replace or delete it.

    While it is read, `remove_directory` leaves it alone. If it was replaced meanwhile, the result or
    error of `read` is dropped, and `find` and `read` are called again.
    """
    for _ in range(MAX_READS):
        folder = find()
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # just deleted
            time.sleep(SECONDS_BETWEEN_READS)
            continue
        with _locked(handle, fcntl.LOCK_SH):
            try:
                result = read(folder)
            except Exception:
                if _is_still_at(folder, handle):
                    raise
            else:
                if _is_still_at(folder, handle):
                    return result
        time.sleep(SECONDS_BETWEEN_READS)
    raise CheckpointError(
        f"{folder} was replaced {MAX_READS} times while it was read: try again when no process writes to it"
    )


@contextmanager
def _locked(handle: int, kind: int) -> Iterator[bool]:
    """Try to lock an open folder, for readers (LOCK_SH) or for the one that deletes it (LOCK_EX); yields False while
    others hold it. On file systems without locks it always succeeds. Closes the folder at the end."""
    try:
        is_held = True
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            is_held = False
        except OSError:
            pass
        yield is_held
    finally:
        os.close(handle)  # this also releases the lock


def _is_still_at(folder: Path, handle: int) -> bool:
    """Whether a path leads to the folder that is open; its inode cannot be reused as long as it is."""
    try:
        return os.path.samestat(os.stat(folder), os.fstat(handle))
    except OSError:
        return False


def write_text(path: str | Path, text: str) -> None:
    """Replace a file's content atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | Path, data: bytes) -> None:
    write_chunks(path, [data])


def write_chunks(path: str | Path, chunks: Iterable[bytes]) -> None:
    """Replace a file's content atomically, from an iterable of chunks."""
    path = Path(path)
    if path.exists() and not path.is_file():  # a pipe or a device: nothing to replace
        with disk_errors(path), _open_pipe(path) as pipe:
            pipe.writelines(chunks)
        return
    path = Path(os.path.realpath(path))  # keep a symbolic link, replace its target
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with disk_errors(path), temporary_path(temporary):
            with open(temporary, "xb") as file:
                file.writelines(chunks)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
            flush(path.parent)
    except OSError as error:
        if error.filename == str(temporary):
            error.filename = str(path)
        raise


def _open_pipe(path: Path) -> BinaryIO:
    """Open a pipe or a device for writing. A pipe that nobody reads is an error, after a moment for its reader to
    start."""
    deadline = time.monotonic() + SECONDS_TO_READ_PIPE
    while True:
        try:
            handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > deadline:
                raise
            time.sleep(SECONDS_BETWEEN_READS)
        else:
            os.set_blocking(handle, True)
            return os.fdopen(handle, "wb")


def append_line(path: str | Path, line: str) -> None:
    """Append a line to a file: all of it or, on a full disk, nothing. A partial line of a killed process becomes a
    line of its own."""
    with disk_errors(path):
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            size = os.fstat(handle).st_size
            ends_in_newline = size == 0 or os.pread(handle, 1, size - 1) == b"\n"
            data = memoryview((b"" if ends_in_newline else b"\n") + line.encode() + b"\n")
            try:
                while data:
                    data = data[os.write(handle, data) :]
            except BaseException:
                os.ftruncate(handle, size)
                raise
        finally:
            os.close(handle)


def flush(path: Path) -> None:
    """fsync a file or folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def file_lock(path: Path, *, wait: bool = True, seconds: float = 0.0) -> Iterator[None]:
    """Hold a file lock, which the system releases if the process dies. Without `wait`, a lock that another process
    still holds after some `seconds` raises BlockingIOError."""
    lock = FileLock(path, timeout=-1 if wait else seconds)
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
    sums = {path.relative_to(folder).as_posix(): [path.stat().st_size, file_digest(path)] for path in files}
    (folder / CHECKSUMS).write_text(_document(sums), encoding="utf-8")


def verify_checksums(folder: Path) -> None:
    """Check a folder against its checksums.json; the error names the missing or damaged file."""
    for name, (size, digest) in _read_checksums(folder / CHECKSUMS).items():
        path = folder / name
        if not path.exists():
            raise CheckpointError(f"{path} is missing: the checkpoint is incomplete")
        try:
            with open_regular(path) as file:
                n_bytes = os.fstat(file.fileno()).st_size
                if n_bytes != size:
                    raise CheckpointError(f"{path} is damaged: it has {n_bytes:,} bytes instead of {size:,}")
                if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                    raise CheckpointError(f"{path} is damaged: its checksum does not match")
        except OSError as problem:
            raise CheckpointError(f"{path} cannot be read: {problem.strerror or problem}") from None


def _read_checksums(file: Path) -> dict[str, tuple[int, str]]:
    """Size and SHA-256 by name. A name is that of a file inside the folder: nothing else is ever opened."""
    try:
        text = read_bytes(file, max_bytes=MAX_CHECKSUMS_BYTES).decode("utf-8")
        sums = parse_json(text)["files"]
        if text != _document(sums):
            raise ValueError
        for name, (size, digest) in sums.items():
            parts = PurePosixPath(name).parts
            if not parts or parts[0] == "/" or ".." in parts or "\0" in name:
                raise ValueError
            if not isinstance(size, int) or not isinstance(digest, str):
                raise ValueError
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing: the checkpoint is incomplete") from None
    except OSError as problem:
        raise CheckpointError(f"{file} cannot be read: {problem.strerror or problem}") from None
    except CheckpointError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(f"{file} is damaged") from None
    return {name: (size, digest) for name, (size, digest) in sums.items()}


def _document(sums: dict[str, Any]) -> str:
    """The checksums with a checksum of themselves, in canonical form: a change to any byte is detected."""
    listed = json.dumps(sums, sort_keys=True)
    return json.dumps({"files": sums, "sha256": hashlib.sha256(listed.encode()).hexdigest()}, sort_keys=True) + "\n"


def file_digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

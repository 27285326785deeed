"""A registry of the temporary files and folders of this process, so that they can be removed when a signal ends it.

A path is registered before anything is created at it. An exception that a signal raises between two statements, or a
process that ends without unwinding its stack (termination.py), therefore leaves nothing behind.
"""

import os
import secrets
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

Listener = Callable[[str, bool], None]  # gets a path, and whether it was added or removed

_paths: set[str] = set()
_listeners: list[Listener] = []
_is_closed = threading.Event()


@contextmanager
def temporary_path(path: Path) -> Iterator[Path]:
    """Inside the block a file or folder may be created at `path`; what is still there at its end is deleted."""
    name = _add(path)
    try:
        yield path
    finally:
        _remove_and_forget(name)


@contextmanager
def delete_if_stopped(path: Path) -> Iterator[Path]:
    """Delete the folder `path` if Ctrl-C or a signal ends the block; otherwise keep it."""
    name = _add(path)
    try:
        yield path
    except (KeyboardInterrupt, SystemExit):
        remove(name)
        raise
    finally:
        _forget(name)


class TemporaryFolder(AbstractContextManager[Path]):
    """A new folder in the system's temporary folder, deleted at the end of a `with` block, or with the object."""

    def __init__(self) -> None:
        self.path = Path(tempfile.gettempdir()) / f"headway-{secrets.token_hex(6)}"
        self._delete = weakref.finalize(self, _remove_and_forget, _add(self.path))
        self.path.mkdir(mode=0o700)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *exception: object) -> None:
        self._delete()


def remove_all(*, for_good: bool = False) -> None:
    """Delete all temporary files. With `for_good`, threads can create no more of them before the process ends."""
    if for_good:
        _is_closed.set()
    for name in list(_paths):
        remove(name)


def remove(name: str) -> None:
    """Delete a file or folder, if it is there."""
    if os.path.isdir(name) and not os.path.islink(name):
        shutil.rmtree(name, ignore_errors=True)
    else:
        with suppress(OSError):
            os.unlink(name)


def listen(listener: Listener) -> None:
    """Call `listener` whenever a path is added or removed."""
    _listeners.append(listener)


def _add(path: Path) -> str:
    if _is_closed.is_set():  # a thread that goes on while the process ends
        threading.Event().wait()
    name = os.path.abspath(path)
    _paths.add(name)
    _tell(name, True)
    return name


def _forget(name: str) -> None:
    _paths.discard(name)
    _tell(name, False)


def _remove_and_forget(name: str) -> None:
    remove(name)
    _forget(name)


def _tell(name: str, is_added: bool) -> None:
    for listener in _listeners:
        listener(name, is_added)


def _forget_all() -> None:
    """In a forked process: the temporary files are those of its parent."""
    _paths.clear()
    _listeners.clear()
    _is_closed.clear()


os.register_at_fork(after_in_child=_forget_all)

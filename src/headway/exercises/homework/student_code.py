"""Run a student's file: import it, and bound what its code can do to the check.

What it prints goes to stderr, what it raises becomes a `StudentError` with the line of the file, and code that runs too
long is stopped. Lower parts can be exchanged for those of the reference.
"""

import contextlib
import importlib.machinery
import importlib.util
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, ModuleType

from headway.errors import DataError
from headway.exercises.homework.parts import REFERENCE, Namespace, StudentError

IMPORT_SECONDS = 30.0


class UncachedLoader(importlib.machinery.SourceFileLoader):
    """Compiles the file as it is now. Python takes a cached .pyc for current if its source has the same size and was
    changed in the same second, as after a quick edit."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


@contextlib.contextmanager
def imported_file(file: Path) -> Iterator[ModuleType]:
    """The student's module, with its folder on the path, for as long as it is needed."""
    name = "headway_homework"
    spec = importlib.util.spec_from_file_location(name, file, loader=UncachedLoader(name, str(file)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(file.resolve().parent)
    sys.modules[name] = module
    sys.path.insert(0, folder)
    try:
        try:
            with guarded(file, Timer(IMPORT_SECONDS)):
                spec.loader.exec_module(module)
        except StudentError as error:
            raise DataError(f"{file} cannot be imported: {error.result['message']}") from None
        yield module
    finally:
        sys.path.remove(folder)
        sys.modules.pop(name, None)


@dataclass
class Timer:
    """How long the student's code may run, and how long it has."""

    seconds: float
    used: float = 0.0

    @property
    def is_over(self) -> bool:
        return self.used >= self.seconds


@contextlib.contextmanager
def guarded(file: Path, timer: Timer) -> Iterator[None]:
    """Run the student's code: what it prints goes to stderr, what it raises becomes a `StudentError`."""
    try:
        with contextlib.redirect_stdout(sys.stderr), _time_limit(timer):
            yield
    except (KeyboardInterrupt, StudentError):
        raise
    except NotImplementedError as error:
        line = _line(error, file)
        where = "" if line is None else f"{file.name}, line {line}"
        message = ": ".join(filter(None, [where, str(error)]))
        raise StudentError(status="not done yet", message=message, line=line) from None
    except BaseException as error:  # SystemExit too: it is the student's
        line = _line(error, file)
        where = "" if line is None else f"{file.name}, line {line}: "
        text = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())
        source = _source(error, file)
        message = f"{where}{type(error).__name__}: {text}" + (f"\n    {source}" if source else "")
        raise StudentError(status="crashed", message=message, line=line) from None


@contextlib.contextmanager
def _time_limit(timer: Timer) -> Iterator[None]:
    """Raise `TimeoutError` in the block when the time is over: in the main thread of a system with SIGALRM only."""
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    class TimeOver(BaseException):
        """One that `except Exception` lets through."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeOver

    before = signal.signal(signal.SIGALRM, stop)
    start = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, max(timer.seconds - timer.used, 1e-3))
    try:
        yield
    except TimeOver as error:
        message = f"it takes more than {timer.seconds:.3g} seconds"
        raise TimeoutError(message).with_traceback(error.__traceback__) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        timer.used += time.monotonic() - start


def _frames(error: BaseException, file: Path) -> list[traceback.FrameSummary]:
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if Path(frame.filename).resolve() == file.resolve()]


def _line(error: BaseException, file: Path) -> int | None:
    """The last line of the student's file that an exception passed through."""
    if isinstance(error, SyntaxError):
        return error.lineno
    frames = _frames(error, file)
    return frames[-1].lineno if frames else None


def _source(error: BaseException, file: Path) -> str:
    if isinstance(error, SyntaxError):
        return (error.text or "").strip()
    frames = _frames(error, file)
    return (frames[-1].line or "") if frames else ""


@contextlib.contextmanager
def patched(module: ModuleType, names: tuple[str, ...]) -> Iterator[Namespace]:
    """The student's names, with these taken from the reference."""
    before = {name: vars(module)[name] for name in names if name in vars(module)}
    vars(module).update({name: REFERENCE[name] for name in before})
    try:
        yield vars(module)
    finally:
        vars(module).update(before)

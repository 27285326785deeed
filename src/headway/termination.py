"""Signals that ask a command to end: SIGTERM, SIGHUP and Ctrl-C (SIGINT).

SIGTERM and SIGHUP raise SystemExit, Ctrl-C raises KeyboardInterrupt, so that a command unwinds and cleans up after
itself. Python raises them between two bytecodes, though, and a call into native code (a tokenizer, a sort, a large
matrix product) may last minutes. Therefore a command has a deadline, which a watchdog process enforces
(watchdog.py):

    signal ──► C handler of Python ──► pipe ──► watchdog
                                                  1.0 s later: asks a thread of the command to end it, with the exit
                                                               code of the signal
                                                  1.6 s later: kills the command: native code holds the GIL, and that
                                                               thread waits for it too

Both delete the temporary files first. While a model trains, `hold` lifts the deadline: the current step and its
checkpoint take as long as they need.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from types import FrameType
from typing import Any

from headway import temporary_files
from headway.watchdog import ADD, DELETE, ENDING_SIGNALS, HOLD, RELEASE, become_watchdog

SECONDS_TO_RETURN = 0.01  # from a finalizer

PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>

_is_ending = threading.Event()


@contextmanager
def exit_on_signals(*, has_deadline: bool = False) -> Iterator[None]:
    """Inside the block SIGTERM and SIGHUP raise SystemExit(128 + number). With a deadline they end the process anyway.

    Only default handlers are replaced: under `nohup`, SIGHUP stays ignored.
    """
    is_main = threading.current_thread() is threading.main_thread()
    numbers = [n for n in ENDING_SIGNALS if is_main and signal.getsignal(n) is signal.SIG_DFL]
    _is_ending.clear()
    for number in numbers:
        signal.signal(number, _exit_once)
    try:
        with _deadline() if has_deadline and is_main and hasattr(os, "fork") else nullcontext():
            yield
    finally:
        for number in numbers:
            if signal.getsignal(number) is _exit_once:  # a failing rank ignores SIGTERM until its error is printed
                signal.signal(number, signal.SIG_DFL)


def _exit_once(number: int, frame: FrameType | None) -> None:
    if _WatchdogLink.current is not None and _is_importing(frame):
        _exit_now(128 + number)
    if not _is_ending.is_set():  # a second signal must not interrupt the cleanup
        _is_ending.set()
        raise SystemExit(128 + number)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _is_importing(frame):
        os.write(2, b"interrupted\n")
        _exit_now(128 + number)
    raise KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported. Raising is no use then: a module with an optional import catches the
    exception, and continues with a half-imported module."""
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


@contextmanager
def hold(describe_loss: Callable[[], str] = str) -> Iterator[None]:
    """Lift the deadline inside the block. A second Ctrl-C restores it, and `describe_loss` then says what is lost."""
    watch = _WatchdogLink.current
    if watch is None:
        yield
        return
    previous, watch.describe_loss = watch.describe_loss, describe_loss
    watch.tell(HOLD)
    try:
        yield
    finally:
        watch.describe_loss = previous
        watch.tell(RELEASE)


def end_with_parent() -> Callable[[], object] | None:
    """A `preexec_fn` for subprocess: the system sends the new process SIGTERM when its parent dies (Linux only)."""
    if sys.platform != "linux":
        return None
    import ctypes

    return partial(ctypes.CDLL(None).prctl, PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def _deadline() -> Iterator[None]:
    """Start the watchdog, and the thread that ends this process at its request."""
    watch = _WatchdogLink()
    hook, sys.unraisablehook = sys.unraisablehook, _raise_again
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    except SystemExit as end:
        if isinstance(end.code, int) and end.code > 128:
            _exit_now(end.code)  # also removes files whose removal a signal interrupted
        raise
    finally:
        sys.unraisablehook = hook
        # While the interpreter shuts down, signals end the process at once, without a traceback.
        for number in (signal.SIGINT, *ENDING_SIGNALS):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        watch.close()


def _exit_now(code: int) -> None:
    """End the process after a signal without shutting down the interpreter, which takes long with some libraries."""
    temporary_files.remove_all(for_good=True)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it, or it is closed
            stream.flush()
    os._exit(code)


def _raise_again(problem: Any) -> None:
    """Python drops an exception that a signal raises inside a finalizer or callback: send the signal once more."""
    exception = problem.exc_value
    if isinstance(exception, KeyboardInterrupt):
        number = int(signal.SIGINT)
    elif isinstance(exception, SystemExit) and isinstance(exception.code, int) and exception.code > 128:
        number = exception.code - 128
    else:
        sys.__unraisablehook__(problem)
        return
    _is_ending.clear()
    threading.Timer(SECONDS_TO_RETURN, os.kill, (os.getpid(), number)).start()


class _WatchdogLink:
    """The command's side of the deadline."""

    current: "_WatchdogLink | None" = None

    def __init__(self) -> None:
        self.describe_loss: Callable[[], str] = str
        signals, self._signals = os.pipe()
        notes, self._notes = os.pipe()
        self._alarm, alarm = os.pipe()
        command = os.getpid()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, *ENDING_SIGNALS))
        try:  # a handler that raises inside fork would print a traceback
            if os.fork() == 0:
                become_watchdog(command, signals, notes, alarm)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for end in (signals, notes, alarm):
            os.close(end)
        for end in (self._signals, self._notes):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._signals, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=self._detach)
        temporary_files.listen(lambda name, is_added: self.tell(ADD if is_added else DELETE, name))
        threading.Thread(target=self._wait_for_alarm, daemon=True).start()
        _WatchdogLink.current = self

    def _detach(self) -> None:
        """In a forked process, whose signals are none of the watchdog's business."""
        if _WatchdogLink.current is self:
            _WatchdogLink.current = None
            with suppress(ValueError):  # forked by another thread: the process has no main thread of Python
                signal.set_wakeup_fd(-1)
            for end in (self._signals, self._notes):
                os.close(end)

    def tell(self, kind: int, text: str = "") -> None:
        with suppress(OSError):  # the watchdog was killed: there is no deadline then
            os.write(self._notes, bytes([kind]) + os.fsencode(text) + b"\0")

    def _wait_for_alarm(self) -> None:
        if number := os.read(self._alarm, 1):
            message = self.describe_loss() or ("interrupted" if number[0] == signal.SIGINT else "")
            temporary_files.remove_all(for_good=True)
            if message:
                os.write(2, f"\n{message}\n".encode())
            os._exit(128 + number[0])

    def close(self) -> None:
        _WatchdogLink.current = None

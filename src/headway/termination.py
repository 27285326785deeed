"""Signals that ask a command to end: SIGTERM, SIGHUP and Ctrl-C (SIGINT).

SIGTERM and SIGHUP raise SystemExit, Ctrl-C raises KeyboardInterrupt, so that a command unwinds and cleans up after
itself. Python raises them between two bytecodes, though, and a call into native code (a tokenizer, a sort, a large
matrix product) may last minutes. Therefore a command has a deadline, which a watchdog process enforces:

    signal ──► C handler of Python ──► pipe ──► watchdog
                                                  1.0 s later: asks a thread of the command to end it, with the exit
                                                               code of the signal
                                                  1.6 s later: kills the command: native code holds the GIL, and that
                                                               thread waits for it too

Both delete the temporary files first. While a model trains, `hold` lifts the deadline: the current step and its
checkpoint take as long as they need.
"""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from types import FrameType
from typing import Any

from headway import temporary_files

ENDING_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
SECONDS_TO_UNWIND = 1.0
SECONDS_TO_EXIT = 0.6  # after that, the command is killed
SECONDS_TO_REPORT = 5.0  # after `hold`: what was saved, and how to resume
SECONDS_TO_RETURN = 0.01  # from a finalizer
SECONDS_BETWEEN_INTERRUPTS = 0.5  # two that are closer count as one: torchrun passes Ctrl-C on to ranks that have it

PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>
HOLD, RELEASE, ADD, DELETE = b"HRAD"  # messages of a command to its watchdog

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
                _become_watchdog(command, signals, notes, alarm)
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


# ── the watchdog ──────────────────────────────────────────────────────────────────────────────────────────────────


def _become_watchdog(command: int, signals: int, notes: int, alarm: int) -> None:
    """Turn a forked process into the watchdog of `command`; it ends when the command does."""
    try:
        for number in (signal.SIGINT, *ENDING_SIGNALS):
            signal.signal(number, signal.SIG_IGN)  # a terminal sends them to all processes of a command
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):  # whoever reads the command's output must not wait for this process
            os.dup2(null, standard)
        kept = sorted((signals, notes, alarm))
        for first, last in zip([3, *(fd + 1 for fd in kept)], [*kept, 65536], strict=True):
            os.closerange(first, last)
        _Watchdog(command, signals, notes, alarm).run()
    finally:
        os._exit(0)


class _Watchdog:
    """Reads the signals and messages of the command, and ends it at its deadline."""

    def __init__(self, command: int, signals: int, notes: int, alarm: int) -> None:
        self.command, self.signals, self.notes, self.alarm = command, signals, notes, alarm
        self.paths: set[bytes] = set()
        self.n_holds = 0
        self.number = 0  # the signal that asked the command to end
        self.interrupted_at = -SECONDS_BETWEEN_INTERRUPTS
        self.deadline: float | None = None
        self.is_asked = False
        self._unread = b""

    def run(self) -> None:
        while True:
            timeout = None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
            readable, _, _ = select.select([self.notes, self.signals], [], [], timeout)
            if self.notes in readable and not self._read_notes():
                return  # the command has ended
            if self.signals in readable:
                for number in os.read(self.signals, 4096):
                    self._receive(number)
            if self.deadline is not None and time.monotonic() >= self.deadline:
                self._end()

    def _read_notes(self) -> bool:
        data = os.read(self.notes, 1 << 16)
        *notes, self._unread = (self._unread + data).split(b"\0")
        for note in notes:
            kind, text = note[0], note[1:]
            if kind == ADD:
                self.paths.add(text)
            elif kind == DELETE:
                self.paths.discard(text)
            else:
                if kind == HOLD and not self.n_holds:
                    self.number = 0  # a signal that came before has nothing to do with this training
                self.n_holds += 1 if kind == HOLD else -1
                if self.n_holds and not self.is_asked:
                    self.deadline = None
                elif self.number:
                    self._start(SECONDS_TO_REPORT)
        return bool(data)

    def _receive(self, number: int) -> None:
        if number not in (signal.SIGINT, *ENDING_SIGNALS):
            return
        now, is_again = time.monotonic(), False
        if number == signal.SIGINT:
            is_again = bool(self.number) and now - self.interrupted_at > SECONDS_BETWEEN_INTERRUPTS
            self.interrupted_at = now
        self.number = self.number or number
        if not self.n_holds or is_again:
            self._start(SECONDS_TO_UNWIND)

    def _start(self, seconds: float) -> None:
        if self.deadline is None:
            self.deadline = time.monotonic() + seconds

    def _end(self) -> None:
        if not self.is_asked:
            self.is_asked = True
            self.deadline = time.monotonic() + SECONDS_TO_EXIT
            os.write(self.alarm, bytes([self.number]))
            return
        os.kill(self.command, signal.SIGSTOP)  # it holds its locks until its files are gone
        for path in self.paths:
            temporary_files.remove(os.fsdecode(path))
        os.kill(self.command, signal.SIGKILL)
        os._exit(0)

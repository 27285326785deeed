"""The watchdog: a small process that ends a command which does not end by itself after a signal (termination.py).

It learns from two pipes which signals the command gets and what the command tells it: its temporary files, and when the
deadline is lifted. A process of its own can act while native code in the command holds the GIL.
"""

import os
import select
import signal
import time

from headway import temporary_files

ENDING_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
SECONDS_TO_UNWIND = 1.0
SECONDS_TO_EXIT = 0.6  # after that, the command is killed
SECONDS_TO_REPORT = 5.0  # after `hold`: what was saved, and how to resume
SECONDS_BETWEEN_INTERRUPTS = 0.5  # two that are closer count as one: torchrun passes Ctrl-C on to ranks that have it

HOLD, RELEASE, ADD, DELETE = b"HRAD"  # messages of a command to its watchdog


def become_watchdog(command: int, signals: int, notes: int, alarm: int) -> None:
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

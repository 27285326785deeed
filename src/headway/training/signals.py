"""Stop requests: Ctrl-C, SIGTERM and `StopTraining` end a run after the current step instead of in the middle of it."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class StopTraining(Exception):  # noqa: N818 (a request, not an error)
    """Raise it in `on_step` to end the run after this step, saved as after Ctrl-C; it can be resumed."""


class StopRequest(threading.Event):
    """Set when the user asks to stop.

    Set `ignores_sigterm` if this process is about to exit with an error message of its own: torchrun sends SIGTERM to
    the surviving ranks, which would cut the message off.
    """

    ignores_sigterm = False


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Inside the block Ctrl-C or SIGTERM sets the event; a second one raises KeyboardInterrupt."""
    stop = StopRequest()

    def on_signal(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may install signal handlers
        return
    handlers = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in handlers.items():
            is_ignored = stop.ignores_sigterm and number == signal.SIGTERM
            signal.signal(number, signal.SIG_IGN if is_ignored else handler)

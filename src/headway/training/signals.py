"""Stop requests: Ctrl-C, SIGTERM, SIGHUP and `StopTraining` end a run after the current step, not within
it."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from headway.termination import hold
from headway.watchdog import ENDING_SIGNALS, SECONDS_BETWEEN_INTERRUPTS

STOP_MESSAGE = "stopping    after this step and its checkpoint; Ctrl-C again stops at once"


class StopTraining(Exception):  # noqa: N818 (a request, not an error)
    """Raise it in `on_step` to end the run after this step, saved as after Ctrl-C; it can be resumed."""


class ValidationStopped(Exception):  # noqa: N818 (a request, not an error)
    """A stop request came during a validation, which is repeated when the run is resumed."""


class StopRequest(threading.Event):
    """Set when the user asks to stop.

    Set `ignores_sigterm` if this process is about to exit with an error message of its own: torchrun sends SIGTERM to
    the surviving ranks, which would cut the message off.
    """

    ignores_sigterm = False


@contextmanager
def stop_request(
    on_message: Callable[[str], None] = lambda line: None, *, describe_loss: Callable[[], str] = str
) -> Iterator[StopRequest]:
    """Inside the block Ctrl-C, SIGTERM or SIGHUP sets the event, and there is no deadline (headway/termination.py).

    A second Ctrl-C raises KeyboardInterrupt with the message of `describe_loss`. A second SIGTERM or SIGHUP changes
    nothing: a terminal that closes and a service manager send several. Signals that are ignored stay so (`nohup`).
    """
    stop = StopRequest()
    interrupted_at = -SECONDS_BETWEEN_INTERRUPTS

    def on_signal(number: int, frame: object) -> None:
        nonlocal interrupted_at
        now, is_repeated = time.monotonic(), stop.is_set()
        if number == signal.SIGINT:
            is_again = is_repeated and now - interrupted_at > SECONDS_BETWEEN_INTERRUPTS
            interrupted_at = now
            if is_again:
                raise KeyboardInterrupt(describe_loss())
        stop.set()
        if not is_repeated:
            with suppress(RuntimeError):  # the signal came while a line was being printed
                on_message(STOP_MESSAGE)

    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may install signal handlers
        return
    numbers = [n for n in (signal.SIGINT, *ENDING_SIGNALS) if signal.getsignal(n) not in (signal.SIG_IGN, None)]
    with hold(describe_loss):
        handlers = {number: signal.signal(number, on_signal) for number in numbers}
        try:
            yield stop
        finally:
            for number, handler in handlers.items():
                is_ignored = stop.ignores_sigterm and number == signal.SIGTERM
                signal.signal(number, signal.SIG_IGN if is_ignored else handler)

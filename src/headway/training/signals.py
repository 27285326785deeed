"""How a run comes to end before its time: someone asks it to, or another rank is gone."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class StopRequest(threading.Event):
    """Set when someone asks to stop. With `is_last_word` this process is ending anyway, with something to say: the
    SIGTERM that torchrun sends to whoever is left would cut it off, and is then not listened to."""

    is_last_word = False


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Ctrl-C or SIGTERM sets the event instead of tearing a step apart; a second Ctrl-C does interrupt."""
    stop = StopRequest()

    def ask(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield stop  # signals are the main thread's business
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            is_ignored = stop.is_last_word and number == signal.SIGTERM
            signal.signal(number, signal.SIG_IGN if is_ignored else handler)


def is_lost_contact(error: Exception) -> bool:
    """Whether this is what a rank sees when another has ended."""
    text = str(error).lower()
    known = ("connection closed", "connection reset", "connection refused", "gloo", "nccl", "broken pipe")
    return isinstance(error, RuntimeError) and any(sign in text for sign in known)

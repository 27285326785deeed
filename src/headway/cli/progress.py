"""Progress by the number of texts: one line that updates in a terminal, a new line every few seconds elsewhere."""

import sys
import time
from contextlib import AbstractContextManager

from headway.display import CLEAR_LINE, SECONDS_BETWEEN_LINES, SECONDS_BETWEEN_UPDATES, print_status


class CountDisplay(AbstractContextManager["CountDisplay"]):
    """Shows "120 of 1,000 texts  35 per second" on stderr. Work that ends within a few seconds shows nothing."""

    def __init__(self, noun: str, total: int) -> None:
        self._noun, self._total = noun, total
        self._start = self._last_update = time.monotonic()
        self._is_terminal = sys.stderr.isatty()
        self._is_shown = False

    def update(self, done: int) -> None:
        now = time.monotonic()
        if now - self._last_update < (SECONDS_BETWEEN_UPDATES if self._is_terminal else SECONDS_BETWEEN_LINES):
            return
        self._last_update = now
        line = f"{done:,} of {self._total:,} {self._noun}  {done / (now - self._start):,.1f} per second"
        if self._is_terminal:
            print(f"{CLEAR_LINE}{line}", end="", file=sys.stderr, flush=True)
            self._is_shown = True
        else:
            print_status(line)

    def __exit__(self, *exception: object) -> None:
        if self._is_shown:
            print(CLEAR_LINE, end="", file=sys.stderr, flush=True)

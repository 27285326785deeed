"""Progress on stderr: a live bar in a terminal, a plain line every few seconds elsewhere."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.data.token_shards import PrepareProgress
    from headway.training.progress import Progress

SECONDS_BETWEEN_LINES = 5.0
SECONDS_BETWEEN_UPDATES = 0.2  # of a line in a terminal
CLEAR_LINE = "\r\x1b[2K"


def print_status(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class TrainingDisplay(AbstractContextManager["TrainingDisplay"]):
    """Shows a training run; its methods `on_*` are callbacks of `headway.train`."""

    def __init__(self, *, bar: bool = True) -> None:
        self._bar: Any = None
        self._last_line = 0.0
        self._bytes = BytesDisplay()
        if bar and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(BarColumn(bar_width=24), TextColumn("{task.description}"), console=Console(stderr=True))
            self._task = self._bar.add_task("starting", total=1.0)

    def __enter__(self) -> "TrainingDisplay":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def on_prepare(self, progress: "PrepareProgress") -> None:
        """Show the progress of tokenizing the text."""
        self._bytes.show(progress.stage, progress.done, progress.total)

    def on_message(self, line: str) -> None:
        """Print a line, above the bar if there is one."""
        if self._bar is None:
            print_status(line)
        else:
            self._bar.console.print(line, highlight=False)

    def on_step(self, progress: "Progress") -> None:
        """Show a step."""
        line = describe_progress(progress)
        if self._bar is not None:
            self._bar.update(self._task, completed=min(progress.fraction, 1.0), description=line)
        elif progress.step == 1 or progress.fraction >= 1 or self._is_due():
            self._last_line = time.monotonic()
            print_status(line)
        if progress.score is not None:
            self.on_message(f"step {progress.step:>5}  validation: {progress.score.summary}")

    def _is_due(self) -> bool:
        return time.monotonic() - self._last_line > SECONDS_BETWEEN_LINES


class BytesDisplay(AbstractContextManager["BytesDisplay"]):
    """Shows bytes read or encoded: one line that updates in a terminal, a new line every few seconds elsewhere."""

    def __init__(self, stage: str = "reading", total: int | None = None) -> None:
        self._stage, self._total = stage, total
        self.done = 0
        self._start = self._last_update = time.monotonic()
        self._is_shown = False
        self._is_terminal = sys.stderr.isatty()

    def __exit__(self, *exception: object) -> None:
        self.clear()

    def count(self, texts: Iterable[str]) -> Iterator[str]:
        """Pass texts through and count their bytes."""
        for text in texts:
            yield text
            self.add(len(text.encode()))
        self.clear()

    def add(self, n_bytes: int) -> None:
        self.done += n_bytes
        self.show(self._stage, self.done, self._total)

    def show(self, stage: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now - self._last_update < (SECONDS_BETWEEN_UPDATES if self._is_terminal else SECONDS_BETWEEN_LINES):
            return
        self._last_update = now
        of_total = f" of {total / 1e6:,.1f}" if total and total >= done else ""
        speed = done / 1e6 / max(now - self._start, 1e-9)
        line = f"{stage}  {done / 1e6:,.1f}{of_total} MB  {speed:.1f} MB/s"
        if self._is_terminal:
            print(f"{CLEAR_LINE}{line}", end="", file=sys.stderr, flush=True)
            self._is_shown = True
        else:
            print_status(line)

    def clear(self) -> None:
        if self._is_shown:
            print(CLEAR_LINE, end="", file=sys.stderr, flush=True)
            self._is_shown = False


def describe_progress(progress: "Progress") -> str:
    """One line: step, loss, learning rate, gradient norm, throughput, memory and time left."""
    bits_per_byte = "" if progress.bits_per_byte is None else f" ({progress.bits_per_byte:.3f} bits/byte)"
    mfu = "" if progress.mfu is None else f"  MFU {progress.mfu:.1%}"
    time_left = "" if progress.fraction >= 1 else f"  {format_duration(progress.seconds_left)} left"
    return (
        f"step {progress.step:>5}  loss {progress.loss:.3f}{bits_per_byte}  lr {progress.lr:.1e}  "
        f"norm {progress.grad_norm:.2f}  {progress.tokens_per_second:,.0f} tokens/s{mfu}  "
        f"{progress.memory / 2**30:.1f} GiB{time_left}"
    )


def format_duration(seconds: float) -> str:
    """1:05 or 2:00:03; ? if infinite."""
    if seconds == float("inf"):
        return "?"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"

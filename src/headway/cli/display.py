"""Training as it goes, on stderr: a live bar in a terminal, a plain line now and then elsewhere."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.data.token_shards import PrepareProgress as Preparing
    from headway.training.trainer import Progress

SECONDS_BETWEEN_LINES = 5.0


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class TrainingDisplay(AbstractContextManager["TrainingDisplay"]):
    def __init__(self, *, bar: bool = True) -> None:
        self.bar: Any = None
        self.last = 0.0
        self.bytes = ReadingDisplay()
        if bar and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            self.bar = Bar(BarColumn(bar_width=24), TextColumn("{task.description}"), console=Console(stderr=True))
            self.task = self.bar.add_task("starting", total=1.0)

    def __enter__(self) -> "TrainingDisplay":
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def preparing(self, progress: "Preparing") -> None:
        """Show text becoming tokens, where that takes a while."""
        self.bytes.show(progress.stage, progress.done, progress.total)

    def say(self, line: str) -> None:
        """A line above the bar."""
        self.bar.console.print(line, highlight=False) if self.bar is not None else say(line)

    def report(self, progress: "Progress") -> None:
        """Show a step."""
        line = describe(progress)
        if self.bar is not None:
            self.bar.update(self.task, completed=min(progress.share, 1.0), description=line)
        elif progress.step == 1 or progress.share >= 1 or time.monotonic() - self.last > SECONDS_BETWEEN_LINES:
            self.last = time.monotonic()
            say(line)
        if progress.score is not None:
            text = f"step {progress.step:>5}  held out: {progress.score.summary}"
            self.say(text)


class ReadingDisplay(AbstractContextManager["ReadingDisplay"]):
    """Bytes read or encoded: one line that is written over in a terminal, a line now and then elsewhere."""

    def __init__(self, stage: str = "reading", total: int | None = None) -> None:
        self.sampler, self.total = stage, total
        self.done = 0
        self.started = self.last = time.monotonic()
        self.is_shown = False
        self.is_terminal = sys.stderr.isatty()

    def __exit__(self, *exception: object) -> None:
        self.clear()

    def count(self, texts: Iterable[str]) -> Iterator[str]:
        """The same texts, counted as they pass."""
        for text in texts:
            yield text
            self.add(len(text.encode()))
        self.clear()

    def add(self, n_bytes: int) -> None:
        self.done += n_bytes
        self.show(self.sampler, self.done, self.total)

    def show(self, stage: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now - self.last < (0.2 if self.is_terminal else SECONDS_BETWEEN_LINES):
            return
        self.last = now
        of = f" of {total / 1e6:,.1f}" if total and total >= done else ""
        line = f"{stage}  {done / 1e6:,.1f}{of} MB  {done / 1e6 / max(now - self.started, 1e-9):.1f} MB/s"
        if self.is_terminal:
            print(f"\r\x1b[2K{line}", end="", file=sys.stderr, flush=True)
            self.is_shown = True
        else:
            say(line)

    def clear(self) -> None:
        if self.is_shown:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
            self.is_shown = False


def describe(progress: "Progress") -> str:
    per_byte = "" if progress.bits_per_byte is None else f" ({progress.bits_per_byte:.3f} bits/byte)"
    mfu = "" if progress.mfu is None else f"  MFU {progress.mfu:.1%}"
    left = "" if progress.share >= 1 else f"  {clock(progress.seconds_left)} left"
    return (
        f"step {progress.step:>5}  loss {progress.loss:.3f}{per_byte}  lr {progress.lr:.1e}  "
        f"norm {progress.grad_norm:.2f}  {progress.tokens_per_second:,.0f} tokens/s{mfu}  "
        f"{progress.memory / 2**30:.1f} GiB{left}"
    )


def clock(seconds: float) -> str:
    if seconds == float("inf"):
        return "?"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"

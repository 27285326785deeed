"""Training as it goes, on stderr: a live bar in a terminal, a plain line now and then elsewhere."""

import sys
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.training import Progress

SECONDS_BETWEEN_LINES = 5.0


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class TrainingDisplay(AbstractContextManager["TrainingDisplay"]):
    def __init__(self) -> None:
        self.bar: Any = None
        self.last = 0.0
        if sys.stderr.isatty():
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

    def report(self, progress: "Progress") -> None:
        """Show a step."""
        line = describe(progress)
        if self.bar is not None:
            self.bar.update(self.task, completed=min(progress.share, 1.0), description=line)
        elif progress.step == 1 or progress.share >= 1 or time.monotonic() - self.last > SECONDS_BETWEEN_LINES:
            self.last = time.monotonic()
            say(line)
        if progress.score is not None:
            text = f"step {progress.step}: held-out {progress.score.bits_per_byte:.4f} bits per byte"
            self.bar.console.print(text, highlight=False) if self.bar is not None else say(text)


def describe(progress: "Progress") -> str:
    left = "" if progress.share >= 1 else f"  {clock(progress.seconds_left)} left"
    return (
        f"step {progress.step:>5}  loss {progress.loss:.3f}  lr {progress.lr:.1e}  "
        f"{progress.tokens_per_second:,.0f} tokens/s{left}"
    )


def clock(seconds: float) -> str:
    if seconds == float("inf"):
        return "?"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"

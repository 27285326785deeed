"""Progress on stderr: a live bar in a terminal or notebook, a plain line every few seconds elsewhere."""

import math
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.data.token_shards import PrepareProgress
    from headway.training.progress import Progress

SECONDS_BETWEEN_LINES = 5.0
SECONDS_BETWEEN_UPDATES = 0.2  # of a line in a terminal
CLEAR_LINE = "\r\x1b[2K"
PLAIN_WIDTH = 120  # columns of a line that does not go to a terminal
BAR_WIDTHS = {120: 20, 96: 12}  # columns of the bar, by the least width of the terminal; narrower ones have none


def print_status(line: str) -> None:
    """Print a line to stderr. If nobody reads it any more (`… 2>&1 | head`), it is lost and the work goes on."""
    try:
        print(line, file=sys.stderr, flush=True)
    except BrokenPipeError:
        turn_off_stderr()


def turn_off_stderr() -> None:
    """Discard what is still written to stderr, also what Python writes when it exits."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stderr.fileno())
    os.close(null)


def can_update_lines() -> bool:
    """Whether a bar can be drawn on stderr: in a terminal, or in a notebook that has ipywidgets."""
    return sys.stderr.isatty() or ("ipykernel" in sys.modules and find_spec("ipywidgets") is not None)


class TrainingDisplay(AbstractContextManager["TrainingDisplay"]):
    """Shows a training run; its methods `on_*` are callbacks of `headway.train`."""

    def __init__(self, *, bar: bool = True) -> None:
        self._bar: Any = None
        self._last_line = 0.0
        self._bytes = BytesDisplay()
        if bar and can_update_lines():
            from rich.console import Console
            from rich.progress import Progress as Bar
            from rich.progress import TextColumn

            class QuietConsole(Console):
                """Goes quiet if nobody reads it any more, where rich would end the program."""

                def on_broken_pipe(self) -> None:
                    self.quiet = True
                    turn_off_stderr()

            self._bar = Bar(TextColumn("{task.description}", markup=False), console=QuietConsole(stderr=True))
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
            self._bar.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def on_step(self, progress: "Progress") -> None:
        """Show a step."""
        if self._bar is not None:
            line = live_line(progress, self._bar.console.width)
            self._bar.update(self._task, completed=min(progress.fraction, 1.0), description=line)
        elif progress.step == 1 or progress.fraction >= 1 or self._is_due():
            self._last_line = time.monotonic()
            print_status(describe_progress(progress, shutil.get_terminal_size((PLAIN_WIDTH, 1)).columns))
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


def live_line(progress: "Progress", width: int) -> str:
    """A bar, if the terminal is wide enough for one, and as much about the step as fits beside it."""
    bar = next((bar for least, bar in BAR_WIDTHS.items() if width >= least), 0)
    n_done = min(bar, int(bar * progress.fraction))
    text = describe_progress(progress, width - bar - 1 if bar else width)
    return f"{'━' * n_done}{'─' * (bar - n_done)} {text}" if bar else text


def describe_progress(progress: "Progress", width: int = PLAIN_WIDTH) -> str:
    """One line of at most `width` columns: the time left, then as much as fits of the rest, in order of importance."""
    is_ended_by_clock = progress.fraction > progress.step / progress.steps
    step = f"{progress.step:>{len(str(progress.steps))}}/{progress.steps}" if not is_ended_by_clock else progress.step
    loss = "no loss yet" if math.isnan(progress.loss) else f"avg loss {progress.loss:.3f}"  # over about 20 steps
    parts = [
        f"{format_duration(0 if progress.fraction >= 1 else progress.seconds_left)} left",
        f"step {step}",
        loss if progress.bits_per_byte is None else f"{loss} ({progress.bits_per_byte:.3f} bits/byte)",
        f"{progress.tokens_per_second:,.0f} tokens/s",
        f"lr {progress.lr:.1e}",
        f"norm {progress.grad_norm:.2f}",
        *([] if progress.mfu is None else [f"MFU {progress.mfu:.1%}"]),
        f"{progress.memory / 2**30:.1f} GiB",
    ]
    line = parts[0]
    for part in parts[1:]:
        if len(line) + 2 + len(part) > width:
            break
        line += f"  {part}"
    return line


def format_duration(seconds: float) -> str:
    """1:05 or 2:00:03; ? if infinite."""
    if seconds == float("inf"):
        return "?"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"

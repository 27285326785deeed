"""Who is told how a run gets on: your callbacks or, without any, the display on stderr."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headway.data.token_shards import OnPrepare
from headway.models import Model
from headway.training.progress import OnMessage, OnStep

OnModelReady = Callable[[Model], None]


def ignore(_: object) -> None:
    """A callback that does nothing."""


@dataclass(frozen=True)
class Callbacks:
    on_step: OnStep = ignore
    on_message: OnMessage = ignore
    on_prepare: OnPrepare = ignore
    on_model_ready: OnModelReady = ignore


@contextmanager
def progress_callbacks(
    quiet: bool, on_step: OnStep | None, on_message: OnMessage | None, on_prepare: OnPrepare | None = None
) -> Iterator[Callbacks]:
    """The callbacks of a call. If you pass none of your own, and the call is not quiet, they show the progress."""
    if quiet or on_step or on_message or on_prepare:
        yield Callbacks(on_step or ignore, on_message or ignore, on_prepare or ignore)
        return
    from headway.display import TrainingDisplay

    with TrainingDisplay() as display:
        yield Callbacks(display.on_step, display.on_message, display.on_prepare)

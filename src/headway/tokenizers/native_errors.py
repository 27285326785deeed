"""Turn errors of Rust libraries into Headway errors.

`tokenizers` raises plain `Exception`. On unforeseen values it panics, which Python sees as `PanicException`. That
is a `BaseException`, so `except Exception` would let it through, and the command would end in a traceback.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from headway.errors import HeadwayError, InputError


def is_panic(error: BaseException) -> bool:
    """Whether an exception is a panic in Rust; each extension module has a class of its own for them."""
    return type(error).__name__ == "PanicException"


@contextmanager
def native_errors(action: str, *, error: type[HeadwayError] = InputError) -> Iterator[None]:
    """Raise errors of a Rust library as `error`, "`action` failed: …". Errors of Python code called by it pass."""
    try:
        yield
    except BaseException as problem:
        if type(problem) is not Exception and not is_panic(problem):
            raise
        raise error(f"{action} failed: {_first_line(problem)}") from None


def _first_line(problem: BaseException) -> str:
    message = str(problem).strip().partition("\n")[0]
    if "retry-limit-in-match" in message:
        return "a regular expression of this tokenizer takes too many steps on this text; use another tokenizer"
    return message or type(problem).__name__

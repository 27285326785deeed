"""A process that is killed, played within this one: from some file operation on, none happens any more."""

import builtins
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

OPERATIONS = ("open", "mkdir", "rename", "replace", "unlink", "rmdir", "fsync", "chmod", "ftruncate", "write")


class Killed(BaseException):
    """No `except Exception` and no clean-up survives it: every later operation raises it again."""


@contextmanager
def killed_after(n_operations: int) -> Iterator[None]:
    """Inside the block, file operations work `n_operations` times; then all of them raise `Killed`. A write that is
    killed has written half. The block ends without an error either way."""
    n_left = n_operations

    def count_down(original: Any, name: str) -> Any:
        def operation(*arguments: Any, **options: Any) -> Any:
            nonlocal n_left
            n_left -= 1
            if n_left == -1 and name == "write":
                handle, data = arguments
                original(handle, data[: len(data) // 2])
            if n_left < 0:
                raise Killed
            if name == "fsync":  # slow, and without a power cut of no effect
                return None
            return original(*arguments, **options)

        return operation

    patches = [patch.object(os, name, count_down(getattr(os, name), name)) for name in OPERATIONS]
    patches += [patch.object(module, "open", count_down(open, "open")) for module in (builtins, io)]
    try:
        for each in patches:
            each.start()
        yield
    except Killed:
        pass
    finally:
        for each in patches:
            each.stop()

"""The exception tree.

    HeadwayError (ValueError)      a message that names the value, the rule and the way out
    ├── ConfigError                a setting: unknown key, wrong type, value out of range        (exit 2)
    ├── InputError                 an argument: shapes, token ids, prompts, sequence lengths     (exit 1)
    ├── DataError                  the user's data: missing, empty, not UTF-8                    (exit 1)
    └── CheckpointError            files on disk: unreadable, truncated, not a model             (exit 1)

`assert` is for internal invariants; users never see one fail.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class HeadwayError(ValueError):
    """Base of all errors the caller can fix; `exit_code` is the exit status of the command line."""

    exit_code = 1


class ConfigError(HeadwayError):
    exit_code = 2


class InputError(HeadwayError):
    pass


class DataError(HeadwayError):
    pass


class CheckpointError(HeadwayError):
    pass


def suggest(wrong: str, names: Iterable[str], *, otherwise: str = "") -> str:
    """ " Did you mean 'top_p'?" when a name is close to `wrong`; else `otherwise`."""
    close = get_close_matches(wrong, list(names), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else otherwise

"""The exception tree.

    HeadwayError (ValueError)      a message that names the value, the rule and the way out
    ├── ConfigError                a setting: unknown key, wrong type, value out of range        (exit 2)
    ├── InputError                 an argument: shapes, token ids, prompts, sequence lengths     (exit 1)
    ├── DataError                  the user's data: missing, empty, not UTF-8                    (exit 1)
    └── CheckpointError            files on disk: unreadable, truncated, not a model             (exit 1)
        └── DiskError              the disk is full, or fails                                    (exit 1)

`assert` is for internal invariants; users never see one fail.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches


class HeadwayError(ValueError):
    """Base of all errors the caller can fix; `exit_code` is the exit status of the command line."""

    exit_code = 1


class ConfigError(HeadwayError):
    """`setting` is the key of the wrong value, if one value alone is wrong: "train.steps"."""

    exit_code = 2

    def __init__(self, message: str, *, setting: str = ""):
        super().__init__(message)
        self.setting = setting


class InputError(HeadwayError):
    pass


class DataError(HeadwayError):
    pass


class CheckpointError(HeadwayError):
    pass


class DiskError(CheckpointError, OSError):
    """Also an OSError, with its `errno` and `filename`."""

    def __str__(self) -> str:
        return str(self.args[0])  # that of an OSError shows its number


def suggest(wrong: str, names: Iterable[str], *, otherwise: str = "") -> str:
    """ " Did you mean 'top_p'?" when a name is close to `wrong`; else `otherwise`."""
    by_lower_case = {name.lower(): name for name in names}
    close = get_close_matches(wrong.lower(), list(by_lower_case), n=1, cutoff=0.6)
    return f" Did you mean {by_lower_case[close[0]]!r}?" if close else otherwise


def count(n: int, noun: str) -> str:
    """ "1 byte", "2,048 bytes": a number with its noun in the singular or the plural."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def with_article(name: str) -> str:
    """ "a GPT", "an LSTM", "an n-gram": the article follows the sound of the name, which may be spelled out."""
    is_vowel = re.match(r"[aeioAEIO8]|[FHLMNRSX](?=[A-Z-])|n-?gram|[fhlmnrsx][^aeiouy]*$", name)
    return f"{'an' if is_vowel else 'a'} {name}"


def install_command(extra: str) -> str:
    """The command that installs an extra, as Headway itself was installed: from a checkout or from an index.

    >>> install_command("plots")
    "pip install 'headway[plots]'"
    """
    import json
    from importlib import metadata
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    try:
        origin = json.loads(metadata.distribution("headway").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        origin = {}
    if not origin.get("dir_info", {}).get("editable"):
        return f"pip install 'headway[{extra}]'"
    checkout = unquote(urlsplit(origin["url"]).path)
    return f"pip install -e '{'.' if Path.cwd() == Path(checkout) else checkout}[{extra}]'"

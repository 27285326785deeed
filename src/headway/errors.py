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
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher, get_close_matches


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
    """ " Did you mean 'top_p'?" when names are close to `wrong`; else `otherwise`."""
    return did_you_mean(nearest(wrong, names)) or otherwise


def nearest(wrong: str, names: Iterable[str]) -> list[str]:
    """At most three names that `wrong` may stand for: the nearest one, one that `wrong` extends ("gpt2" of
    "gpt2-small"), and those about as near as the nearest."""
    by_lower_case, wrong = {name.lower(): name for name in names}, wrong.lower()

    def nearness(name: str) -> float:  # from 0 to 1; raised for equal first letters, which few mistype (Winkler 1990)
        ratio = SequenceMatcher(None, name, wrong).ratio()
        n_equal = next((i for i in range(4) if name[i : i + 1] != wrong[i : i + 1]), 4)
        return ratio + (1 - ratio) * 0.1 * n_equal

    if wrong in by_lower_case:
        return [by_lower_case[wrong]]
    close = sorted(get_close_matches(wrong, list(by_lower_case), n=8, cutoff=0.6), key=nearness, reverse=True)
    close = [name for name in close if nearness(name) > nearness(close[0]) - 0.05]
    extended = [name for name in by_lower_case if name and wrong.startswith((f"{name}-", f"{name}_"))]
    return [by_lower_case[name] for name in dict.fromkeys([*close[:1], *extended, *close])][:3]


def did_you_mean(names: Sequence[str]) -> str:
    """ " Did you mean 'top_p' or 'top_k'?"; empty without names."""
    return f" Did you mean {alternatives([repr(name) for name in names])}?" if names else ""


def alternatives(names: Sequence[str]) -> str:
    """ "a", "a or b", "a, b or c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def index_error(noun: str, index: int, n: int) -> InputError:
    """The error about layer or head `index` of a model that has `n`, counted from 0; it names the nearest."""
    if n == 1:
        return InputError(f"{noun} {index} does not exist: the only one is {noun} 0")
    meant = f"0 (the first) or {n - 1} (the last)" if index < 0 else f"{n - 1} (the last)"
    return InputError(f"{noun} {index} does not exist: choose 0 to {n - 1}. Did you mean {meant}?")


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

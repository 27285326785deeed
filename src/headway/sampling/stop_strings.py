"""Stop strings: where a text ends, and how much of an unfinished one may be shown."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headway.errors import ConfigError


class StopMatch(NamedTuple):
    start: int
    end: int
    stop: str


def check_stop_strings(stops: Iterable[str] | None) -> list[str]:
    stops = stops if isinstance(stops, str) else list(stops or ())
    if isinstance(stops, str) or not all(isinstance(stop, str) for stop in stops):
        raise ConfigError(f"stop={stops!r}: a list of strings, such as ['\\n\\n', 'END']")
    if "" in stops:
        raise ConfigError("stop has an empty string, which every text contains: leave it out")
    return stops


def find_stop(text: str, stops: Iterable[str], *, after: int = 0) -> StopMatch | None:
    """The occurrence that ends first, and of those the one that starts first: what a reader finds going letter by
    letter, however the text was cut into tokens. Those that end within the first `after` characters do not count.

    >>> find_stop("one two three", ["three", "two"])
    Stop(start=4, end=7, stop='two')
    """
    found = []
    for stop in check_stop_strings(stops):
        start = text.find(stop, max(0, after - len(stop) + 1))
        if start >= 0:
            found.append(StopMatch(start, start + len(stop), stop))
    return min(found, key=lambda match: (match.end, match.start), default=None)


def safe_length(text: str, stops: Iterable[str]) -> int:
    """How many characters may be shown: none of a stop, nor of what may become one.

    >>> safe_length("the EN", ["END"])
    4
    """
    stops = check_stop_strings(stops)
    match = find_stop(text, stops)
    if match is not None:
        return match.start
    return len(text) - partial_stop_length(text, stops)


def partial_stop_length(text: str, stops: Sequence[str]) -> int:
    """The length of the longest end of the text that a stop may grow from: a proper prefix of one."""
    longest = max(map(len, stops), default=1) - 1
    for n in range(min(longest, len(text)), 0, -1):
        if any(len(stop) > n and stop.startswith(text[-n:]) for stop in stops):
            return n
    return 0

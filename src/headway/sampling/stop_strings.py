"""Stop strings: where a text ends, and how much of an unfinished text may be shown. No torch here."""

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
        raise ConfigError(f"stop={stops!r} must be a list of strings, such as ['\\n\\n', 'END']")
    if "" in stops:
        raise ConfigError("stop contains an empty string, which occurs in every text: remove it")
    return stops


def find_stop(text: str, stops: Iterable[str], *, after: int = 0) -> StopMatch | None:
    """The occurrence that ends first, and of those the one that starts first: what a character-by-character matcher
    finds, however the text was split into tokens. Occurrences that end within the first `after` characters are ignored.

    >>> find_stop("one two three", ["three", "two"])
    StopMatch(start=4, end=7, stop='two')
    """
    matches = []
    for stop in check_stop_strings(stops):
        start = text.find(stop, max(0, after - len(stop) + 1))
        if start >= 0:
            matches.append(StopMatch(start, start + len(stop), stop))
    return min(matches, key=lambda match: (match.end, match.start), default=None)


def safe_length(text: str, stops: Iterable[str]) -> int:
    """The number of characters that may be shown: holds back any suffix that is, or could become, a stop string.

    >>> safe_length("the EN", ["END"])
    4
    """
    stops = check_stop_strings(stops)
    match = find_stop(text, stops)
    if match is not None:
        return match.start
    return len(text) - partial_stop_length(text, stops)


def partial_stop_length(text: str, stops: Sequence[str]) -> int:
    """The length of the longest suffix of the text that is a proper prefix of a stop string."""
    longest = max(map(len, stops), default=1) - 1
    for n in range(min(longest, len(text)), 0, -1):
        if any(len(stop) > n and stop.startswith(text[-n:]) for stop in stops):
            return n
    return 0

"""Compare what a page says with what was printed.

Text is compared line by line, whatever the spaces; blank lines do not count. Numbers may differ by one in their last
printed digit, whole numbers not at all, or by a stated tolerance.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.docs.blocks import Line

ANYTHING = ("…", "...")
NUMBER = re.compile(r"(?<![\w.])[-+−]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d*)?(?:[eE][-+]?\d+)?")
ROUNDING = 1e-9  # of the difference of two numbers


@dataclass(frozen=True)
class Tolerance:
    """How far numbers may be apart, besides the last printed digit."""

    absolute: float = 0.0
    relative: float = 0.0

    @classmethod
    def parse(cls, text: str | None) -> "Tolerance":
        if text is None:
            return cls()
        number = float(text.removesuffix("%"))
        return cls(relative=number / 100) if text.endswith("%") else cls(absolute=number)


EXACT = Tolerance()


class Mismatch(NamedTuple):
    """The first line of a page that differs from what was printed."""

    line: int
    text: str


def compare_output(expected: Sequence[Line], printed: str, tolerance: Tolerance = EXACT) -> Mismatch | None:
    """The first difference, if there is one."""
    got = [line for line in map(_normal, printed.splitlines()) if line]
    wanted = [line for line in expected if line.text.strip()]
    position = 0
    while wanted:
        if wanted[0].text.strip() in ANYTHING:
            wanted = wanted[1:]
            segment = _take_segment(wanted)
            starts: Sequence[int] = range(position, max(position, len(got) - len(segment)) + 1)
            if len(segment) == len(wanted):  # the end of the page's output is the end of what is printed
                starts = starts[-1:] if segment else []
            if not segment:
                return None
        else:
            segment, starts = _take_segment(wanted), [position]
        attempts = [_compare_segment(segment, got[start:], tolerance) for start in starts]
        n_equal = [n for n, _ in attempts]
        best = max(range(len(attempts)), key=n_equal.__getitem__)
        if n_equal[best] < len(segment):
            if len(attempts) > 1 and n_equal[best] == 0:
                return Mismatch(segment[0].number, f"expected {_normal(segment[0].text)!r}, which is not printed")
            return Mismatch(segment[n_equal[best]].number, attempts[best][1])
        position = starts[best] + len(segment)
        wanted = wanted[len(segment) :]
    if position < len(got):
        last = expected[-1].number
        return Mismatch(last, f"{got[position]!r} is printed after this line; write … if the page leaves it out")
    return None


def _take_segment(lines: Sequence[Line]) -> list[Line]:
    """The lines up to the next that stands for any number of lines."""
    n = next((i for i, line in enumerate(lines) if line.text.strip() in ANYTHING), len(lines))
    return list(lines[:n])


def _compare_segment(segment: Sequence[Line], got: Sequence[str], tolerance: Tolerance) -> tuple[int, str]:
    """How many lines are equal, and how the next one differs."""
    for n, line in enumerate(segment):
        if n >= len(got):
            return n, f"expected {_normal(line.text)!r}, but the output has ended"
        if difference := compare_line(line.text, got[n], tolerance):
            return n, difference
    return len(segment), ""


def compare_line(expected: str, got: str, tolerance: Tolerance = EXACT) -> str | None:
    """How a line differs from the expected one."""
    expected, got = _normal(expected), _normal(got)
    numbers = NUMBER.findall(expected)
    texts = NUMBER.split(expected)
    pattern = f"({NUMBER.pattern})".join(_text_pattern(text) for text in texts)
    match = re.fullmatch(pattern, got)
    if match is None:
        return f"expected {expected!r}, got {got!r}"
    for i, (number, other) in enumerate(zip(numbers, match.groups(), strict=True)):
        is_percentage = texts[i + 1].lstrip().startswith("%")
        if not _is_close(number, other, is_percentage, tolerance):
            return f"expected {number}, got {other}"
    return None


def _text_pattern(text: str) -> str:
    return r".*?".join(map(re.escape, re.split(r"…|\.\.\.", text)))


def _is_close(number: str, other: str, is_percentage: bool, tolerance: Tolerance) -> bool:
    a, b = _value(number), _value(other)
    allowed = max(_last_digit(number, is_percentage), tolerance.absolute, tolerance.relative * abs(a))
    return abs(a - b) <= allowed * (1 + ROUNDING)


def _value(number: str) -> float:
    return float(number.replace(",", "").replace("−", "-"))


def _last_digit(number: str, is_percentage: bool) -> float:
    """The worth of the last printed digit; 0 for a whole number, which is exact."""
    mantissa, _, exponent = number.lower().partition("e")
    _, _, decimals = mantissa.partition(".")
    if not decimals:
        return float(is_percentage)
    return 10.0 ** (int(exponent or 0) - len(decimals))


def _normal(line: str) -> str:
    return " ".join(line.split())

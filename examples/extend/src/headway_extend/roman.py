"""A dataset: numbers and their Roman numerals, as pairs."""

from collections.abc import Iterator

import headway
from headway.data import Pair

NUMERALS = {
    1000: "M", 900: "CM", 500: "D", 400: "CD", 100: "C", 90: "XC", 50: "L", 40: "XL", 10: "X", 9: "IX", 5: "V", 4: "IV",
    1: "I",
}  # fmt: skip


def roman(n: int) -> str:
    """1987 → MCMLXXXVII"""
    text = ""
    for value, letters in NUMERALS.items():
        text += letters * (n // value)
        n %= value
    return text


def roman_pairs() -> Iterator[Pair]:
    for n in range(1, 4000):
        yield Pair(str(n), roman(n))


headway.register("dataset", "roman", roman_pairs, records="pairs")

"""Formulas in named sizes, such as 24 b n d² + 4 b n² d: counted, and printed as a student would write them.

    b, n, d = symbols("b n d")
    scores = 2 * b * n**2 * d
    scores.evaluate({"b": 1, "n": 1024, "d": 768})       1610612736
    str(scores)                                          "2 b n² d"
    scores.filled({"b": 1, "n": 1024, "d": 768})         "2 · 1 · 1,024² · 768"

The number and the text come from one object, so they cannot disagree.

| symbol | meaning | | symbol | meaning |
|---|---|---|---|---|
| b | batch size | | V | vocabulary size |
| n | tokens of the sequence, or of the target | | L | layers |
| s | tokens of the source | | c | context: rows of a position table |
| d | width of the model | | r | width of a recurrent or hidden layer |
| h | attention heads (m on the slides) | | a | width of an alignment network |
| g | key/value heads | | o | width of a maxout layer |
| k | width of a head | | w | tokens of an n-gram's window |
| f | width of the feed-forward layer | | C, e | labels; segments or buckets |
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

ORDER = "bnswVCehgkfcroadL"  # of symbols in a product
SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")

Powers = tuple[tuple[str, int], ...]  # (("b", 1), ("d", 2)) is b d²


@dataclass(frozen=True)
class Formula:
    """A polynomial with whole coefficients: the powers of the symbols of each term, and its coefficient."""

    terms: tuple[tuple[Powers, int], ...] = ()

    @staticmethod
    def constant(value: int) -> "Formula":
        return Formula((((), value),) if value else ())

    def evaluate(self, sizes: Mapping[str, int]) -> int:
        return sum(coefficient * prod(sizes[name] ** power for name, power in powers) for powers, coefficient in self)

    @property
    def names(self) -> set[str]:
        """The symbols in it."""
        return {name for powers, _ in self for name, _ in powers}

    def __iter__(self) -> Iterator[tuple[Powers, int]]:
        return iter(self.terms)

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __add__(self, other: "Formula | int") -> "Formula":
        total = dict(self.terms)
        for powers, coefficient in _as_formula(other):
            total[powers] = total.get(powers, 0) + coefficient
        return Formula(tuple((powers, coefficient) for powers, coefficient in total.items() if coefficient))

    def __mul__(self, other: "Formula | int") -> "Formula":
        product = Formula()
        for powers, coefficient in self:
            for other_powers, other_coefficient in _as_formula(other):
                term = (_multiplied(powers, other_powers), coefficient * other_coefficient)
                product = product + Formula((term,))
        return product

    def __sub__(self, other: "Formula | int") -> "Formula":
        return self + _as_formula(other) * -1

    def __pow__(self, exponent: int) -> "Formula":
        power = Formula.constant(1)
        for _ in range(exponent):
            power = power * self
        return power

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: int) -> "Formula":
        return _as_formula(other) - self

    def __str__(self) -> str:
        """ "24 b n d² + 4 b n² d" """
        return self._joined(lambda powers: " ".join(name + _superscript(power) for name, power in powers), " ")

    def filled(self, sizes: Mapping[str, int]) -> str:
        """The formula with numbers for symbols: "2 · 1 · 1,024² · 768"."""
        return self._joined(
            lambda powers: " · ".join(f"{sizes[name]:,}{_superscript(power)}" for name, power in powers), " · "
        )

    def _joined(self, factors: Callable[[Powers], str], separator: str) -> str:
        text = ""
        for powers, coefficient in self:
            number = f"{abs(coefficient):,}" if abs(coefficient) != 1 or not powers else ""
            product = separator.join(part for part in (number, factors(powers)) if part)
            sign = ("− " if coefficient < 0 else "") if not text else (" − " if coefficient < 0 else " + ")
            text += sign + product
        return text or "0"


def symbols(names: str) -> tuple[Formula, ...]:
    """One formula per name: `b, n, d = symbols("b n d")`."""
    return tuple(Formula(((((name, 1),), 1),)) for name in names.split())


def _as_formula(value: Formula | int) -> Formula:
    return value if isinstance(value, Formula) else Formula.constant(value)


def _multiplied(left: Powers, right: Powers) -> Powers:
    powers = dict(left)
    for name, power in right:
        powers[name] = powers.get(name, 0) + power
    return tuple(sorted(powers.items(), key=lambda item: ORDER.index(item[0])))


def _superscript(power: int) -> str:
    return "" if power == 1 else str(power).translate(SUPERSCRIPTS)

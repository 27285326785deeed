"""Formulas and numbers as a student types them: "2nmk", "b n d² + 4*b*n^2*d", "bnd·d/m", "12*12,288^2", "174 billion".

    parse_polynomial("2nmk", "nmk")                            2 n m k
    parse_polynomial("n(m + k)", "nmk").evaluate(n=2, m=3, k=4)   14

Two formulas are equal if they are the same polynomial, however they are written.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from headway.costs.formula import SUPERSCRIPTS, Formula
from headway.errors import InputError

MAX_CHARACTERS = 200
MAX_POWER = 12
MAX_TERMS = 500
MAX_DIGITS = 60  # of a coefficient, so that powers of powers stay cheap
MAX_DEPTH = 20  # of parentheses
SCALES = {
    "%": Fraction(1, 100),
    "k": Fraction(10**3),
    "thousand": Fraction(10**3),
    "m": Fraction(10**6),
    "million": Fraction(10**6),
    "b": Fraction(10**9),
    "bn": Fraction(10**9),
    "billion": Fraction(10**9),
    "trillion": Fraction(10**12),
}
ORDINARY_DIGITS = {superscript: digit for digit, superscript in zip("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹", strict=True)}

Monomial = tuple[tuple[str, int], ...]  # sorted by symbol: (("b", 1), ("d", 2)) is b d²


@dataclass(frozen=True)
class Polynomial:
    """The coefficient of each monomial; powers may be negative."""

    terms: Mapping[Monomial, Fraction]

    @staticmethod
    def constant(value: int | Fraction) -> "Polynomial":
        return Polynomial({(): Fraction(value)} if value else {})

    @staticmethod
    def symbol(name: str) -> "Polynomial":
        return Polynomial({((name, 1),): Fraction(1)})

    @staticmethod
    def of(formula: Formula) -> "Polynomial":
        """A formula of `headway.costs`."""
        return Polynomial({tuple(sorted(powers)): Fraction(coefficient) for powers, coefficient in formula})

    def __add__(self, other: "Polynomial | int") -> "Polynomial":
        total = dict(self.terms)
        for monomial, coefficient in _as_polynomial(other).terms.items():
            total[monomial] = total.get(monomial, Fraction(0)) + coefficient
        return Polynomial({monomial: coefficient for monomial, coefficient in total.items() if coefficient})

    def __mul__(self, other: "Polynomial | int") -> "Polynomial":
        if len(self.terms) * len(_as_polynomial(other).terms) > MAX_TERMS:
            raise InputError(f"a formula of more than {MAX_TERMS} terms is too long to compare")
        product = Polynomial({})
        for left, a in self.terms.items():
            for right, b in _as_polynomial(other).terms.items():
                powers = dict(left)
                for name, power in right:
                    powers[name] = powers.get(name, 0) + power
                monomial = tuple(sorted((name, power) for name, power in powers.items() if power))
                product = product + Polynomial({_checked(monomial): _bounded(a * b)})
        return product

    __radd__, __rmul__ = __add__, __mul__

    def __pow__(self, power: int) -> "Polynomial":
        return prod([self] * power, start=Polynomial.constant(1))

    def inverse(self) -> "Polynomial":
        """1 over it; only a product can be divided by."""
        if not self.terms:
            raise InputError("a division by 0 has no value")
        if len(self.terms) != 1:
            raise InputError("only a product can be divided by, such as d/m")
        ((monomial, coefficient),) = self.terms.items()
        return Polynomial({tuple((name, -power) for name, power in monomial): 1 / coefficient})

    def without(self, names: str) -> "Polynomial":
        """With 1 for these symbols."""
        total = Polynomial({})
        for monomial, coefficient in self.terms.items():
            kept = tuple((name, power) for name, power in monomial if name not in names)
            total = total + Polynomial({kept: coefficient})
        return total

    def substituted(self, name: str, value: "Polynomial") -> "Polynomial":
        """With a formula for a symbol."""
        total = Polynomial({})
        for monomial, coefficient in self.terms.items():
            powers = dict(monomial)
            power = powers.pop(name, 0)
            total = total + Polynomial({tuple(powers.items()): coefficient}) * value**power
        return total

    @property
    def monomials(self) -> frozenset[Monomial]:
        """The formula with its constants dropped."""
        return frozenset(self.terms)

    @property
    def names(self) -> set[str]:
        return {name for monomial in self.terms for name, _ in monomial}

    def at(self, sizes: Mapping[str, int]) -> "Polynomial":
        """With numbers for these symbols."""
        total = Polynomial({})
        for monomial, coefficient in self.terms.items():
            kept = tuple((name, power) for name, power in monomial if name not in sizes)
            factors = (Fraction(sizes[name]) ** power for name, power in monomial if name in sizes)
            total = total + Polynomial({kept: coefficient * prod(factors)})
        return total

    def evaluate(self, **sizes: int) -> Fraction:
        return sum(self.at({name: sizes[name] for name in self.names}).terms.values(), Fraction(0))

    def __str__(self) -> str:
        """ "2 n m k − n k"."""
        text = ""
        for monomial, coefficient in self.terms.items():
            sign = (" − " if text else "−") if coefficient < 0 else (" + " if text else "")
            text += sign + _term(monomial, abs(coefficient))
        return text or "0"


def _as_polynomial(value: "Polynomial | int") -> Polynomial:
    return value if isinstance(value, Polynomial) else Polynomial.constant(value)


def _checked(monomial: Monomial) -> Monomial:
    for name, power in monomial:
        if abs(power) > MAX_POWER:
            raise InputError(f"the power {power} of {name} is out of range: use at most {MAX_POWER}")
    return monomial


def _bounded(value: Fraction) -> Fraction:
    if max(abs(value.numerator), value.denominator) >= 10**MAX_DIGITS:
        raise InputError(f"a number of more than {MAX_DIGITS} digits is too long to compare")
    return value


def describe_monomial(monomial: Monomial) -> str:
    """ "n² d", with batch, length and width in the order of the lectures."""
    ordered = sorted(monomial, key=lambda item: "bnsmkdL".find(item[0]))
    above = " ".join(f"{name}{_power(power)}" for name, power in ordered if power > 0)
    below = "".join(f"/{name}{_power(-power)}" for name, power in ordered if power < 0)
    return (above or "1") + below


def _power(power: int) -> str:
    return "" if power == 1 else str(power).translate(SUPERSCRIPTS)


def _term(monomial: Monomial, coefficient: Fraction) -> str:
    if not monomial:
        return str(coefficient)
    return describe_monomial(monomial) if coefficient == 1 else f"{coefficient} {describe_monomial(monomial)}"


# ── parsing ───────────────────────────────────────────────────────────────────────────────────────────────────────

NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
TOKEN = re.compile(rf"\s*(?:({NUMBER})|([A-Za-z])|(\*\*|[-+*/^()]))")
SCALE = re.compile(rf"\s*({'|'.join(sorted(SCALES, key=len, reverse=True))})(?![A-Za-z])", re.IGNORECASE)


def join_digits(text: str, *, is_single: bool) -> str:
    """18_874_368 and 18'874'368 are one number; so are 18,874,368 and 18 874 368 if `is_single`: no list is meant.

    >>> join_digits("12 * 12,288^2", is_single=True), join_digits("100,200", is_single=False)
    ('12 * 12288^2', '100,200')
    """
    plain = re.sub("[\u00a0\u2009\u202f]", " ", text)
    plain = re.sub(r"(?<=\d)[_'’](?=\d)", "", plain)
    if not is_single:
        return plain
    plain = re.sub(r"(?<![\d.,])[1-9]\d{0,2}(?:, ?\d{3})+(?!\d)", lambda found: re.sub(", ?", "", found[0]), plain)
    # Side by side, numbers are multiplied: spaces separate digits only if there is nothing else.
    if re.fullmatch(r"\s*[-+]?\d{1,3}(?: \d{3})+(?:\.\d*)?\s*", plain):
        plain = plain.replace(" ", "")
    return plain


def parse_polynomial(text: str, names: Iterable[str]) -> Polynomial:
    """Read a formula in these symbols, one letter each. Factors may stand side by side; O(n²) is n²."""
    symbols = {name.lower(): name for name in names}
    if len(text) > MAX_CHARACTERS:
        raise InputError(f"a formula of {len(text)} characters is too long: use at most {MAX_CHARACTERS}")
    plain = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda found: "^" + "".join(map(ORDINARY_DIGITS.__getitem__, found[0])), text)
    plain = re.sub(r"[OΘ]\s*(?=\()", "", plain)
    plain = plain.replace("·", "*").replace("×", "*").replace("⋅", "*").replace("−", "-")
    tokens, position = [], 0
    while plain[position:].strip():
        found = TOKEN.match(plain, position)
        letter = found[2] if found else None
        if found is None or (letter and letter.lower() not in symbols):
            wrong = letter or plain[position:].strip()[0]
            allowed = f"use {', '.join(symbols.values())}" if symbols else "use numbers alone"
            raise InputError(f"{wrong!r} in {text.strip()!r} is not a symbol of this quiz: {allowed}")
        position = found.end()
        if found[1]:
            number = parse_number(found[1])
            scale = SCALE.match(plain, position)
            if scale and not set(scale[1].lower()) <= symbols.keys():  # 2k is two thousand unless k is a symbol
                number, position = _bounded(number * SCALES[scale[1].lower()]), scale.end()
            tokens.append(str(number))
        else:
            tokens.append(symbols[letter.lower()] if letter else found[3].replace("**", "^"))
    if not tokens:
        raise InputError(f"no formula: write one in {', '.join(symbols.values())}")
    parser = _FormulaParser(tokens, text.strip())
    polynomial = parser.sum()
    parser.expect_end()
    return polynomial


def parse_number(text: str) -> Fraction:
    """A decimal number, exactly; an exponent is read before it is computed."""
    mantissa, _, exponent = text.lower().partition("e")
    if len(mantissa) > MAX_DIGITS or abs(int(exponent or 0)) > MAX_DIGITS:
        raise InputError(f"a number of more than {MAX_DIGITS} digits is too long to compare")
    return _bounded(Fraction(text))


class _FormulaParser:
    """sum = product (± product)*, product = power (·/ power)*, power = atom ^ number."""

    def __init__(self, tokens: list[str], text: str):
        self.tokens, self.text, self.depth = tokens, text, 0

    def sum(self) -> Polynomial:
        sign = self._sign()
        total = self.product() * sign
        while self._peek() in ("+", "-"):
            sign = self._sign()
            total = total + self.product() * sign
        return total

    def product(self) -> Polynomial:
        result = self.power()
        while (token := self._peek()) not in ("", "+", "-", ")"):
            if token in ("*", "/"):
                self.tokens.pop(0)
            factor = self.power()
            result = result * (factor.inverse() if token == "/" else factor)
        return result

    def power(self) -> Polynomial:
        base = self.atom()
        if self._peek() != "^":
            return base
        self.tokens.pop(0)
        exponent = self._next()
        if not exponent.isdigit() or int(exponent) > MAX_POWER:
            raise InputError(f"the power {exponent!r} in {self.text!r} is not a whole number up to {MAX_POWER}")
        return base ** int(exponent)

    def atom(self) -> Polynomial:
        token = self._next()
        if token == "(":
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise InputError(f"more than {MAX_DEPTH} parentheses are open in {self.text!r}")
            inner = self.sum()
            self.depth -= 1
            if self._next() != ")":
                raise InputError(f"{self.text!r} lacks a closing parenthesis")
            return inner
        if token[0].isdigit():
            return Polynomial.constant(Fraction(token))
        if token.isalpha():
            return Polynomial.symbol(token)
        raise InputError(f"{token!r} in {self.text!r} stands where a number or a symbol should")

    def expect_end(self) -> None:
        if self.tokens:
            raise InputError(f"{self.tokens[0]!r} in {self.text!r} closes nothing")

    def _sign(self) -> int:
        sign = 1
        while self._peek() in ("+", "-"):
            sign = -sign if self.tokens.pop(0) == "-" else sign
        return sign

    def _peek(self) -> str:
        return self.tokens[0] if self.tokens else ""

    def _next(self) -> str:
        if not self.tokens:
            raise InputError(f"{self.text!r} ends too early")
        return self.tokens.pop(0)

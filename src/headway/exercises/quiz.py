"""What a quiz is: a question, a function that computes the answer, and how an answer of yours is judged.

`Quiz.solve` runs Headway's own code, so an answer is never written down: change the code, and the answer changes. A
wrong answer is compared with what known mistakes would give, and met with what went wrong.

    NumbersAnswer     0.88, 0.12        numbers within a tolerance, or expressions with these values
    ChoiceAnswer      b                 one of several, or all that are right
    FormulaAnswer     2nmk, nm+mk+nk    formulas, however they are written, or their values at given sizes
    RuleAnswer        1, 1, -1.3        numbers that are tried out
"""

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

from headway.errors import InputError, count
from headway.exercises.polynomials import NUMBER, SCALES, Polynomial, join_digits, parse_number, parse_polynomial


@dataclass(frozen=True)
class Verdict:
    """`feedback` says what is wrong and how to compute it, or what else is worth knowing."""

    is_right: bool
    feedback: str


class QuizAnswer(Protocol):
    def __str__(self) -> str:
        """The right answer, as you would type it."""

    def grade(self, text: str) -> Verdict:
        """Judge an answer; `InputError` if it cannot be read."""


@dataclass(frozen=True)
class Solution:
    """The computed answer, and why it is right, with numbers."""

    answer: QuizAnswer
    explanation: str


@dataclass(frozen=True)
class Quiz:
    number: int
    name: str
    topic: str
    lecture: str  # A to E, as in docs/lectures.md
    question: str
    answer_format: str  # how to type an answer: "two numbers"
    solve: Callable[[], Solution]

    def grade(self, text: str) -> Verdict:
        """Compute the answer and judge this one."""
        return self.solve().answer.grade(text)


# ── numbers ───────────────────────────────────────────────────────────────────────────────────────────────────────

MISTAKE_TOLERANCE = 0.005  # a wrong answer may be given with two digits
EXACT = 1e-9


def parse_numbers(text: str, *, is_single: bool = False, sizes: Mapping[str, int] | None = None) -> list[float]:
    """Numbers separated by commas, semicolons or spaces; 88% is 0.88, 174B is 174e9, and 0.88 v₁ is 0.88.

    An expression such as 4/3 is a number too, also in the symbols that have `sizes`. `is_single` says that no list is
    meant: 18,874,368 is one number.

    >>> parse_numbers("[0.88, 12%]"), parse_numbers("0.88 v₁ + 0.12 v₂")
    ([0.88, 0.12], [0.88, 0.12])
    >>> parse_numbers("3 d^2", sizes={"d": 10}), parse_numbers("1,200", is_single=True)
    ([300.0], [1200.0])
    """
    plain = join_digits(text.strip().lstrip("≈~="), is_single=is_single)
    if is_single and re.search(r"\d\s*[-−+]\s", plain):  # 1 - 0.1; in a list, 0.88 v₁ + 0.12 v₂ are two numbers
        return _parse_expressions(plain, sizes or {})
    try:
        return _parse_words(plain)
    except InputError as error:
        try:
            return _parse_expressions(plain, sizes or {})
        except InputError as expression_error:
            raise (expression_error if sizes else error) from None


def _parse_expressions(text: str, sizes: Mapping[str, int]) -> list[float]:
    parts = re.split("[,;]", re.sub(r"[\[\]{}|]", " ", text))
    return [float(parse_polynomial(part, sizes).evaluate(**sizes)) for part in parts if part.strip()]


def _parse_words(text: str) -> list[float]:
    plain = re.sub(r"\*?\s*v_?[\d₀-₉]+", " ", text.replace("−", "-"))
    plain = re.sub(r"([-+])\s+(?=[\d.])", r"\1", re.sub(r"[\[\](){}|]", " ", plain))
    numbers = []
    for word in filter(None, re.split(r"[,;\s]+", plain)):
        found = re.match(f"([-+]?)({NUMBER})", word)
        scale = word[found.end() :].lower() if found else "?"
        if found is None or (scale and scale not in SCALES):
            raise InputError(f"{word!r} is not a number")
        number = parse_number(found[2]) * SCALES.get(scale, 1)
        numbers.append(float(-number if found[1] == "-" else number))
    return numbers


@dataclass(frozen=True)
class NumbersAnswer:
    """Right within `tolerance`, absolute or relative. `wrong` pairs the numbers that a mistake gives with the mistake,
    `also_right` other numbers that are right with a remark. An answer is judged if it has as many numbers as one of
    these; whether it is refused must not tell whether it is right."""

    values: tuple[float, ...]
    digits: int = 2
    tolerance: float = 0.005
    is_relative: bool = False
    wrong: Sequence[tuple[Sequence[float], str]] = ()
    also_right: Sequence[tuple[Sequence[float], str]] = ()
    too_rough: tuple[float, str] | None = None  # within this tolerance of a right answer: what is lacking
    method: str = ""  # how to compute it, for answers that no known mistake explains
    sizes: Mapping[str, int] = field(default_factory=dict)  # an answer may be a formula in these

    def __str__(self) -> str:
        return ", ".join(f"{value:,.0f}" if self.is_relative else f"{value:.{self.digits}f}" for value in self.values)

    def grade(self, text: str) -> Verdict:
        numbers = parse_numbers(text, is_single=len(self.values) == 1, sizes=self.sizes)
        if self._equal(numbers, self.values):
            return Verdict(True, "")
        for values, remark in self.also_right:
            if self._equal(numbers, values):
                return Verdict(True, remark)
        right = [self.values, *(values for values, _ in self.also_right)]
        rough = [(values, *self.too_rough) for values in right] if self.too_rough else []
        exact = [(values, EXACT, mistake) for values, mistake in self.wrong]
        loose = [(values, max(self.tolerance, MISTAKE_TOLERANCE), mistake) for values, mistake in self.wrong]
        for values, tolerance, feedback in (*exact, *rough, *loose):
            if self._equal(numbers, values, tolerance):
                return Verdict(False, feedback)
        known = [*right, *(values for values, _ in self.wrong)]
        if len(numbers) not in {len(values) for values in known}:
            raise InputError(f"{count(len(numbers), 'number')} in {text!r}: this quiz asks for {len(self.values)}")
        return Verdict(False, self.method)

    def _equal(self, numbers: Sequence[float], values: Sequence[float], tolerance: float | None = None) -> bool:
        if len(numbers) != len(values):
            return False
        atol = self.tolerance if tolerance is None else tolerance
        pairs = zip(numbers, values, strict=True)
        return all(abs(x - y) <= atol * (abs(y) if self.is_relative else 1) for x, y in pairs)


# ── choices ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Choice:
    """A keyword may be typed in place of the letter; `why_not` answers a wrong choice, `why` a missing one."""

    text: str
    keyword: str
    why_not: str = ""
    why: str = ""
    aliases: tuple[str, ...] = ()

    def matches(self, word: str) -> bool:
        """Whether a word, in lower case, names it: "row-wise" is "rows"."""
        stems = [keyword.lower().rstrip("s") for keyword in (self.keyword, *self.aliases)]
        return word == self.text.lower() or any(word == stem or word.startswith(stem) for stem in stems)


def list_choices(choices: Sequence[Choice]) -> str:
    """ "(a) the rows" and so on, a line each."""
    return "\n".join(f"  ({letter}) {choice.text}" for letter, choice in zip(_letters(choices), choices, strict=True))


def _letters(choices: Sequence[Choice]) -> str:
    return "abcdefghijklmnop"[: len(choices)]


@dataclass(frozen=True)
class ChoiceAnswer:
    choices: Sequence[Choice]
    right: frozenset[int]  # indices; computed
    several: bool = False

    def __str__(self) -> str:
        letters = _letters(self.choices)
        return ", ".join(letters[i] for i in sorted(self.right))

    def grade(self, text: str) -> Verdict:
        chosen = {self._index(word) for word in self._words(text)}
        if not chosen:
            raise InputError(f"no choice in {text!r}: type a letter from a to {_letters(self.choices)[-1]}")
        if not self.several and len(chosen) > 1:
            raise InputError(f"{count(len(chosen), 'choice')} in {text!r}: choose one")
        if chosen == self.right:
            return Verdict(True, "")
        reasons = [self._reason(i, self.choices[i].why_not) for i in sorted(chosen - self.right)]
        reasons += [self._reason(i, f"missing: {self.choices[i].why}") for i in sorted(self.right - chosen)
                    if self.several]  # fmt: skip
        return Verdict(False, "\n".join(reasons))

    def _reason(self, i: int, text: str) -> str:
        return f"({_letters(self.choices)[i]}) {text}"

    def _words(self, text: str) -> list[str]:
        whole = text.strip().strip("()").lower().replace("₁", "_1").replace("₂", "_2")
        if not self.several or whole in {choice.text.lower() for choice in self.choices}:
            return [whole] if whole else []
        letters = _letters(self.choices)
        if re.fullmatch(f"[{letters}]+", whole):  # "bcd"
            return list(whole)
        words = re.split("[,;]" if re.search("[,;]", whole) else r"\s+", whole)
        return [word.strip(" ()") for word in words if word.strip(" ()")]

    def _index(self, word: str) -> int:
        letters = _letters(self.choices)
        if word in letters:
            return letters.index(word)
        matching = [i for i, choice in enumerate(self.choices) if choice.matches(word)]
        if len(matching) == 1:
            return matching[0]
        raise InputError(
            f"no choice {word!r}: type a letter from a to {letters[-1]}, or one of "
            f"{', '.join(choice.keyword for choice in self.choices)}"
        )


# ── formulas ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class FormulaPart:
    """One formula of an answer. `wrong` maps what mistakes give to the mistake."""

    label: str
    right: Polynomial
    wrong: Sequence[tuple[Polynomial, str]] = ()
    also_right: Sequence[tuple[Polynomial, str]] = ()


@dataclass(frozen=True)
class FormulaAnswer:
    names: str  # the symbols that may be used, one letter each
    parts: Sequence[FormulaPart]
    sizes: Mapping[str, int] = field(default_factory=dict)  # a number is compared with the value at these
    may_round: bool = False  # a number, to two digits or more
    method: str = ""
    n_optional: int = 0  # parts at the end that may be left out

    def __str__(self) -> str:
        return ", ".join(str(part.right) for part in self.parts)

    def grade(self, text: str) -> Verdict:
        plain = join_digits(text.strip().lstrip("≈~="), is_single=len(self.parts) == 1)
        formulas = [formula for formula in re.split("[,;]", plain) if formula.strip()]
        if not len(self.parts) - self.n_optional <= len(formulas) <= len(self.parts):
            labels = ", ".join(part.label for part in self.parts)
            raise InputError(
                f"{count(len(formulas), 'formula')} in {text!r}: this quiz asks for {len(self.parts)} ({labels})"
            )
        verdicts = [self._grade_part(part, text) for part, text in zip(self.parts, formulas, strict=False)]
        feedback = "\n".join(verdict.feedback for verdict in verdicts if verdict.feedback)
        return Verdict(all(verdict.is_right for verdict in verdicts), feedback)

    def _grade_part(self, part: FormulaPart, text: str) -> Verdict:
        formula = parse_polynomial(text, self.names)
        label = f"{part.label}: " if len(self.parts) > 1 else ""
        if self._equal(formula, part.right):
            return Verdict(True, self._remark(formula, part))
        for other, remark in part.also_right:
            if self._equal(formula, other):
                return Verdict(True, f"{label}{remark}")
        for other, mistake in part.wrong:
            if self._equal(formula, other):
                return Verdict(False, f"{label}{mistake}")
        return Verdict(False, f"{label}{formula} is wrong. {self.method}".strip())

    def _equal(self, formula: Polynomial, other: Polynomial) -> bool:
        """The same polynomial, where symbols that `formula` lacks have their sizes."""
        value = self._at_sizes(formula, other)
        if formula.terms == value.terms:
            return True
        is_number = not formula.names and not value.names
        return is_number and self.may_round and is_rounding(formula.evaluate(), value.evaluate())

    def _at_sizes(self, formula: Polynomial, other: Polynomial) -> Polynomial:
        return other.at({name: size for name, size in self.sizes.items() if name not in formula.names})

    def _remark(self, formula: Polynomial, part: FormulaPart) -> str:
        value = self._at_sizes(formula, part.right)
        is_rounded = not formula.names and formula.terms != value.terms
        return f"Rounded; exactly it is {int(value.evaluate()):,}." if is_rounded else ""


def is_rounding(number: Fraction, value: Fraction) -> bool:
    """Whether a whole number with zeros at its end is `value`, rounded to two digits or more: 18,900,000 is 18,874,368.

    >>> is_rounding(Fraction(18_870_000), Fraction(18_874_368)), is_rounding(Fraction(18_874_369), Fraction(18_874_368))
    (True, False)
    """
    digits = str(number.numerator)
    unit = 10 ** (len(digits) - len(digits.rstrip("0")))
    return number.denominator == 1 < unit <= abs(value) / 10 and abs(number - value) <= Fraction(unit, 2)


# ── rules that are tried out ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class RuleAnswer:
    """Numbers with no single right value: `judge` tries them out. `example` is one that is right."""

    n_numbers: int
    judge: Callable[[Sequence[float]], Verdict]
    example: Sequence[float]

    def __str__(self) -> str:
        return ", ".join(f"{number:g}" for number in self.example)

    def grade(self, text: str) -> Verdict:
        numbers = parse_numbers(text)
        if len(numbers) != self.n_numbers:
            raise InputError(f"{count(len(numbers), 'number')} in {text!r}: this quiz asks for {self.n_numbers}")
        return self.judge(numbers)


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def wrap_text(text: str, width: int) -> str:
    """Wrap every line; those that begin with a space stay as they are."""
    lines = text.split("\n")
    wrapped = [[line] if line.startswith(" ") else textwrap.wrap(line, width, break_on_hyphens=False) for line in lines]
    return "\n".join("\n".join(parts) for parts in wrapped)

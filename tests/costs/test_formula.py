"""Formulas are evaluated and written alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.costs.formula import Formula, symbols

b, n, d = symbols("b n d")
SIZES = {"b": 2, "n": 3, "d": 5}


@pytest.mark.parametrize(
    ("formula", "text", "filled", "value"),
    [
        (24 * b * n * d**2 + 4 * b * n**2 * d, "24 b n d² + 4 b n² d", "24 · 2 · 3 · 5² + 4 · 2 · 3² · 5", 3960),
        (d * n - 1, "n d − 1", "3 · 5 − 1", 14),
        (1 - n, "1 − n", "1 − 3", -2),
        (n - n, "0", "0", 0),
        (Formula.constant(7), "7", "7", 7),
        ((n + d) ** 2, "n² + 2 n d + d²", "3² + 2 · 3 · 5 + 5²", 64),
    ],
)
def test_a_formula_is_printed_and_evaluated(formula, text, filled, value):
    assert (str(formula), formula.filled(SIZES), formula.evaluate(SIZES)) == (text, filled, value)


@st.composite
def formulas(draw):
    formula = Formula()
    for _ in range(draw(st.integers(0, 4))):
        powers = draw(st.tuples(*[st.integers(0, 3)] * 3))
        formula = formula + draw(st.integers(-9, 9)) * b ** powers[0] * n ** powers[1] * d ** powers[2]
    return formula


@given(formulas(), formulas(), st.fixed_dictionaries(dict.fromkeys("bnd", st.integers(0, 50))))
def test_arithmetic_of_formulas_is_that_of_their_values(x, y, sizes):
    assert (x + y).evaluate(sizes) == x.evaluate(sizes) + y.evaluate(sizes)
    assert (x * y).evaluate(sizes) == x.evaluate(sizes) * y.evaluate(sizes)
    assert (x - y).evaluate(sizes) == x.evaluate(sizes) - y.evaluate(sizes)

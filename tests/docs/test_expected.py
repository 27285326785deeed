"""How printed output is compared with the output on a page."""

import pytest

from tests.docs.blocks import Line
from tests.docs.expected import Tolerance, compare_line, compare_output


def compare(page: str, printed: str, tolerance: str | None = None):
    expected = [Line(n, text) for n, text in enumerate(page.splitlines(), 10)]
    mismatch = compare_output(expected, printed, Tolerance.parse(tolerance))
    return mismatch and f"{mismatch.line}: {mismatch.text}"


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        ("weights 0.88, 0.12", "weights   0.8808, 0.1192"),
        ("0.88", "0.89"),  # one in the last digit
        ("13 %", "12 %"),
        ("·name 28%", "·name 29%"),
        ("3.2e+12", "3.3e+12"),
        ("[[4, 2, 2, -inf]]", "[[4.0, 2.0, 2.0, -inf]]"),
        ("tensor([4., −2.])", "tensor([4., -2.])"),
        ("124,439,808 parameters", "124439808 parameters"),
        ("model GPT, …", "model GPT, on cpu in float32"),
        ("gpt2 … 12 layers", "gpt2 of 12 layers"),
    ],
)
def test_equal_lines(expected, got):
    assert compare_line(expected, got) is None


@pytest.mark.parametrize(
    ("expected", "got", "difference"),
    [
        ("weights 0.88, 0.12", "weights 0.86, 0.14", "expected 0.88, got 0.86"),
        ("8 heads", "7 heads", "expected 8, got 7"),
        ("124,439,808", "124,439,807", "expected 124,439,808, got 124,439,807"),
        ("-0.5", "0.5", "expected -0.5, got 0.5"),
        ("1e-3", "1e-4", "expected 1e-3, got 1e-4"),
        ("12", "123", "expected 12, got 123"),
        ("gpt2", "gpt3", "expected 'gpt2', got 'gpt3'"),
        ("0.88 nats", "nan nats", "expected '0.88 nats', got 'nan nats'"),
    ],
)
def test_different_lines(expected, got, difference):
    assert compare_line(expected, got) == difference


def test_a_stated_tolerance():
    assert compare("0.88", "0.86") == "10: expected 0.88, got 0.86"
    assert compare("0.88", "0.86", "0.02") is None
    assert compare("0.88", "0.85", "0.02") == "10: expected 0.88, got 0.85"
    assert compare("1,000 tokens", "1,040 tokens", "5 %") is None
    assert compare("1,000 tokens", "1,060 tokens", "5 %") == "10: expected 1,000, got 1,060"


@pytest.mark.parametrize(
    "page", ["a\n\nb\nc", "…\nb\nc", "a\n…\nc", "a\n…", "…", "a\n…\nb\n…", "…\nb\n…\nc", "a\nb\nc\n…"]
)
def test_three_dots_stand_for_any_number_of_lines(page):
    assert compare(page, "a\nb\n\nc\n") is None


@pytest.mark.parametrize(
    ("page", "difference"),
    [
        ("a\nb", "11: 'c' is printed after this line; write … if the page leaves it out"),
        ("a\nb\nc\nd", "13: expected 'd', but the output has ended"),
        ("b\n…", "10: expected 'b', got 'a'"),
        ("…\nb", "11: expected 'b', got 'c'"),
        ("…\nx\n…", "11: expected 'x', which is not printed"),
        ("…\na\nx\n…", "12: expected 'x', got 'b'"),
        ("…\nc\n…\na\n…", "13: expected 'a', but the output has ended"),
    ],
)
def test_a_difference_has_its_line(page, difference):
    assert compare(page, "a\nb\nc\n") == difference


def test_output_that_is_missing_altogether():
    assert compare("a", "") == "10: expected 'a', but the output has ended"
    assert compare("…", "") is None

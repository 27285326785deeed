"""Generated tasks: without end, the same for the same seed, and right."""

import datetime
import re
from itertools import islice

import pytest

from headway.data import TASKS, exact_match, pairs
from headway.data.tasks import in_words
from headway.errors import ConfigError, InputError


@pytest.mark.parametrize("name", TASKS)
def test_tasks_are_seeded(name):
    first, again, other = (list(islice(pairs(name, seed=s), 50)) for s in (1, 1, 2))
    assert first == again != other


def test_tasks_have_the_right_answers():
    for question, answer in islice(pairs("copy"), 100):
        assert answer == question
    for question, answer in islice(pairs("reverse"), 100):
        assert answer == question[::-1]
    for question, answer in islice(pairs("sort"), 100):
        assert list(answer) == sorted(question)
    for question, answer in islice(pairs("arithmetic"), 100):
        assert int(answer) == eval(question.replace("+0", "+0"))  # our own digits and signs
    for question, answer in islice(pairs("dates"), 300):
        day = datetime.date.fromisoformat(answer)
        assert str(day.year) in question
        assert day.strftime("%b") in question
        assert re.search(rf"\b{day.day}(st|nd|rd|th)?\b", question)
    assert in_words(13) == "thirteen"
    assert in_words(999_999) == "nine hundred ninety-nine thousand nine hundred ninety-nine"


def test_dates_end_in_the_right_letters():
    found = {m.group() for q, _ in islice(pairs("dates"), 3000) for m in re.finditer(r"\b\d+(st|nd|rd|th)", q)}
    assert {"1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "23rd", "31st"} <= found
    assert not {"11st", "12nd", "13rd", "21th"} & found


def test_answers_are_right_to_the_letter_or_wrong():
    assert exact_match(["a", "b ", "C"], ["a", "b", "c"]) == pytest.approx(2 / 3)
    with pytest.raises(InputError, match="no answer"):
        exact_match([], [])
    with pytest.raises(ConfigError, match="Did you mean 'dates'"):
        next(pairs("date"))

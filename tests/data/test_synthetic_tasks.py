"""Generated tasks: without end, the same for the same seed, and right."""

import datetime
import re
from itertools import islice

import pytest

from headway.data import TASKS, exact_match, pairs
from headway.data.synthetic_tasks import OTHER_WORDS, in_words, is_task
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


def test_longer_sentences_are_several_in_a_row_or_among_other_words():
    rows = list(islice(pairs("dates:3"), 300))
    counts = {len(answer.split("; ")) for _, answer in rows}
    assert counts == {1, 2, 3}
    for question, answer in rows:
        assert len(question.split("; ")) == len(answer.split("; "))
        for one, day in zip(question.split("; "), answer.split("; "), strict=True):
            assert datetime.date.fromisoformat(day).strftime("%b") in one
    among = list(islice(pairs("dates+5"), 300))
    others = [[word for word in question.split() if word in OTHER_WORDS] for question, _ in among]
    assert {len(some) for some in others} >= {0, 1, 2, 3, 4, 5}
    for question, answer in among:
        rest = " ".join(word for word in question.split() if word not in OTHER_WORDS).replace("of ", "")
        assert datetime.date.fromisoformat(answer).strftime("%B")[:3] in rest


@pytest.mark.parametrize("name", ["dates:0", "dates:", "dates:x", "dates:1000", "copy+3", "date", "dates:3:3", ""])
def test_what_is_no_task_is_refused(name):
    assert not is_task(name)
    with pytest.raises(ConfigError, match="no task"):
        next(pairs(name))

"""Synthetic tasks: endless, reproducible from the seed, and correct."""

import datetime
import re
from itertools import islice

import pytest

from headway.data import TASKS, pairs
from headway.data.synthetic_tasks import FILLER_WORDS, in_words, is_task
from headway.errors import ConfigError


@pytest.mark.parametrize("name", TASKS)
def test_the_seed_determines_the_pairs(name):
    first, again, different = (list(islice(pairs(name, seed=seed), 50)) for seed in (1, 1, 2))
    assert first == again != different


def test_answers_are_correct():
    for question, answer in islice(pairs("copy"), 100):
        assert answer == question
    for question, answer in islice(pairs("reverse"), 100):
        assert answer == question[::-1]
    for question, answer in islice(pairs("sort"), 100):
        assert list(answer) == sorted(question)
    for question, answer in islice(pairs("arithmetic"), 100):
        assert int(answer) == eval(question.replace("+0", "+0"))  # generated above: digits and signs only
    for question, answer in islice(pairs("dates"), 300):
        day = datetime.date.fromisoformat(answer)
        assert str(day.year) in question
        assert day.strftime("%b") in question
        assert re.search(rf"\b{day.day}(st|nd|rd|th)?\b", question)
    assert in_words(13) == "thirteen"
    assert in_words(999_999) == "nine hundred ninety-nine thousand nine hundred ninety-nine"


def test_dates_have_the_right_ordinal_suffix():
    ordinals = {m.group() for q, _ in islice(pairs("dates"), 3000) for m in re.finditer(r"\b\d+(st|nd|rd|th)", q)}
    assert {"1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "23rd", "31st"} <= ordinals
    assert not {"11st", "12nd", "13rd", "21th"} & ordinals


def test_a_misspelled_task_gets_a_suggestion():
    with pytest.raises(ConfigError, match="Did you mean 'dates'"):
        next(pairs("date"))


def test_longer_variants_join_questions_or_add_filler_words():
    joined = list(islice(pairs("dates:3"), 300))
    assert {len(answer.split("; ")) for _, answer in joined} == {1, 2, 3}
    for questions, answers in joined:
        assert len(questions.split("; ")) == len(answers.split("; "))
        for question, answer in zip(questions.split("; "), answers.split("; "), strict=True):
            assert datetime.date.fromisoformat(answer).strftime("%b") in question
    with_filler = list(islice(pairs("dates+5"), 300))
    n_filler = {sum(word in FILLER_WORDS for word in question.split()) for question, _ in with_filler}
    assert n_filler >= {0, 1, 2, 3, 4, 5}
    for question, answer in with_filler:
        date = " ".join(word for word in question.split() if word not in FILLER_WORDS).replace("of ", "")
        assert datetime.date.fromisoformat(answer).strftime("%B")[:3] in date


@pytest.mark.parametrize("name", ["dates:0", "dates:", "dates:x", "dates:1000", "copy+3", "date", "dates:3:3", ""])
def test_unknown_tasks_are_refused(name):
    assert not is_task(name)
    with pytest.raises(ConfigError, match="no task"):
        next(pairs(name))

"""Synthetic tasks: unlimited generated data whose answers are exactly right or wrong.

`pairs("dates", seed=1)` yields (question, answer) pairs without end, the same ones for the same seed. Two variants are
longer but no harder: "dates:3" joins one to three questions, "dates+9" surrounds each with up to nine filler words. As
a corpus for a language model, a pair is one line: the question, a tab, the answer.
"""

import datetime
import random
import re
from collections.abc import Callable, Iterator
from itertools import islice

from headway.data.records import Pair
from headway.errors import ConfigError, suggest

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
WORDS += ["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
FILLER_TEXT = (
    "the old train from our town left early and no one saw it again until a letter came with news of snow so we went "
    "home by boat then she wrote that all was well but he never read what they sent"
)
FILLER_WORDS = FILLER_TEXT.split()
LETTER_TASKS = ("copy", "reverse", "sort")  # no filler words: their questions are words themselves
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _random_word(rng: random.Random) -> str:
    return "".join(rng.choices(LETTERS, k=rng.randint(1, 12)))


def copy(rng: random.Random) -> tuple[str, str]:
    word = _random_word(rng)
    return word, word


def reverse(rng: random.Random) -> tuple[str, str]:
    word = _random_word(rng)
    return word, word[::-1]


def sort(rng: random.Random) -> tuple[str, str]:
    word = _random_word(rng)
    return word, "".join(sorted(word))


def dates(rng: random.Random) -> tuple[str, str]:
    """ "3rd of March 1987" → "1987-03-03", and other date formats."""
    day = datetime.date(1900, 1, 1) + datetime.timedelta(days=rng.randrange(200 * 365))
    month = day.strftime("%B")
    suffix = "th" if 10 < day.day < 14 else {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10, "th")
    forms = (
        f"{day.day}{suffix} of {month} {day.year}",
        f"{month} {day.day}, {day.year}",
        f"{day.day} {month[:3]} {day.year}",
        f"{day.strftime('%A')}, {month} {day.day}{suffix}, {day.year}",
    )
    return rng.choice(forms), day.isoformat()


def in_words(n: int) -> str:
    """An integer in English words.

    >>> in_words(4027)
    'four thousand twenty-seven'
    """
    if n < 20:
        return WORDS[n]
    if n < 100:
        return TENS[n // 10] + (f"-{WORDS[n % 10]}" if n % 10 else "")
    for size, name in ((1_000_000, "million"), (1000, "thousand"), (100, "hundred")):
        if n >= size:
            remainder = n % size
            return f"{in_words(n // size)} {name}" + (f" {in_words(remainder)}" if remainder else "")
    raise AssertionError(n)


def numbers(rng: random.Random) -> tuple[str, str]:
    n = rng.randrange(10 ** rng.randint(1, 6))
    return str(n), in_words(n)


def arithmetic(rng: random.Random) -> tuple[str, str]:
    a, b = (rng.randrange(10 ** rng.randint(1, 3)) for _ in range(2))
    sign = rng.choice("+-*")
    answer = {"+": a + b, "-": a - b, "*": a * b}[sign]
    return f"{a}{sign}{b}", str(answer)


TASKS: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "copy": copy,
    "reverse": reverse,
    "sort": sort,
    "dates": dates,
    "numbers": numbers,
    "arithmetic": arithmetic,
}


def pairs(task: str, *, seed: int = 0) -> Iterator[tuple[str, str]]:
    """Endless (question, answer) pairs; the same for the same seed."""
    if not is_task(task):
        raise ConfigError(f"no task {task!r}." + suggest(task, TASKS, otherwise=f" The tasks are: {', '.join(TASKS)}"))
    rng, (name, max_joined, max_filler) = random.Random(f"{task} {seed}"), _parse(task)
    while True:
        joined = [TASKS[name](rng) for _ in range(rng.randint(1, max_joined) if max_joined > 1 else 1)]
        questions = [_add_filler(rng, question, max_filler) if max_filler else question for question, _ in joined]
        yield "; ".join(questions), "; ".join(answer for _, answer in joined)


def _add_filler(rng: random.Random, question: str, max_filler: int) -> str:
    words = rng.choices(FILLER_WORDS, k=rng.randint(0, max_filler))
    index = rng.randint(0, len(words))
    return " ".join([*words[:index], question, *words[index:]])


def _parse(name: str) -> tuple[str, int, int]:
    """(task, most joined questions, most filler words); the task is "" if the name is invalid."""
    match = re.fullmatch(r"([a-z]+)(?::(\d{1,3}))?(?:\+(\d{1,3}))?", name, re.ASCII)
    task, max_joined, max_filler = match.groups() if match else ("", None, None)
    if task not in TASKS or max_joined == "0" or (max_filler is not None and task in LETTER_TASKS):
        return "", 0, 0
    return task, int(max_joined or 1), int(max_filler or 0)


def is_task(name: str) -> bool:
    """Whether the name is a task or a longer variant of one, such as "dates:3" or "dates+9"."""
    return bool(_parse(name)[0])


def task_pairs(task: str, *, n: int = 20_000, seed: int = 0) -> Iterator[Pair]:
    """The first n pairs of a task, as records."""
    for question, answer in islice(pairs(task, seed=seed), n):
        yield Pair(question, answer)

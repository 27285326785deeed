"""Generated tasks with exact answers: no data to find, no end to it, and right or wrong is never in doubt.

`pairs("dates", seed=1)` yields (question, answer) for ever, the same ones for the same seed. Longer sentences that are
no harder: "dates:3" has one to three of them in a row, "dates+9" each among up to nine other words. As a corpus for a
language model, a pair is one line: the question, a tab, the answer. `exact_match` scores answers.
"""

import datetime
import random
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from headway.data.records import Pair
from headway.errors import ConfigError, InputError, suggest

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
WORDS += ["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
OTHER_WORDS = ["the", "old", "train", "from", "our", "town", "left", "early", "and", "no", "one", "saw", "it"]
OTHER_WORDS += ["again", "until", "a", "letter", "came", "with", "news", "of", "snow", "so", "we", "went", "home", "by"]
OTHER_WORDS += ["boat", "then", "she", "wrote", "that", "all", "was", "well", "but", "he", "never", "read", "what"]
OTHER_WORDS += ["they", "sent"]
OF_LETTERS = ("copy", "reverse", "sort")  # whose questions would be words among words
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _letters(rng: random.Random) -> str:
    return "".join(rng.choices(LETTERS, k=rng.randint(1, 12)))


def copy(rng: random.Random) -> tuple[str, str]:
    word = _letters(rng)
    return word, word


def reverse(rng: random.Random) -> tuple[str, str]:
    word = _letters(rng)
    return word, word[::-1]


def sort(rng: random.Random) -> tuple[str, str]:
    word = _letters(rng)
    return word, "".join(sorted(word))


def dates(rng: random.Random) -> tuple[str, str]:
    """ "3rd of March 1987" → "1987-03-03", and other ways to write a date."""
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
    """
    >>> in_words(4027)
    'four thousand twenty-seven'
    """
    if n < 20:
        return WORDS[n]
    if n < 100:
        return TENS[n // 10] + (f"-{WORDS[n % 10]}" if n % 10 else "")
    for size, name in ((1_000_000, "million"), (1000, "thousand"), (100, "hundred")):
        if n >= size:
            rest = n % size
            return f"{in_words(n // size)} {name}" + (f" {in_words(rest)}" if rest else "")
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
    """Questions and answers without end; the same for the same seed."""
    if not is_task(task):
        raise ConfigError(f"no task {task!r}." + suggest(task, TASKS, otherwise=f" There are: {', '.join(TASKS)}"))
    rng, (name, in_a_row, n_words) = random.Random(f"{task} {seed}"), _parse(task)
    while True:
        some = [TASKS[name](rng) for _ in range(rng.randint(1, in_a_row) if in_a_row > 1 else 1)]
        questions = [_among(rng, question, n_words) if n_words else question for question, _ in some]
        yield "; ".join(questions), "; ".join(answer for _, answer in some)


def _among(rng: random.Random, question: str, n_words: int) -> str:
    words = rng.choices(OTHER_WORDS, k=rng.randint(0, n_words))
    place = rng.randint(0, len(words))
    return " ".join([*words[:place], question, *words[place:]])


def _parse(name: str) -> tuple[str, int, int]:
    """A task, how many at most are in a row, and among how many other words at most each stands."""
    match = re.fullmatch(r"([a-z]+)(?::(\d{1,3}))?(?:\+(\d{1,3}))?", name, re.ASCII)
    task, in_a_row, n_words = match.groups() if match else ("", None, None)
    if task not in TASKS or in_a_row == "0" or (n_words is not None and task in OF_LETTERS):
        return "", 0, 0
    return task, int(in_a_row or 1), int(n_words or 0)


def is_task(name: str) -> bool:
    """Whether it is one of the tasks, or longer sentences of one, such as "dates:3" and "dates+9"."""
    return bool(_parse(name)[0])


def task_pairs(task: str, *, n: int = 20_000, seed: int = 0) -> Iterator[Pair]:
    """The first n of them, as a data source."""
    for question, answer in islice(pairs(task, seed=seed), n):
        yield Pair(question, answer)


def exact_match(answers: Iterable[str], expected: Iterable[str]) -> float:
    """The share of answers that are right to the letter, but for spaces at their ends.

    >>> exact_match(["1987-03-03", "1987-03-04 "], ["1987-03-03", "1987-03-03"])
    0.5
    """
    right = [answer.strip() == wanted.strip() for answer, wanted in zip(answers, expected, strict=True)]
    if not right:
        raise InputError("there is no answer to score")
    return sum(right) / len(right)

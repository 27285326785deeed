"""The pairs "grammar": sentences with planted errors of agreement and articles, and the sentences without them.

    The young woman buy an red lamp, and close door.      The young woman buys a red lamp, and closes the door.

The right side is a sentence of `phrases` or of the prose of `pydocs`. An error replaces a verb form by the other one
of its pair, "a" by "an" or "an" by "a", or leaves out "the". One sentence in five stays right.
"""

import random
import re
from collections.abc import Iterator

from headway.data.phrases import VERBS, phrases
from headway.data.prose import prose_sentences
from headway.data.records import Pair

MAX_WORDS = 20
MAX_ERRORS = 2  # per sentence
RIGHT_FRACTION = 0.2  # of the sentences
SEED = 1

AGREEMENT = ["is are", "was were", "has have", "does do", "knows know", "says say", "hopes hope", "wants want",
             "sleeps sleep", "laughs laugh", "waits wait"]  # fmt: skip
AGREEMENT += [f"{verb.third.split()[0]} {verb.english.split()[0]}" for verb in VERBS]
SWAPS: dict[str, str] = {"a": "an", "an": "a"}  # a word → the wrong one in its place
for _third, _base in map(str.split, AGREEMENT):
    SWAPS |= {_third: _base, _base: _third}
DROPPED = "the"
BASE_FORMS = {entry.split()[1] for entry in AGREEMENT}
TAKES_BASE_FORM = re.compile(r"\b(?:do|does|did|can|could|must|may|might|will|would|should|to|not)\b", re.IGNORECASE)


def plant_errors(sentence: str, rng: random.Random) -> str:
    """The sentence with one or two errors, or as it is if nothing in it can be made wrong."""
    words = sentence.split(" ")
    candidates = [i for i in range(len(words)) if _can_be_wrong(words, i)]
    for i in rng.sample(candidates, min(len(candidates), rng.randint(1, MAX_ERRORS))):
        words[i] = "" if words[i] == DROPPED else _swapped(words[i])
    return " ".join(filter(None, words))


def _can_be_wrong(words: list[str], i: int) -> bool:
    """Whether the word has a wrong form that agreement or the next sound rules out; "does she buy", "to buy" have none
    that is about agreement."""
    if words[i] == DROPPED:
        return i > 0
    if words[i].lower() not in SWAPS:
        return False
    follows_auxiliary = bool(TAKES_BASE_FORM.search(" ".join(words[max(i - 4, 0) : i])))
    return words[i] not in BASE_FORMS or not follows_auxiliary


def _swapped(word: str) -> str:
    wrong = SWAPS[word.lower()]
    return wrong[0].upper() + wrong[1:] if word[0].isupper() else wrong


def grammar_errors() -> Iterator[Pair]:
    """Pairs (with errors, right) of short sentences, always the same ones."""
    rng = random.Random(SEED)
    for sentence in [pair.source for pair in phrases()] + list(prose_sentences()):
        if len(sentence.split()) > MAX_WORDS:
            continue
        is_right = rng.random() < RIGHT_FRACTION
        yield Pair(sentence if is_right else plant_errors(sentence, rng), sentence)

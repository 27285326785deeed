"""The prose of `pydocs`: paragraphs and sentences without headings, code, grammar rules and tables.

A paragraph is a block of lines with one indentation, or a list item. Prose starts with a capital, ends like a sentence,
and has mostly words: the text of the reference has all three, its code has not.
"""

import re
from collections.abc import Iterator
from functools import cache
from itertools import chain

BULLET = re.compile(r"^(?:[*-]|\d+\.) +")
NOT_PROSE = re.compile(r"::=|^[|+>]|https?://|\*\*\*|===|---|(?:^|\s)(?:#|>>>|\.\.\.)\s|(?:New|Changed) in version")
ABBREVIATIONS = r"(?<!e\.g\.)(?<!i\.e\.)(?<!etc\.)(?<!vs\.)(?<!cf\.)"
SENTENCE_END = re.compile(rf"(?<=[.?!]){ABBREVIATIONS} +(?=[A-Z\"(*])")
WORD = re.compile(r"[A-Za-z][a-z]*[.,;:?!]?")
MIN_WORD_FRACTION = 0.6  # of the tokens of a paragraph


@cache
def prose_topics() -> tuple[tuple[str, ...], ...]:
    """The paragraphs of prose of every help topic of CPython, each on one line; none is repeated."""
    from pydoc_data.topics import topics

    seen: set[str] = set()
    paragraphs_by_topic = []
    for name in sorted(topics):
        texts = dict.fromkeys(map(paragraph_of, re.split(r"\n\s*\n", topics[name])))
        paragraphs_by_topic.append(tuple(text for text in texts if text and text not in seen))
        seen.update(paragraphs_by_topic[-1])
    return tuple(paragraphs_by_topic)


def paragraph_of(block: str) -> str:
    """A block of lines as one line, or "" if it is not prose."""
    lines = block.strip("\n").split("\n")
    margin = len(lines[0]) - len(lines[0].lstrip())
    if bullet := BULLET.match(lines[0][margin:]):
        lines[0] = " " * len(bullet[0]) + lines[0][len(bullet[0]) :]
        margin += len(bullet[0])
    if any(len(line) - len(line.lstrip()) != margin or NOT_PROSE.search(line) for line in lines):
        return ""
    text = " ".join(re.sub(r"(?<=\w)-\n +|(?<=\w-)\n", "", "\n".join(lines)).split())
    words = text.split()
    is_text = re.match(r"[A-Z]", text) and re.search(r"[a-z)\"*][.?!]$", text) and len(words) > 2
    return text if is_text and len(WORD.findall(text)) >= MIN_WORD_FRACTION * len(words) else ""


def sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph: it is cut where an end mark is followed by a space and a capital.

    >>> sentences('Names refer to objects, e.g. "x". They are bound. See below.')
    ['Names refer to objects, e.g. "x".', 'They are bound.', 'See below.']
    """
    return SENTENCE_END.split(paragraph)


def prose_sentences() -> Iterator[str]:
    """Every sentence of prose, once."""
    paragraphs = chain.from_iterable(prose_topics())
    yield from dict.fromkeys(chain.from_iterable(map(sentences, paragraphs)))

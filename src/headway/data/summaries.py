"""The pairs "summaries": a passage of CPython's own documentation, and its first sentence as its summary.

Reference prose opens a paragraph with what it is about, and PEP 257 asks that a docstring open with a summary line. A
passage is a docstring of `stdlib`, or one or more paragraphs in a row of a `pydocs` topic; no text is in two passages,
and what is beyond `MAX_WORDS` is cut off. The summary is the first sentence without its remarks in parentheses: a model
learns to find it, to copy it, and to leave something out.
"""

import re
from collections.abc import Iterator
from functools import cache
from itertools import chain

from headway.data.prose import paragraph_of, prose_topics, sentences
from headway.data.records import Pair
from headway.data.stdlib_sources import stdlib

MIN_WORDS = 15  # of a passage, which has at least twice as many as its summary
MAX_WORDS = 60
MIN_SUMMARY_WORDS, MAX_SUMMARY_WORDS = 4, 25
PARENTHESES = re.compile(r" \([^()]*\)(?!\w)")
DOCSTRING = re.compile(r'^\s*[rR]?"""\s*([A-Z][^"]{20,}?)\s*"""', re.MULTILINE)


def summary_of(passage: str) -> str:
    """The first sentence, without parentheses.

    >>> summary_of("A name (or identifier) refers to an object. Names are bound by assignment.")
    'A name refers to an object.'
    """
    return PARENTHESES.sub("", sentences(passage)[0])


def _summary(passage: str) -> str | None:
    """The summary of a passage, or None if it is not much shorter than the passage."""
    summary = summary_of(passage)
    n_words = len(summary.split())
    is_shorter = len(passage.split()) >= max(MIN_WORDS, 2 * n_words)
    return summary if is_shorter and MIN_SUMMARY_WORDS <= n_words <= MAX_SUMMARY_WORDS else None


def _topic_passages() -> Iterator[str]:
    for paragraphs in prose_topics():
        passage = ""
        for paragraph in paragraphs:
            passage = f"{passage} {paragraph}".strip()
            if len(passage.split()) >= max(MIN_WORDS, 2 * len(summary_of(passage).split())):
                yield passage
                passage = ""


def _docstrings() -> Iterator[str]:
    """The prose of docstrings: a summary line, and paragraphs that end like a sentence."""
    for source in stdlib():
        for match in DOCSTRING.finditer(source):
            first, *others = re.split(r"\n\s*\n", match[1])
            if (summary := paragraph_of(first)) and (texts := list(filter(None, map(paragraph_of, others)))):
                yield " ".join([summary, *texts])


@cache
def _summaries() -> tuple[Pair, ...]:
    pairs: dict[str, Pair] = {}
    for passage in chain(_topic_passages(), _docstrings()):
        summary = _summary(passage)
        if summary is not None and summary not in pairs:
            pairs[summary] = Pair(" ".join(passage.split()[:MAX_WORDS]), summary)
    return tuple(pairs.values())


def summaries() -> Iterator[Pair]:
    """Pairs (passage, summary), always the same ones for a version of Python; no two have the same summary."""
    return iter(_summaries())

"""Built-in corpora: text that ships with every CPython, generated tasks and pairs, and reviews from an installed
package."""

import random
from collections.abc import Callable, Iterator
from functools import partial

from headway.data.contractions import contractions
from headway.data.grammar_errors import grammar_errors
from headway.data.movie_reviews import REVIEW_SOURCES, movie_reviews
from headway.data.phrases import phrases
from headway.data.records import Kind, Record
from headway.data.stdlib_sources import stdlib
from headway.data.summaries import summaries
from headway.data.synthetic_tasks import TASKS, is_task, task_pairs

LETTER_DOCUMENTS, LETTERS_PER_DOCUMENT = 400, 500


def pydocs() -> Iterator[str]:
    """CPython's help topics: about 80 documents, 0.5 MB of English."""
    from pydoc_data.topics import topics

    for name in sorted(topics):
        yield topics[name]


def letters() -> Iterator[str]:
    """Random letters from a to h: 400 documents, 0.2 MB. Nothing can be predicted, so no model that does not see its
    targets gets below log2(8) = 3 bits per byte."""
    rng = random.Random("letters")
    for _ in range(LETTER_DOCUMENTS):
        yield "".join(rng.choices("abcdefgh", k=LETTERS_PER_DOCUMENT))


PAIR_SETS: dict[str, Callable[[], Iterator[Record]]] = {
    "phrases": phrases,
    "summaries": summaries,
    "contractions": contractions,
    "grammar": grammar_errors,
}
CORPORA: dict[str, Callable[[], Iterator[Record]]] = {
    "pydocs": pydocs,
    "stdlib": stdlib,
    "letters": letters,
    **{name: partial(task_pairs, name) for name in TASKS},
    **PAIR_SETS,
    **{name: partial(movie_reviews, name) for name in REVIEW_SOURCES},
}


CORPUS_KINDS: dict[str, Kind] = {  # of those that are neither text nor tasks; also of registered datasets
    **dict.fromkeys(PAIR_SETS, "pairs"),
    **dict.fromkeys(REVIEW_SOURCES, "labelled"),
}


def corpus_kind(name: str) -> Kind:
    """The kind of records of a built-in or registered corpus."""
    return CORPUS_KINDS.get(name, "pairs" if is_task(name) else "text")


def corpus(name: str) -> Callable[[], Iterator[Record]] | None:
    """The function that reads the built-in corpus `name`, or None if there is no such corpus."""
    return partial(task_pairs, name) if is_task(name) else CORPORA.get(name)

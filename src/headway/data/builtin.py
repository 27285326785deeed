"""Built-in corpora: text that ships with every CPython, generated tasks, and reviews from an installed package."""

import random
import sysconfig
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from headway.data.movie_reviews import REVIEW_SOURCES, movie_reviews
from headway.data.records import Kind, Record
from headway.data.synthetic_tasks import TASKS, is_task, task_pairs

LETTER_DOCUMENTS, LETTERS_PER_DOCUMENT = 400, 500


def pydocs() -> Iterator[str]:
    """CPython's help topics: about 80 documents, 0.5 MB of English."""
    from pydoc_data.topics import topics

    for name in sorted(topics):
        yield topics[name]


def stdlib() -> Iterator[str]:
    """The source of CPython's standard library, one document per module: about 12 MB of Python, without its tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    skipped = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "pydoc_data"}
    for file in sorted(f for f in root.rglob("*.py") if not skipped.intersection(f.relative_to(root).parts)):
        try:
            text = file.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue  # a few test inputs use other encodings on purpose
        if text.strip():
            yield text


def letters() -> Iterator[str]:
    """Random letters from a to h: 400 documents, 0.2 MB. Nothing can be predicted, so no model that does not see its
    targets gets below log2(8) = 3 bits per byte."""
    rng = random.Random("letters")
    for _ in range(LETTER_DOCUMENTS):
        yield "".join(rng.choices("abcdefgh", k=LETTERS_PER_DOCUMENT))


CORPORA: dict[str, Callable[[], Iterator[Record]]] = {
    "pydocs": pydocs,
    "stdlib": stdlib,
    "letters": letters,
    **{name: partial(task_pairs, name) for name in TASKS},
    **{name: partial(movie_reviews, name) for name in REVIEW_SOURCES},
}


CORPUS_KINDS: dict[str, Kind] = dict.fromkeys(REVIEW_SOURCES, "labelled")  # also of registered datasets


def corpus_kind(name: str) -> Kind:
    """The kind of records of a built-in or registered corpus."""
    return CORPUS_KINDS.get(name, "pairs" if is_task(name) else "text")


def corpus(name: str) -> Callable[[], Iterator[Record]] | None:
    """The function that reads the built-in corpus `name`, or None if there is no such corpus."""
    return partial(task_pairs, name) if is_task(name) else CORPORA.get(name)

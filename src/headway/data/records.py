"""What a data source is made of, by kind: the five shapes that text comes in.

| kind | record | for |
|---|---|---|
| text | `str` | language models |
| pairs | `Pair` | translation and everything else from text to text |
| labelled | `Labelled` | classification |
| tagged | `Tagged` | a tag for every word |
| questions | `Question` | answers that are a stretch of the text |
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

Kind = Literal["text", "pairs", "labelled", "tagged", "questions"]
LINES = 100  # pairs in one document, where pairs are read as text


@dataclass(frozen=True, slots=True)
class Pair:
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Labelled:
    text: str
    label: str


@dataclass(frozen=True, slots=True)
class Tagged:
    words: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    start: int  # in characters of the context


@dataclass(frozen=True, slots=True)
class Question:
    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]  # none: the context does not say


Record = str | Pair | Labelled | Tagged | Question


def texts_of(record: Record) -> tuple[str, ...]:
    """Every text in a record, as a tokenizer meets them."""
    match record:
        case Pair():
            return record.source, record.target
        case Labelled():
            return (record.text,)
        case Tagged():
            return (" ".join(record.words),)
        case Question():
            return record.question, record.context
        case _:
            return (record,)


def key_of(record: Record) -> str:
    """What decides on which side of a split a record falls: two with the same key are never parted.

    Of a pair it is the source, so that no sentence is both learned and tested with another translation; of a question
    it is the context, which many questions share.
    """
    match record:
        case Pair():
            return record.source
        case Question():
            return record.context
        case _:
            return "\t".join(texts_of(record))


def documents_of(records: Iterable[Record]) -> Iterator[str]:
    """Records as a language model reads them: pairs and labelled texts a line each, questions by their contexts."""
    lines: list[str] = []
    last_context = None
    for record in records:
        match record:
            case str():
                yield record
            case Question():
                if record.context != last_context:
                    yield record.context
                last_context = record.context
            case Tagged():
                lines.append(" ".join(record.words) + "\n")
            case Labelled():
                lines.append(f"{record.text}\t{record.label}\n")
            case Pair():
                lines.append(f"{record.source}\t{record.target}\n")
        if len(lines) == LINES:
            yield "".join(lines)
            lines = []
    if lines:
        yield "".join(lines)


def first(records: Iterable[Record], n: int) -> list[Record]:
    return list(islice(records, n))

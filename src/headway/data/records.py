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
from typing import Literal, TypeVar

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
    """Records as a language model reads them: pairs, labels and tags as lines, questions by their contexts."""
    return (document for _, document in grouped(("", record) for record in records))


RecordPart = TypeVar("RecordPart", bound=str)


def grouped(dealt: Iterable[tuple[RecordPart, Record]]) -> Iterator[tuple[RecordPart, str]]:
    """The same for records of several parts, each with documents of its own."""
    lines: dict[RecordPart, list[str]] = {}
    last_context: dict[RecordPart, str] = {}
    for part, record in dealt:
        match record:
            case str():
                yield part, record
                continue
            case Question():
                if record.context != last_context.get(part):
                    yield part, record.context
                last_context[part] = record.context
                continue
            case Tagged():
                line = " ".join(record.words)
            case Labelled():
                line = f"{record.text}\t{record.label}"
            case Pair():
                line = f"{record.source}\t{record.target}"
        some = lines.setdefault(part, [])
        some.append(f"{line}\n")
        if len(some) == LINES:
            yield part, "".join(some)
            lines[part] = []
    yield from ((part, "".join(some)) for part, some in lines.items() if some)

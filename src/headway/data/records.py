"""The records of a data source, one dataclass per kind of data.

| kind | record | used for |
|---|---|---|
| text | `str` | language models |
| pairs | `Pair` | translation and other text-to-text tasks |
| labelled | `LabelledText` | text classification |
| tagged | `TaggedSentence` | token classification: a tag for every word |
| questions | `Question` | extractive question answering |
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

Kind = Literal["text", "pairs", "labelled", "tagged", "questions"]
LINES_PER_DOCUMENT = 100  # when pairs, labels or tags are read as text


@dataclass(frozen=True, slots=True)
class Pair:
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class LabelledText:
    text: str
    label: str | tuple[str, ...]  # multi-label data: any number of labels
    text_pair: str | None = None  # a second text, to classify two together

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.label,) if isinstance(self.label, str) else self.label


@dataclass(frozen=True, slots=True)
class TaggedSentence:
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
    answers: tuple[Answer, ...]  # empty: unanswerable from this context


KIND_NAMES = {
    "text": "text",
    "pairs": "pairs",
    "labelled": "labelled texts",
    "tagged": "tagged words",
    "questions": "questions",
}

Record = str | Pair | LabelledText | TaggedSentence | Question


def texts_of(record: Record) -> tuple[str, ...]:
    """All texts of a record, as a tokenizer encodes them."""
    match record:
        case Pair():
            return record.source, record.target
        case LabelledText():
            return (record.text,) if record.text_pair is None else (record.text, record.text_pair)
        case TaggedSentence():
            return (" ".join(record.words),)
        case Question():
            return record.question, record.context
        case _:
            return (record,)


def is_empty(record: Record) -> bool:
    """Whether a record is useless for training: no text, or a pair with an empty side."""
    if isinstance(record, str):
        return not record or record.isspace()
    blank = [not text or text.isspace() for text in texts_of(record)]
    return any(blank) if isinstance(record, Pair) else all(blank)


def split_key(record: Record) -> str:
    """The text whose hash assigns a record to a split: records with equal keys always share a split.

    For a pair it is the source, so that no test sentence is trained on with another translation; for a question it is
    the context, which many questions share.
    """
    match record:
        case Pair():
            return record.source
        case Question():
            return record.context
        case _:
            return "\t".join(texts_of(record))


def documents_of(records: Iterable[Record]) -> Iterator[str]:
    """Documents for a language model: pairs, labels and tags become lines, questions become their contexts."""
    return (document for _, document in documents_by_split(("", record) for record in records))


SplitT = TypeVar("SplitT", bound=str)


def documents_by_split(records: Iterable[tuple[SplitT, Record]]) -> Iterator[tuple[SplitT, str]]:
    """`documents_of` for (split, record) pairs; a document never mixes splits."""
    pending_lines: dict[SplitT, list[str]] = {}
    last_context: dict[SplitT, str] = {}
    for split, record in records:
        match record:
            case str():
                yield split, record
                continue
            case Question():
                if record.context != last_context.get(split):
                    yield split, record.context
                last_context[split] = record.context
                continue
            case TaggedSentence():
                line = " ".join(record.words)
            case LabelledText():
                line = "\t".join((*texts_of(record), ", ".join(record.labels)))
            case Pair():
                line = f"{record.source}\t{record.target}"
        lines = pending_lines.setdefault(split, [])
        lines.append(f"{line}\n")
        if len(lines) == LINES_PER_DOCUMENT:
            yield split, "".join(lines)
            pending_lines[split] = []
    yield from ((split, "".join(lines)) for split, lines in pending_lines.items() if lines)

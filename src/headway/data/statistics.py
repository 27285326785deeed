"""What is in a data source: counted as it is read, whatever its size."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import numpy as np

from headway.data.records import Labelled, Pair, Question, Record, Tagged, texts_of
from headway.data.sources import DataSource
from headway.data.splits import SPLIT_NAMES, CorpusScan, SplitFractions, digest_of, make_plan
from headway.errors import DataError
from headway.tokenizers import Tokenizer

SOME = 1 << 20  # characters encoded at a time


@dataclass
class DataSummary:
    source: str
    kind: str
    files: int
    records: int = 0  # documents, pairs, sentences, questions
    skipped: int = 0  # empty ones
    bytes: int = 0
    characters: int = 0
    tokens: int = 0
    unknown: int = 0  # tokens that are <unk>
    longest: dict[str, Any] = field(default_factory=dict)  # the record with most tokens
    duplicates: int = 0  # records that were there before, to the letter
    lengths: dict[str, int] = field(default_factory=dict)  # tokens of a record, in powers of two
    top_tokens: list[tuple[str, int]] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)  # labels, tags, or what else such data has
    split: dict[str, dict[str, int]] = field(default_factory=dict)  # records and bytes of each part
    split_by: str = "hash"
    samples: list[Any] = field(default_factory=list)


def summarize(
    source: DataSource,
    tokenizer: Tokenizer,
    shares: SplitFractions | None = None,
    *,
    samples: int = 3,
    limit: int | None = None,
    report: Callable[[int], None] = lambda n_bytes: None,
) -> DataSummary:
    """Read a source and say what is in it; `limit` stops after so many records."""
    shares = shares or SplitFractions()
    found = DataSummary(source.name, source.kind, len(source.files))
    counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    lengths: Counter[int] = Counter()
    labels: Counter[str] = Counter()
    digests: list[int] = []
    watched, by_hash = CorpusScan(shares), _no_parts()
    unknown = tokenizer.unk_id
    for some in _groups(islice(source.records(), limit)):
        texts = [texts_of(record) for record in some]
        encoded = tokenizer.encode_batch([text for record in texts for text in record])
        counts += np.bincount(np.fromiter(chain.from_iterable(encoded), dtype=np.int64), minlength=len(counts))
        sizes = map(len, encoded)
        for record, own in zip(some, texts, strict=True):
            n_tokens = sum(next(sizes) for _ in own)
            size = sum(len(text.encode()) for text in own)
            found.records += 1
            found.bytes += size
            found.characters += sum(map(len, own))
            found.tokens += n_tokens
            lengths[max(0, n_tokens - 1).bit_length()] += 1
            if not found.longest or n_tokens > found.longest["tokens"]:
                found.longest = {"number": found.records, "tokens": n_tokens, "bytes": size, "begins": own[0][:60]}
            labels.update(_labels(record))
            digests.append(int.from_bytes(digest_of(repr(record))[:8], "big"))
            _count(by_hash[watched.add(record)], size)
            if len(found.samples) < samples:
                found.samples.append(_sample(record))
            report(size)
    found.skipped = source.skipped
    found.unknown = int(counts[unknown]) if unknown is not None else 0
    found.duplicates = len(digests) - len(np.unique(np.array(digests, dtype=np.uint64)))
    found.lengths = {_range(power): lengths[power] for power in range(min(lengths), max(lengths) + 1)}
    top = np.argsort(-counts, kind="stable")[:10]
    found.top_tokens = [(_spelled(tokenizer, int(id)), int(counts[id])) for id in top if counts[id]]
    found.labels = dict(labels.most_common())
    try:
        plan = make_plan(watched.result(), shares, source.name)
    except DataError:  # too short to be split
        found.split_by, found.split = "none", {}
        return found
    found.split_by, found.split = "hash" if plan.cuts is None else "tail", by_hash
    if plan.cuts is not None:  # which only all the text could tell
        found.split = _no_parts()
        for part, record in plan.deal(islice(source.records(), limit)):
            _count(found.split[part], sum(len(text.encode()) for text in texts_of(record)))
    return found


def _no_parts() -> dict[str, dict[str, int]]:
    return {part: {"records": 0, "bytes": 0} for part in SPLIT_NAMES}


def _count(part: dict[str, int], n_bytes: int) -> None:
    part["records"] += 1
    part["bytes"] += n_bytes


def _groups(records: Iterator[Record]) -> Iterator[list[Record]]:
    some: list[Record] = []
    size = 0
    for record in records:
        some.append(record)
        size += sum(map(len, texts_of(record)))
        if size > SOME:
            yield some
            some, size = [], 0
    if some:
        yield some


def _range(power: int) -> str:
    """Lengths that a power of two stands for: 0-1, 2, 3-4, 5-8, …"""
    low, high = (1 << power - 1) + 1 if power else 0, 1 << power
    return f"{low}-{high}" if high > low else str(high)


def _labels(record: Record) -> list[str]:
    match record:
        case Labelled():
            return [record.label]
        case Tagged():
            return list(record.tags)
        case Question():
            return ["answered" if record.answers else "no answer"]
    return []


def _sample(record: Record) -> Any:
    """A record as something JSON can hold."""
    match record:
        case Pair():
            return {"source": record.source, "target": record.target}
        case Labelled():
            return {"text": record.text, "label": record.label}
        case Tagged():
            return {"words": list(record.words), "tags": list(record.tags)}
        case Question():
            answers = [answer.text for answer in record.answers]
            return {"question": record.question, "context": record.context[:200], "answers": answers}
    return record[:200]


def _spelled(tokenizer: Tokenizer, id: int) -> str:
    """A token as text, where it is text by itself."""
    text = tokenizer.decode([id], special=True)
    return text if text and "\ufffd" not in text else tokenizer.token(id)

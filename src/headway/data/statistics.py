"""Statistics of a data source, collected in one streaming pass."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import numpy as np

from headway.data.records import LabelledText, Pair, Question, Record, TaggedSentence, texts_of
from headway.data.sources import DataSource
from headway.data.splits import SPLIT_NAMES, CorpusScan, SplitFractions, digest_of, make_plan
from headway.errors import DataError
from headway.tokenizers import Tokenizer

ENCODE_BATCH_CHARS = 1 << 20


@dataclass
class DataSummary:
    source: str
    kind: str
    files: int
    records: int = 0  # documents, pairs, sentences, questions
    skipped: int = 0  # empty records
    bytes: int = 0
    characters: int = 0
    tokens: int = 0
    unknown: int = 0  # <unk> tokens
    longest: dict[str, Any] = field(default_factory=dict)  # the record with the most tokens
    duplicates: int = 0  # exact repetitions of an earlier record
    lengths: dict[str, int] = field(default_factory=dict)  # histogram of tokens per record, in powers of two
    top_tokens: list[tuple[str, int]] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)  # counts of labels, of tags, or of answered questions
    split: dict[str, dict[str, int]] = field(default_factory=dict)  # records and bytes per split
    split_by: str = "hash"
    samples: list[Any] = field(default_factory=list)


def summarize(
    source: DataSource,
    tokenizer: Tokenizer,
    fractions: SplitFractions | None = None,
    *,
    samples: int = 3,
    limit: int | None = None,
    on_progress: Callable[[int], None] = lambda n_bytes: None,
) -> DataSummary:
    """Read a source and summarise it; `limit` stops after that many records."""
    fractions = fractions or SplitFractions()
    summary = DataSummary(source.name, source.kind, len(source.files))
    token_counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    length_counts: Counter[int] = Counter()  # by the exponent of the next power of two
    labels: Counter[str] = Counter()
    digests: list[int] = []
    scan, hash_split = CorpusScan(fractions), _empty_split()
    for records in _batches(islice(source.records(), limit)):
        texts_by_record = [texts_of(record) for record in records]
        encoded = tokenizer.encode_batch([text for texts in texts_by_record for text in texts])
        all_ids = np.fromiter(chain.from_iterable(encoded), dtype=np.int64)
        token_counts += np.bincount(all_ids, minlength=len(token_counts))
        lengths = map(len, encoded)
        for record, texts in zip(records, texts_by_record, strict=True):
            n_tokens = sum(next(lengths) for _ in texts)
            n_bytes = sum(len(text.encode()) for text in texts)
            summary.records += 1
            summary.bytes += n_bytes
            summary.characters += sum(map(len, texts))
            summary.tokens += n_tokens
            length_counts[max(0, n_tokens - 1).bit_length()] += 1
            if not summary.longest or n_tokens > summary.longest["tokens"]:
                summary.longest = {
                    "number": summary.records,
                    "tokens": n_tokens,
                    "bytes": n_bytes,
                    "begins": texts[0][:60],
                }
            labels.update(_labels(record))
            digests.append(int.from_bytes(digest_of(repr(record))[:8], "big"))
            _count(hash_split[scan.add(record)], n_bytes)
            if len(summary.samples) < samples:
                summary.samples.append(_sample(record))
            on_progress(n_bytes)
    summary.skipped = source.skipped
    summary.unknown = int(token_counts[tokenizer.unk_id]) if tokenizer.unk_id is not None else 0
    summary.duplicates = len(digests) - len(np.unique(np.array(digests, dtype=np.uint64)))
    powers = range(min(length_counts), max(length_counts) + 1)
    summary.lengths = {_length_range(power): length_counts[power] for power in powers}
    top_ids = np.argsort(-token_counts, kind="stable")[:10]
    summary.top_tokens = [(_token_text(tokenizer, int(i)), int(token_counts[i])) for i in top_ids if token_counts[i]]
    summary.labels = dict(labels.most_common())
    try:
        plan = make_plan(scan.result(), fractions, source.name)
    except DataError:  # too short to split
        summary.split_by, summary.split = "none", {}
        return summary
    summary.split_by, summary.split = "hash" if plan.boundaries is None else "tail", hash_split
    if plan.boundaries is not None:  # known only after a full pass: count in a second one
        summary.split = _empty_split()
        for split, record in plan.assign(islice(source.records(), limit)):
            _count(summary.split[split], sum(len(text.encode()) for text in texts_of(record)))
    return summary


def _empty_split() -> dict[str, dict[str, int]]:
    return {split: {"records": 0, "bytes": 0} for split in SPLIT_NAMES}


def _count(totals: dict[str, int], n_bytes: int) -> None:
    totals["records"] += 1
    totals["bytes"] += n_bytes


def _batches(records: Iterator[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    n_chars = 0
    for record in records:
        batch.append(record)
        n_chars += sum(map(len, texts_of(record)))
        if n_chars > ENCODE_BATCH_CHARS:
            yield batch
            batch, n_chars = [], 0
    if batch:
        yield batch


def _length_range(power: int) -> str:
    """The lengths of a histogram bin: 0-1, 2, 3-4, 5-8, …"""
    low, high = (1 << power - 1) + 1 if power else 0, 1 << power
    return f"{low}-{high}" if high > low else str(high)


def _labels(record: Record) -> list[str]:
    match record:
        case LabelledText():
            return [record.label]
        case TaggedSentence():
            return list(record.tags)
        case Question():
            return ["answered" if record.answers else "no answer"]
    return []


def _sample(record: Record) -> Any:
    """A record as JSON types, long text shortened."""
    match record:
        case Pair():
            return {"source": record.source, "target": record.target}
        case LabelledText():
            return {"text": record.text, "label": record.label}
        case TaggedSentence():
            return {"words": list(record.words), "tags": list(record.tags)}
        case Question():
            answers = [answer.text for answer in record.answers]
            return {"question": record.question, "context": record.context[:200], "answers": answers}
    return record[:200]


def _token_text(tokenizer: Tokenizer, id: int) -> str:
    """The text of a token; for part of a character, its vocabulary entry."""
    text = tokenizer.decode([id], skip_special_tokens=False)
    return text if text and "\ufffd" not in text else tokenizer.token(id)

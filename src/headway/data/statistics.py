"""Statistics of a data source, collected in one streaming pass."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.data.records import LabelledText, Pair, Question, Record, TaggedSentence, texts_of
from headway.data.sources import DataSource
from headway.data.splits import SPLIT_NAMES, CorpusScan, CorpusStats, SplitFractions, make_plan, utf8_size
from headway.errors import DataError
from headway.tokenizers import Tokenizer
from headway.tokenizers.pre_tokenizers import text_pieces

ENCODE_BATCH_CHARS = 1 << 20
MAX_LENGTH_BITS = 48
SAMPLE_CHARS = 200
POWERS_OF_TWO = 1 << np.arange(MAX_LENGTH_BITS - 1)


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
    scan = _collect(summary, source, tokenizer, fractions, samples, limit, on_progress)
    try:
        plan = make_plan(scan, fractions, source.name)
    except DataError:  # too short to split
        summary.split_by, summary.split = "none", {}
        return summary
    if plan.boundaries is not None:  # known only after a full pass: count the tokens in a second one
        summary.split_by, summary.split = "tail", _empty_split()
        for split, record in plan.assign(chain.from_iterable(_limited(source.batches(), limit))):
            summary.split[split]["records"] += 1
            n_bytes = utf8_size(record) if isinstance(record, str) else sum(map(utf8_size, texts_of(record)))
            summary.split[split]["bytes"] += n_bytes
    return summary


def _collect(
    summary: DataSummary,
    source: DataSource,
    tokenizer: Tokenizer,
    fractions: SplitFractions,
    samples: int,
    limit: int | None,
    on_progress: Callable[[int], None],
) -> CorpusStats:
    """Read the source once and fill in all of the summary; its splits are those by hash."""
    token_counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    length_counts = np.zeros(MAX_LENGTH_BITS, dtype=np.int64)  # by the exponent of the next power of two
    labels: Counter[str] = Counter()
    digest_starts: list[NDArray[np.uint64]] = []  # to find duplicates
    split_sizes = np.zeros((2, len(SPLIT_NAMES)))  # records and bytes
    scan = CorpusScan(fractions)
    for batch in _limited(source.batches(), limit):
        stats = scan.add_batch(batch)
        lengths = _count_tokens(stats.distinct, stats.counts, tokenizer, token_counts)
        longest = int(lengths.argmax())
        if not summary.longest or lengths[longest] > summary.longest["tokens"]:
            record = stats.distinct[longest]
            summary.longest = {
                "number": summary.records + batch.index(record) + 1,
                "tokens": int(lengths[longest]),
                "bytes": int(stats.n_bytes[longest]),
                "begins": texts_of(record)[0][:60],
            }
        if source.kind != "text":
            for record, n in zip(stats.distinct, stats.counts.tolist(), strict=True):
                labels.update(dict.fromkeys(_labels(record), 0))  # in order of appearance
                for label in _labels(record):
                    labels[label] += n
        powers = np.searchsorted(POWERS_OF_TWO, lengths)
        length_counts += np.bincount(powers, weights=stats.counts, minlength=MAX_LENGTH_BITS).astype(np.int64)
        for sizes, weights in zip(split_sizes, (stats.counts, stats.counts * stats.n_bytes), strict=True):
            sizes += np.bincount(stats.splits, weights=weights, minlength=len(SPLIT_NAMES))
        digest_starts.append(stats.digests[:, :8].copy().view(np.uint64)[:, 0])
        n_chars = np.array([sum(map(len, texts_of(record))) for record in stats.distinct])
        summary.characters += int(n_chars @ stats.counts)
        summary.tokens += int(lengths @ stats.counts)
        summary.records += len(batch)
        summary.samples += map(_sample, batch[: samples - len(summary.samples)])
        on_progress(scan.n_bytes - summary.bytes)
        summary.bytes = scan.n_bytes
    summary.skipped = source.skipped
    summary.unknown = int(token_counts[tokenizer.unk_id]) if tokenizer.unk_id is not None else 0
    summary.duplicates = summary.records - len(np.unique(np.concatenate(digest_starts)))
    bins = np.flatnonzero(length_counts)
    summary.lengths = {_length_range(power): int(length_counts[power]) for power in range(bins[0], bins[-1] + 1)}
    top_ids = np.argsort(-token_counts, kind="stable")[:10]
    summary.top_tokens = [(_token_text(tokenizer, int(i)), int(token_counts[i])) for i in top_ids if token_counts[i]]
    summary.labels = dict(labels.most_common())
    for name, n_records, n_bytes in zip(SPLIT_NAMES, *split_sizes.tolist(), strict=True):
        summary.split[name] = {"records": int(n_records), "bytes": int(n_bytes)}
    return scan.result()


def _empty_split() -> dict[str, dict[str, int]]:
    return {split: {"records": 0, "bytes": 0} for split in SPLIT_NAMES}


def _limited(batches: Iterator[list[Record]], limit: int | None) -> Iterator[list[Record]]:
    """The first `limit` records; None: all."""
    if limit is None:
        yield from batches
        return
    for batch in batches:
        yield batch[:limit]
        limit -= len(batch)
        if limit <= 0:
            return


def _count_tokens(
    records: list[Record], counts: NDArray[np.int64], tokenizer: Tokenizer, token_counts: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The number of tokens of each record; adds to `token_counts` how often each token occurs if the records occur
    `counts` times. A long text is encoded in pieces: its tokens would take many times its memory."""
    n_tokens = np.zeros(len(records), dtype=np.int64)
    for rows, pieces in _encode_batches(records):
        encoded = tokenizer.encode_arrays(pieces)
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        np.add.at(n_tokens, rows, lengths)
        weights = np.repeat(counts[rows], lengths)
        token_counts += np.bincount(np.concatenate(encoded), weights, minlength=len(token_counts)).astype(np.int64)
    return n_tokens


def _encode_batches(records: list[Record]) -> Iterator[tuple[list[int], list[str]]]:
    """Pieces of text to encode together, each with the row of its record."""
    rows: list[int] = []
    pieces: list[str] = []
    n_chars = 0
    for row, record in enumerate(records):
        for text in texts_of(record):
            for piece in (text,) if len(text) <= ENCODE_BATCH_CHARS else text_pieces(text, ENCODE_BATCH_CHARS):
                rows.append(row)
                pieces.append(piece)
                n_chars += len(piece)
                if n_chars >= ENCODE_BATCH_CHARS:
                    yield rows, pieces
                    rows, pieces, n_chars = [], [], 0
    if pieces:
        yield rows, pieces


def _length_range(power: int) -> str:
    """The lengths of a histogram bin: 0-1, 2, 3-4, 5-8, …"""
    low, high = (1 << power - 1) + 1 if power else 0, 1 << power
    return f"{low}-{high}" if high > low else str(high)


def _labels(record: Record) -> list[str]:
    match record:
        case LabelledText():
            return list(record.labels)
        case TaggedSentence():
            return list(record.tags)
        case Question():
            return ["answered" if record.answers else "no answer"]
    return []


def _sample(record: Record) -> Any:
    """A record as JSON types, long text shortened."""
    match record:
        case Pair():
            return {"source": record.source[:SAMPLE_CHARS], "target": record.target[:SAMPLE_CHARS]}
        case LabelledText():
            pair = {} if record.text_pair is None else {"text_pair": record.text_pair[:SAMPLE_CHARS]}
            label = record.label if isinstance(record.label, str) else list(record.label)
            return {"text": record.text[:SAMPLE_CHARS], **pair, "label": label}
        case TaggedSentence():
            return {"words": [word[:SAMPLE_CHARS] for word in record.words], "tags": list(record.tags)}
        case Question():
            answers = [answer.text for answer in record.answers]
            return {"question": record.question, "context": record.context[:SAMPLE_CHARS], "answers": answers}
    return record[:SAMPLE_CHARS]


def _token_text(tokenizer: Tokenizer, id: int) -> str:
    """The text of a token; for part of a character, its vocabulary entry."""
    text = tokenizer.decode([id], skip_special_tokens=False)
    return text if text and "\ufffd" not in text else tokenizer.token(id)

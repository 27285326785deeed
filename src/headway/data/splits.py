"""Train, validation and test splits: deterministic, the same on every machine and in every run.

A hash of its content assigns each document to a split, so that adding one never moves another; pairs are assigned by
their source, questions by their context. A corpus of few documents holds out its end instead: … train | test | valid.
Data that comes with its own validation set uses that (`valid_path`).
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.config import DataConfig
from headway.data.readers import READER_KINDS, format_of
from headway.data.records import (
    LabelledText,
    Question,
    Record,
    TaggedSentence,
    documents_by_split,
    documents_of,
    split_key,
    texts_of,
)
from headway.data.sources import DataSource, locate, open_source
from headway.errors import ConfigError, DataError, suggest

MIN_HASH_DOCUMENTS = 20  # with fewer, "auto" holds out the end of the text
PIECE_CHARS = 1 << 20
SPLIT_METHODS = ("auto", "hash", "tail")
SplitName = Literal["train", "valid", "test"]
SPLIT_NAMES: tuple[SplitName, ...] = ("train", "valid", "test")


class Split(NamedTuple):
    train: list[str]
    valid: list[str]
    test: list[str]


def digest_of(text: str) -> bytes:
    """SHA-256 of a text in UTF-8."""
    if len(text) <= PIECE_CHARS:
        return hashlib.sha256(text.encode()).digest()
    digest = hashlib.sha256()
    for piece in _encoded_pieces(text):
        digest.update(piece)
    return digest.digest()


def utf8_size(text: str) -> int:
    """The size of a text in bytes of UTF-8."""
    return len(text) if text.isascii() else sum(map(len, _encoded_pieces(text)))


def _encoded_pieces(text: str) -> Iterator[bytes]:
    """A text in UTF-8, in pieces: a long one is not copied as a whole."""
    return (text[start : start + PIECE_CHARS].encode() for start in range(0, len(text), PIECE_CHARS))


def record_digest(record: Record) -> bytes:
    """A hash of a record. A large one is hashed text by text: its `repr` would be another copy."""
    if isinstance(record, str):
        return digest_of(record)
    texts = texts_of(record)
    if sum(map(len, texts)) <= PIECE_CHARS:
        return digest_of(repr(record))
    labels: dict[str, object] = {"label": record.label} if isinstance(record, LabelledText) else {}
    labels |= {"tags": record.tags} if isinstance(record, TaggedSentence) else {}
    labels |= {"id": record.id, "answers": record.answers} if isinstance(record, Question) else {}
    return digest_of(repr((type(record).__name__, labels, [digest_of(text) for text in texts])))


@dataclass(frozen=True)
class SplitFractions:
    """How much to hold out, and how."""

    valid_fraction: float = 0.1
    test_fraction: float = 0.0
    split: str = "auto"  # "hash", "tail"; "auto": by hash if there are enough documents

    def __post_init__(self) -> None:
        is_valid = self.valid_fraction >= 0 and self.test_fraction >= 0  # NaN is not
        if not is_valid or not self.valid_fraction + self.test_fraction < 1:
            raise ConfigError(
                f"valid_fraction={self.valid_fraction}, test_fraction={self.test_fraction}: the fractions of text held "
                f"out must not be negative, such as 0.1, and must sum to less than 1"
            )
        if self.split not in SPLIT_METHODS:
            raise ConfigError(
                f"split={self.split!r} is not one of {', '.join(SPLIT_METHODS)}." + suggest(self.split, SPLIT_METHODS)
            )

    @property
    def any_held_out(self) -> bool:
        return self.valid_fraction > 0 or self.test_fraction > 0

    def split_of(self, digest: bytes) -> SplitName:
        """The split of a document or record, from a hash of its content."""
        u = int.from_bytes(digest[:8], "big") / 2**64  # uniform in [0, 1)
        if u < self.valid_fraction:
            return "valid"
        return "test" if u < self.valid_fraction + self.test_fraction else "train"

    def splits_of(self, digests: Sequence[bytes]) -> NDArray[np.int64]:
        """`split_of` for many, as positions in SPLIT_NAMES."""
        starts = np.frombuffer(b"".join(digest[:8] for digest in digests), dtype=">u8")
        u = starts.astype(np.float64) / 2**64
        is_valid, is_held_out = u < self.valid_fraction, u < self.valid_fraction + self.test_fraction
        return np.where(is_valid, 1, np.where(is_held_out, 2, 0))


@dataclass(frozen=True)
class SplitPlan:
    """Assigns records to splits: by hash, or by two boundaries, counted in characters of running text or in records."""

    fractions: SplitFractions
    boundaries: tuple[int, int] | None = None  # end of train, end of test

    def assign(self, records: Iterable[Record]) -> Iterator[tuple[SplitName, Record]]:
        if not self.fractions.any_held_out:
            return (("train", record) for record in records)
        if self.boundaries is None:
            return ((self.fractions.split_of(digest_of(split_key(record))), record) for record in records)
        return self._cut(records, *self.boundaries)

    def _cut(self, records: Iterable[Record], train_end: int, test_end: int) -> Iterator[tuple[SplitName, Record]]:
        """By boundaries. Only running text is cut inside a record; an empty line stays in the training text."""
        offset = 0
        for record in records:
            end = offset + (len(record) if isinstance(record, str) else 1)
            if end <= train_end or end == offset:
                yield "train", record
            elif offset >= test_end:
                yield "valid", record
            elif train_end <= offset and end <= test_end:
                yield "test", record
            else:
                assert isinstance(record, str)
                parts: list[tuple[SplitName, str]] = [
                    ("train", record[: max(train_end - offset, 0)]),
                    ("test", record[max(train_end - offset, 0) : test_end - offset]),
                    ("valid", record[test_end - offset :]),
                ]
                yield from ((split, text) for split, text in parts if text)
            offset = end


@dataclass(frozen=True)
class BatchStats:
    """What a scan counts in a batch; arrays have one entry per distinct record, except `digests`."""

    distinct: list[Record]
    counts: NDArray[np.int64]  # how often the batch has each
    n_units: NDArray[np.int64]  # characters of running text, or 1
    n_bytes: NDArray[np.int64]
    splits: NDArray[np.int64]  # by hash, as positions in SPLIT_NAMES
    digests: NDArray[np.uint8]  # of all records of the batch, in order: (number of records, 32)


class CorpusScan:
    """Collects the statistics of a corpus in one pass, batch by batch."""

    def __init__(self, fractions: SplitFractions) -> None:
        self.fractions = fractions
        self.n_records = self.n_units = self.n_bytes = 0  # units: characters of running text, or records
        self.split_counts: dict[str, int] = dict.fromkeys(SPLIT_NAMES, 0)  # records per split, if split by hash
        self._digest = hashlib.sha256()

    def add_batch(self, batch: Sequence[Record]) -> BatchStats:
        """Count many records. Equal records, as short lines often are, are hashed once."""
        distinct = list(dict.fromkeys(batch))
        keys = digests = [record_digest(record) for record in distinct]
        if not all(isinstance(record, str) for record in distinct):
            keys = [digest_of(split_key(record)) for record in distinct]
        rows = np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 32)
        counts = np.ones(len(distinct), dtype=np.int64)
        if len(distinct) < len(batch):
            index = dict(zip(distinct, range(len(distinct)), strict=True))
            indices = np.fromiter(map(index.__getitem__, batch), dtype=np.int64, count=len(batch))
            rows, counts = rows[indices], np.bincount(indices)
        stats = BatchStats(
            distinct,
            counts,
            np.array([len(record) if isinstance(record, str) else 1 for record in distinct], dtype=np.int64),
            np.array([sum(map(utf8_size, texts_of(record))) for record in distinct], dtype=np.int64),
            self.fractions.splits_of(keys),
            rows,
        )
        self.n_records += len(batch)
        self.n_units += int(stats.n_units @ counts)
        self.n_bytes += int(stats.n_bytes @ counts)
        for name, n in zip(SPLIT_NAMES, np.bincount(stats.splits, weights=counts, minlength=3), strict=True):
            self.split_counts[name] += int(n)
        self._digest.update(rows.tobytes())
        return stats

    @property
    def digest(self) -> str:
        """Hash of all records, in order."""
        return self._digest.hexdigest()

    def tap(self, batches: Iterable[Sequence[Record]]) -> Iterator[Record]:
        """Count the records of batches, and pass them on one by one."""
        for batch in batches:
            self.add_batch(batch)
            yield from batch

    def result(self) -> "CorpusStats":
        return CorpusStats(self.n_records, self.n_units, self.n_bytes, self.digest, dict(self.split_counts))


@dataclass(frozen=True)
class CorpusStats:
    n_records: int
    n_units: int
    n_bytes: int
    digest: str
    split_counts: dict[str, int]


def scan(batches: Iterable[Sequence[Record]], fractions: SplitFractions) -> CorpusStats:
    corpus_scan = CorpusScan(fractions)
    for batch in batches:
        corpus_scan.add_batch(batch)
    return corpus_scan.result()


def make_plan(stats: CorpusStats, fractions: SplitFractions, name: str) -> SplitPlan:
    """By hash if there are enough documents, else by holding out the end."""
    fraction_by_split = {"train": 1.0, "valid": fractions.valid_fraction, "test": fractions.test_fraction}
    if fractions.split == "hash" or (fractions.split == "auto" and stats.n_records >= MIN_HASH_DOCUMENTS):
        if all(stats.split_counts[split] for split, fraction in fraction_by_split.items() if fraction):
            return SplitPlan(fractions)
        if fractions.split == "hash":
            raise DataError(
                f"{name}: {stats.n_records} documents are too few to split by hash: {stats.split_counts}; "
                f"hold out the end instead (split=tail), or give more"
            )
    n = stats.n_units
    train_end = round(n * (1 - fractions.valid_fraction - fractions.test_fraction))
    test_end = round(n * (1 - fractions.valid_fraction))
    sizes = {"train": train_end, "test": test_end - train_end, "valid": n - test_end}
    if any(not sizes[split] for split, fraction in fraction_by_split.items() if fraction):
        settings = f"valid_fraction={fractions.valid_fraction}" + (
            f", test_fraction={fractions.test_fraction}" if fractions.test_fraction else ""
        )
        hint = "give more text"
        if stats.n_records == 1:
            hint = "it is one record: separate its records (a blank line separates tagged sentences), or give more"
        raise DataError(f"{name} is too short to be split into training and held-out text with {settings}; {hint}")
    return SplitPlan(fractions, (train_end, test_end))


def split(documents: Iterable[str], valid: float, test: float = 0.0, mode: str = "auto") -> Split:
    """Split documents that are in memory."""
    documents = list(documents)
    fractions = SplitFractions(valid, test, mode)
    plan = make_plan(scan([documents], fractions), fractions, "this text")
    splits = Split([], [], [])
    for name, document in documents_by_split(plan.assign(documents)):
        getattr(splits, name).append(document)
    return splits


def split_records(source: DataSource, fractions: SplitFractions, split: SplitName) -> Iterator[Record]:
    """The records of one split. Only running text is ever cut inside a record."""
    if not fractions.any_held_out:
        return source.records() if split == "train" else iter(())
    plan = make_plan(scan(source.batches(), fractions), fractions, source.name)
    return (record for name, record in plan.assign(source.records()) if name == split)


# ── the [data] section of a recipe ────────────────────────────────────────────────────────────────────────────────


def sources_of(config: DataConfig) -> dict[str, tuple[DataSource, float]]:
    """The sources of a recipe with their mixture weights: `path`, or those of `mix`."""
    paths = dict(config.mix) or {config.path: 1.0}
    return {path: (_open(path, config, config.target_path), weight) for path, weight in paths.items()}


def split_source(config: DataConfig, split: SplitName) -> DataSource | None:
    """The source of a split that has its own path in the recipe (`valid_path`, `test_path`), else None."""
    path = {"valid": config.valid_path, "test": config.test_path}.get(split)
    return _open(path, config) if path else None


def _open(path: str, config: DataConfig, target_path: str | None = None) -> DataSource:
    return open_source(
        path,
        imports=False,
        root=config.root,
        format=config.format,
        text=config.text,
        pairs=config.pairs,
        target_path=target_path,
        label=config.label,
        text_pair=config.text_pair,
        label_separator=config.label_separator,
        separator=config.separator,
        tag_scheme=config.tag_scheme,
        errors=config.errors,
    )


def with_absolute_paths(config: DataConfig) -> DataConfig:
    """The config with absolute paths, valid from any working directory."""

    def absolute(path: str | None) -> str | None:
        return None if path is None else locate(path, config.root)

    registered = config.format == "auto" and format_of(config.path) in READER_KINDS  # the plug-in may be gone later
    return config.replace(
        format=format_of(config.path) if registered else config.format,
        path=locate(config.path, config.root),
        mix={locate(path, config.root): weight for path, weight in config.mix.items()},
        target_path=absolute(config.target_path),
        valid_path=absolute(config.valid_path),
        test_path=absolute(config.test_path),
        root=None,
    )


def split_fractions(config: DataConfig) -> SplitFractions:
    """The fractions of a recipe; a split with its own path takes nothing from the training data."""
    return SplitFractions(
        0.0 if config.valid_path else config.valid_fraction,
        0.0 if config.test_path else config.test_fraction,
        config.split,
    )


def load_documents(path: str, root: str | None = None, *, format: str = "auto") -> list[str]:
    """All documents of a source, in memory."""
    return list(open_source(path, root=root, format=format).documents())


def read_split(config: DataConfig, split: SplitName) -> Iterator[str]:
    """The documents of one split of a recipe's data."""
    source = split_source(config, split)
    if source is not None:
        return source.documents()
    fractions = split_fractions(config)
    sources = (source for source, _ in sources_of(config).values())
    return chain.from_iterable(documents_of(split_records(source, fractions, split)) for source in sources)

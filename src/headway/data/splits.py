"""What is learned from and what is held out: the same on every machine and in every run.

Documents are dealt by a hash of their content, so that adding one never moves another; pairs by their source and
questions by their context. A corpus of few documents holds out its end instead: … train | test | valid. Where the data
came with parts of its own, those are used (`valid_path`).
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple

from headway.config import DataConfig
from headway.data.records import Record, documents_of, grouped, key_of, texts_of
from headway.data.sources import DataSource, locate, open_source
from headway.errors import ConfigError, DataError, suggest

FEW = 20  # documents below which the end of the text is held out instead of every so-many-th document
SPLITS = ("auto", "hash", "tail")
SPLIT_NAMES = ("train", "valid", "test")
SplitName = Literal["train", "valid", "test"]


class Split(NamedTuple):
    train: list[str]
    valid: list[str]
    test: list[str]


def fraction(digest: bytes) -> float:
    """A number in [0, 1) from a hash of the content."""
    return int.from_bytes(digest[:8], "big") / 2**64


def digest_of(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


@dataclass(frozen=True)
class SplitFractions:
    """How much is held out, and how it is chosen."""

    valid_fraction: float = 0.1
    test_fraction: float = 0.0
    split: str = "auto"  # "hash", "tail"; "auto": by hash where there are documents enough

    def __post_init__(self) -> None:
        if self.valid_fraction < 0 or self.test_fraction < 0 or self.valid_fraction + self.test_fraction >= 1:
            raise ConfigError(
                f"valid_fraction={self.valid_fraction}, test_fraction={self.test_fraction} are the shares of text held out: each from 0 on, such as 0.1, "
                f"and less than 1 together"
            )
        if self.split not in SPLITS:
            raise ConfigError(f"split={self.split!r} is not one of {', '.join(SPLITS)}." + suggest(self.split, SPLITS))

    @property
    def hold_out(self) -> bool:
        return self.valid_fraction > 0 or self.test_fraction > 0

    def part(self, digest: bytes) -> SplitName:
        """The part of a document or record, by a hash of its content."""
        place = fraction(digest)
        return (
            "valid"
            if place < self.valid_fraction
            else "test"
            if place < self.valid_fraction + self.test_fraction
            else "train"
        )


@dataclass(frozen=True)
class SplitPlan:
    """What goes where: by hash; or by two cuts, in characters through all the text, or in records."""

    shares: SplitFractions
    cuts: tuple[int, int] | None = None  # end of train, end of test

    def deal(self, records: Iterable[Record]) -> Iterator[tuple[SplitName, Record]]:
        place = 0
        for record in records:
            if not self.shares.hold_out:
                yield "train", record
            elif self.cuts is None:
                yield self.shares.part(digest_of(key_of(record))), record
            elif record == "":  # an empty line
                yield "train", record
            elif isinstance(record, str):  # running text may be cut in two
                a, b = (min(max(cut - place, 0), len(record)) for cut in self.cuts)
                pieces: list[tuple[SplitName, str]] = [
                    ("train", record[:a]),
                    ("test", record[a:b]),
                    ("valid", record[b:]),
                ]
                yield from (piece for piece in pieces if piece[1])
                place += len(record)
            else:
                yield ("train" if place < self.cuts[0] else "test" if place < self.cuts[1] else "valid"), record
                place += 1


class CorpusScan:
    """What one reading of a source tells; fed record by record."""

    def __init__(self, shares: SplitFractions) -> None:
        self.shares = shares
        self.n_records = self.n_units = self.n_bytes = 0  # units: characters of running text, or records
        self.parts = dict.fromkeys(SPLIT_NAMES, 0)  # records that a split by hash gives each part
        self._digest = hashlib.sha256()

    def add(self, record: Record) -> SplitName:
        """Take a record in; the part that a split by hash gives it to."""
        self.n_records += 1
        if isinstance(record, str):  # by far the most, so with no more work than it takes
            data = record.encode()
            digest = key = hashlib.sha256(data).digest()
            self.n_units += len(record)
            self.n_bytes += len(data)
        else:
            digest, key = digest_of(repr(record)), digest_of(key_of(record))
            self.n_units += 1
            self.n_bytes += sum(len(text.encode()) for text in texts_of(record))
        self._digest.update(digest)
        part = self.shares.part(key)
        self.parts[part] += 1
        return part

    @property
    def digest(self) -> str:
        """Of all the content, in order."""
        return self._digest.hexdigest()

    def watch(self, records: Iterable[Record]) -> Iterator[Record]:
        """The same records, added as they pass."""
        for record in records:
            self.add(record)
            yield record

    def result(self) -> "CorpusStats":
        return CorpusStats(self.n_records, self.n_units, self.n_bytes, self.digest, dict(self.parts))


@dataclass(frozen=True)
class CorpusStats:
    n_records: int
    n_units: int
    n_bytes: int
    digest: str
    parts: dict[str, int]


def scan(records: Iterable[Record], shares: SplitFractions) -> CorpusStats:
    found = CorpusScan(shares)
    for record in records:
        found.add(record)
    return found.result()


def make_plan(found: CorpusStats, shares: SplitFractions, name: str) -> SplitPlan:
    """By hash where there are documents enough for it, else by cutting off the end."""
    wanted = {"train": 1.0, "valid": shares.valid_fraction, "test": shares.test_fraction}
    if shares.split == "hash" or (shares.split == "auto" and found.n_records >= FEW):
        if all(found.parts[part] for part, share in wanted.items() if share):
            return SplitPlan(shares)
        if shares.split == "hash":
            raise DataError(
                f"{name}: {found.n_records} documents are too few to split by hash: {found.parts}; "
                f"split off the end instead (split=tail), or give more"
            )
    n = found.n_units
    cuts = round(n * (1 - shares.valid_fraction - shares.test_fraction)), round(n * (1 - shares.valid_fraction))
    sizes = {"train": cuts[0], "test": cuts[1] - cuts[0], "valid": n - cuts[1]}
    if any(not sizes[part] for part, share in wanted.items() if share):
        shared = f"valid_fraction={shares.valid_fraction}" + (
            f", test_fraction={shares.test_fraction}" if shares.test_fraction else ""
        )
        raise DataError(
            f"{name} is too short to be split into training and held-out text with {shared}; give more text"
        )
    return SplitPlan(shares, cuts)


def plan_of(source: DataSource, shares: SplitFractions) -> SplitPlan:
    return make_plan(scan(source.records(), shares), shares, source.name)


def split(documents: Iterable[str], valid: float, test: float = 0.0, mode: str = "auto") -> Split:
    """Documents in memory, dealt."""
    documents = list(documents)
    shares = SplitFractions(valid, test, mode)
    plan = make_plan(scan(documents, shares), shares, "this text")
    found = Split([], [], [])
    for part, document in grouped(plan.deal(documents)):
        getattr(found, part).append(document)
    return found


def split_records(source: DataSource, shares: SplitFractions, part: SplitName) -> Iterator[Record]:
    """The records of a part, whole but for running text."""
    if not shares.hold_out:
        return source.records() if part == "train" else iter(())
    return (record for where, record in plan_of(source, shares).deal(source.records()) if where == part)


# ── what a recipe says ────────────────────────────────────────────────────────────────────────────────────────────


def sources_of(config: DataConfig) -> dict[str, tuple[DataSource, float]]:
    """The sources of a recipe and their weights: one, or those of its mix."""
    paths = dict(config.mix) or {config.path: 1.0}
    return {path: (_open(path, config), weight) for path, weight in paths.items()}


def split_source(config: DataConfig, part: SplitName) -> DataSource | None:
    """The source a part has for itself, where the recipe names one."""
    path = {"valid": config.valid_path, "test": config.test_path}.get(part)
    return _open(path, config, is_part=True) if path else None


def _open(path: str, config: DataConfig, *, is_part: bool = False) -> DataSource:
    return open_source(
        path,
        root=config.root,
        format=config.format,
        text=config.text,
        pairs=config.pairs,
        target_path=None if is_part else config.target_path,
        label=config.label,
        separator=config.separator,
        tag_scheme=config.tag_scheme,
        errors=config.errors,
    )


def with_absolute_paths(config: DataConfig) -> DataConfig:
    """The same with absolute paths, which hold wherever one stands."""

    def at(path: str | None) -> str | None:
        return None if path is None else locate(path, config.root)

    return config.replace(
        path=locate(config.path, config.root),
        mix={locate(path, config.root): weight for path, weight in config.mix.items()},
        target_path=at(config.target_path),
        valid_path=at(config.valid_path),
        test_path=at(config.test_path),
        root=None,
    )


def split_fractions(config: DataConfig) -> SplitFractions:
    """A part that has a source of its own takes no share of the rest."""
    return SplitFractions(
        0.0 if config.valid_path else config.valid_fraction,
        0.0 if config.test_path else config.test_fraction,
        config.split,
    )


def load_documents(path: str, root: str | None = None, *, format: str = "auto") -> list[str]:
    """All documents of a source, in memory."""
    return list(open_source(path, root=root, format=format).documents())


def read_split(config: DataConfig, part: SplitName) -> Iterator[str]:
    """The documents of one part of what a recipe names."""
    own = split_source(config, part)
    if own is not None:
        return own.documents()
    shares = split_fractions(config)
    sources = (source for source, _ in sources_of(config).values())
    return chain.from_iterable(documents_of(split_records(source, shares, part)) for source in sources)

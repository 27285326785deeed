"""What is learned from and what is held out: the same on every machine and in every run.

Documents are dealt by a hash of their content, so that adding one never moves another. A corpus of few documents holds
out its end instead: … train | test | valid. Where the data came with parts of its own, those are used (`valid_path`).
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple

from headway.config import DataConfig
from headway.data.records import Record, key_of
from headway.data.sources import Source, locate, open_source
from headway.errors import DataError

FEW = 20  # documents below which the end of the text is held out instead of every so-many-th document
PARTS = ("train", "valid", "test")
Part = Literal["train", "valid", "test"]


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
class Shares:
    """How much is held out, and how it is chosen."""

    valid: float = 0.1
    test: float = 0.0
    split: Literal["auto", "hash", "tail"] = "auto"

    def part(self, digest: bytes) -> Part:
        """The part of a document or record, by a hash of its content."""
        place = fraction(digest)
        return "valid" if place < self.valid else "test" if place < self.valid + self.test else "train"


@dataclass(frozen=True)
class Plan:
    """Which text goes where: by hash, or by two cuts through all the text, in characters."""

    shares: Shares
    cuts: tuple[int, int] | None = None  # end of train, end of test

    def deal(self, documents: Iterable[str]) -> Iterator[tuple[Part, str]]:
        if self.cuts is None:
            for document in documents:
                yield self.shares.part(digest_of(document)), document
            return
        place = 0
        for document in documents:
            a, b = (min(max(cut - place, 0), len(document)) for cut in self.cuts)
            pieces: list[tuple[Part, str]] = [("train", document[:a]), ("test", document[a:b]), ("valid", document[b:])]
            for part, piece in pieces:
                if piece:
                    yield part, piece
            place += len(document)


@dataclass(frozen=True)
class Scan:
    """What one reading of the documents tells."""

    n_documents: int
    n_chars: int
    n_bytes: int
    digest: str  # of all the content, in order
    parts: dict[str, int]  # documents that a split by hash gives each part


def scan(documents: Iterable[str], shares: Shares) -> Scan:
    n_documents = n_chars = n_bytes = 0
    parts = dict.fromkeys(PARTS, 0)
    everything = hashlib.sha256()
    for document in documents:
        data = document.encode()
        digest = hashlib.sha256(data).digest()
        everything.update(digest)
        n_documents += 1
        n_chars += len(document)
        n_bytes += len(data)
        parts[shares.part(digest)] += 1
    return Scan(n_documents, n_chars, n_bytes, everything.hexdigest(), parts)


def make_plan(found: Scan, shares: Shares, name: str) -> Plan:
    """By hash where there are documents enough for it, else by cutting off the end."""
    wanted = {"train": 1.0, "valid": shares.valid, "test": shares.test}
    if shares.split == "hash" or (shares.split == "auto" and found.n_documents >= FEW):
        if all(found.parts[part] for part, share in wanted.items() if share):
            return Plan(shares)
        if shares.split == "hash":
            raise DataError(
                f"{name}: {found.n_documents} documents are too few to split by hash: {found.parts}; "
                f"use data.split=tail, or give more"
            )
    n = found.n_chars
    cuts = round(n * (1 - shares.valid - shares.test)), round(n * (1 - shares.valid))
    sizes = {"train": cuts[0], "test": cuts[1] - cuts[0], "valid": n - cuts[1]}
    if any(not sizes[part] for part, share in wanted.items() if share):
        raise DataError(
            f"{n} characters cannot be split into training and held-out text with "
            f"data.valid={shares.valid}" + (f", data.test={shares.test}" if shares.test else "") + "; give more text"
        )
    return Plan(shares, cuts)


def split(documents: Iterable[str], valid: float, test: float = 0.0, mode: str = "auto") -> Split:
    """Documents in memory, dealt."""
    documents = list(documents)
    shares = Shares(valid, test, mode)  # type: ignore[arg-type]
    plan = make_plan(scan(documents, shares), shares, "this text")
    found = Split([], [], [])
    for part, document in plan.deal(documents):
        getattr(found, part).append(document)
    return found


def split_records(source: Source, shares: Shares, part: Part) -> Iterator[Record]:
    """The records of a part: pairs, labelled texts and the like are always dealt by hash."""
    for record in source.records():
        if shares.part(digest_of(key_of(record))) == part:
            yield record


# ── what a recipe says ────────────────────────────────────────────────────────────────────────────────────────────


def sources_of(config: DataConfig) -> dict[str, tuple[Source, float]]:
    """The sources of a recipe and their weights: one, or those of its mix."""
    paths = dict(config.mix) or {config.path: 1.0}
    return {path: (_open(path, config), weight) for path, weight in paths.items()}


def part_source(config: DataConfig, part: Part) -> Source | None:
    """The source a part has for itself, where the recipe names one."""
    path = {"valid": config.valid_path, "test": config.test_path}.get(part)
    return _open(path, config, is_part=True) if path else None


def _open(path: str, config: DataConfig, *, is_part: bool = False) -> Source:
    return open_source(
        path,
        root=config.root,
        format=config.format,
        text=config.text,
        pairs=config.pairs,
        target_path=None if is_part else config.target_path,
        label=config.label,
        separator=config.separator,
        scheme=config.scheme,
        errors=config.errors,
    )


def located(config: DataConfig) -> DataConfig:
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


def shares_of(config: DataConfig) -> Shares:
    """A part that has a source of its own takes no share of the rest."""
    return Shares(0.0 if config.valid_path else config.valid, 0.0 if config.test_path else config.test, config.split)


def load_documents(path: str, root: str | None = None) -> list[str]:
    """All documents of a source, in memory."""
    return list(open_source(path, root=root).documents())


def read_part(config: DataConfig, part: Part) -> Iterator[str]:
    """The documents of one part of what a recipe names."""
    own = part_source(config, part)
    if own is not None:
        return own.documents()
    shares = shares_of(config)

    def dealt(source: Source) -> Iterator[str]:
        plan = make_plan(scan(source.documents(), shares), shares, source.name)
        return (document for where, document in plan.deal(source.documents()) if where == part)

    return chain.from_iterable(dealt(source) for source, _ in sources_of(config).values())


def load_split(config: DataConfig) -> Split:
    """All parts, in memory."""
    return Split(*(list(read_part(config, part)) for part in ("train", "valid", "test")))

"""The cache of tokenized text: its layout on disk, and the checks when it is read.

    CACHE/scans/KEY.json           the size and hash of a source, as long as its files do not change
    CACHE/tokens/KEY/              an entry; KEY: a hash of its identity (content, tokenizer, split, …)
      meta.json                    the identity, and the shards with their checksums
      train-00000.safetensors      shards: shard_files.py
    CACHE/tokens/KEY.lock          held while the entry is written
    CACHE/tokens/KEY.partial/      an entry that is not complete yet

Everything read is checked: JSON documents and shards carry a checksum, and an entry must have the identity and the
shards that its meta.json names, in order. That detects damage and mix-ups, not forgery: whoever can write to the
cache can compute checksums. A `DataError` means damage, and `prepare` then rebuilds the entry.
"""

import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from headway.data.shard_files import Shard, open_cached, read_shard, write_cached
from headway.data.sources import DataSource
from headway.data.splits import SPLIT_NAMES, CorpusStats, SplitFractions, SplitName, SplitPlan
from headway.errors import DataError
from headway.file_reading import parse_json
from headway.files import cache_folder as cache_folder
from headway.files import flush
from headway.tokenizers import Tokenizer

FORMAT_VERSION = 4  # of shards and scans; raise it too when a reader yields other records from the same file
MAX_META_BYTES = 8 << 20  # 80,000 shards, which hold 640 GB of text
TIMESTAMP_SECONDS = 2.0  # the coarsest clock of a file system (FAT)

StructT = TypeVar("StructT", bound=msgspec.Struct)
OnNote = Callable[[str], None]


# ── entries ───────────────────────────────────────────────────────────────────────────────────────────────────────


def entry_identity(
    source: DataSource, stats: CorpusStats, plan: SplitPlan, tokenizer: Tokenizer, shard_bytes: int
) -> dict[str, Any]:
    """All that the tokens of an entry depend on."""
    return {
        "version": FORMAT_VERSION,
        "kind": source.kind,
        "digest": stats.digest,
        "tokenizer": tokenizer.fingerprint(),
        "vocab_size": tokenizer.vocab_size,
        "fractions": asdict(plan.fractions),
        "split": "hash" if plan.boundaries is None else "tail",
        "boundaries": None if plan.boundaries is None else list(plan.boundaries),
        "shard_bytes": shard_bytes,
    }


def key_of(identity: Any) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]


def shard_name(split: str, number: int) -> str:
    return f"{split}-{number:05d}.safetensors"


class _EntryMeta(msgspec.Struct):
    """The content of meta.json: the identity of the entry, its size and its shards."""

    version: int
    kind: str
    digest: str
    tokenizer: str
    vocab_size: int
    fractions: dict[str, float | str]
    split: str
    boundaries: list[int] | None
    shard_bytes: int
    source: str
    records: int
    bytes: int
    tokens: dict[str, int]
    shards: dict[str, dict[str, str]]  # by split: names and checksums


def read_entry(
    folder: Path, identity: dict[str, Any] | None = None
) -> tuple[dict[str, Any], dict[SplitName, list[Shard]]]:
    """The meta.json and the shards of an entry, checked, against `identity` too if it is given."""
    with os_errors_as_data_errors(folder):
        document = read_checksummed(folder / "meta.json")
        meta = convert(document, _EntryMeta, folder / "meta.json")
        for name, value in (identity or {"version": FORMAT_VERSION}).items():
            if document.get(name) != value:
                raise DataError(f"{folder} belongs to another text, tokenizer or split: it has another {name}")
        if set(meta.shards) != set(SPLIT_NAMES):
            raise DataError(f"{folder / 'meta.json'} is damaged: it lists the splits {', '.join(meta.shards)}")
        names = {split: list(meta.shards[split]) for split in SPLIT_NAMES}
        for split, shard_names in names.items():  # names that could lead elsewhere are never opened
            if shard_names != [shard_name(split, number) for number in range(len(shard_names))]:
                raise DataError(f"{folder / 'meta.json'} is damaged: the {split} shards have impossible names")
        with ThreadPoolExecutor() as pool:
            shards = {split: list(pool.map(read_shard, [folder / name for name in names[split]])) for split in names}
        for split, split_shards in shards.items():
            for name, shard in zip(names[split], split_shards, strict=True):
                if shard.sha256 != meta.shards[split][name]:
                    raise DataError(f"{folder / name} is not the shard that meta.json names")
            if sum(len(shard.arrays["tokens"]) for shard in split_shards) != meta.tokens.get(split):
                raise DataError(f"{folder / 'meta.json'} is damaged: the {split} shards do not have as many tokens")
    return document, shards


@contextmanager
def os_errors_as_data_errors(path: Path) -> Iterator[None]:
    """A file that is missing or cannot be read is damage; a process or system out of resources is not."""
    try:
        yield
    except OSError as problem:
        if problem.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        raise DataError(f"{problem.filename or path} cannot be read: {problem.strerror}") from None


def seal_entry(partial: Path, folder: Path, meta: dict[str, Any]) -> None:
    """Complete an entry: write its meta.json, remove what does not belong to it, and give it its name."""
    expected = {name for names in meta["shards"].values() for name in names}
    for path in partial.iterdir():
        if path.name not in expected:
            remove(path)
    write_checksummed(partial / "meta.json", meta)
    flush(partial)
    partial.rename(folder)
    flush(folder.parent)


def open_partial(partial: Path) -> None:
    """Make the folder of an incomplete entry, or remove all but regular, finished files from it."""
    if partial.is_symlink() or not partial.is_dir():
        remove(partial)
    partial.mkdir(exist_ok=True)
    for path in partial.iterdir():
        if path.suffix == ".tmp" or not stat.S_ISREG(path.lstat().st_mode):
            remove(path)


def discard(folder: Path) -> None:
    """Delete an entry. It is renamed first, so no process opens half of it; processes that have it mapped keep it."""
    for left_over in folder.parent.glob(f".{folder.name}.*.old"):  # of a process killed while deleting one
        remove(left_over)
    if os.path.lexists(folder):
        renamed = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".old", dir=folder.parent))
        folder.rename(renamed / folder.name)
        remove(renamed)


def remove(path: Path) -> None:
    """Delete a file, a link (not its target) or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        with suppress(OSError):
            path.chmod(0o700)
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# ── scans ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_Count = Annotated[int, msgspec.Meta(ge=0)]


class _ScanDocument(msgspec.Struct):
    identity: str
    n_records: _Count
    n_units: _Count
    n_bytes: _Count
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    split_counts: dict[str, _Count]


class CachedScan:
    """The cached statistics of a source, found by the names, sizes and times of its files."""

    def __init__(self, source: DataSource, fractions: SplitFractions, cache: Path):
        self._source, self._fractions = source, fractions
        self._began = time.time()
        self.is_possible = bool(source.files) and source.is_stable
        self._identity = self._identify() if self.is_possible else ""
        self._file = cache / "scans" / f"{self._identity[:32]}.json"

    def _identify(self) -> str:
        identity = [FORMAT_VERSION, self._source.identity, asdict(self._fractions)]
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def read(self, on_note: OnNote) -> CorpusStats | None:
        """The cached scan, or None. A damaged or foreign one is noted and ignored."""
        if not self.is_possible or not os.path.lexists(self._file):
            return None
        try:
            with os_errors_as_data_errors(self._file):
                scan = convert(read_checksummed(self._file), _ScanDocument, self._file)
            if scan.identity != self._identity:
                raise DataError(f"{self._file} belongs to another text")
            if set(scan.split_counts) != set(SPLIT_NAMES) or sum(scan.split_counts.values()) != scan.n_records:
                raise DataError(f"{self._file} is damaged: its counts do not add up")
        except (DataError, OSError) as problem:
            on_note(f"{problem}; the text is read again")
            return None
        return CorpusStats(scan.n_records, scan.n_units, scan.n_bytes, scan.digest, scan.split_counts)

    def write(self, stats: CorpusStats) -> None:
        """Cache a scan, unless a later version of its files could look the same.

        A file written again within one tick of the file system's clock can keep its size and times. So nothing is
        cached about a file that was written just before it was read, or that has changed since.
        """
        if not self.is_possible:
            return
        try:
            newest = max(file.stat().st_ctime for file in self._source.files)
            if newest > self._began - TIMESTAMP_SECONDS or self._identify() != self._identity:
                return
            self._file.parent.mkdir(parents=True, exist_ok=True)
            if self._file.is_dir():
                remove(self._file)
            for left_over in self._file.parent.glob(f"{self._file.name}.*.tmp"):  # of a process killed while writing
                remove(left_over)
            write_checksummed(self._file, {"identity": self._identity, **asdict(stats)})
        except OSError:
            pass  # the next run reads the text again


# ── JSON documents that carry a checksum of themselves ────────────────────────────────────────────────────────────

_SEAL = b'{\n  "sha256": "%s",'
_SEAL_BYTES = len(_SEAL % (b"0" * 64))


def write_checksummed(path: Path, document: dict[str, Any]) -> None:
    """Write a document whose first key is the SHA-256 of all bytes after it, so that damage is found before parsing."""
    body = json.dumps(document, indent=2).encode()[1:] + b"\n"
    write_cached(path, [_SEAL % hashlib.sha256(body).hexdigest().encode(), body])


def read_checksummed(path: Path) -> dict[str, Any]:
    with open_cached(path) as file:
        data = file.read(MAX_META_BYTES + 1)
    seal, body = data[:_SEAL_BYTES], data[_SEAL_BYTES:]
    if len(data) > MAX_META_BYTES:
        raise DataError(f"{path} is damaged: it has more than {MAX_META_BYTES:,} bytes")
    if seal != _SEAL % hashlib.sha256(body).hexdigest().encode():
        raise DataError(f"{path} is damaged: its checksum does not match")
    try:
        document = parse_json(data)
    except ValueError as problem:
        raise DataError(f"{path} is damaged: {problem}") from None
    return {name: value for name, value in document.items() if name != "sha256"}


def convert(document: dict[str, Any], kind: type[StructT], path: Path) -> StructT:
    """A document as a struct; a missing value or one of another type is damage."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as problem:
        raise DataError(f"{path} is damaged: {problem}") from None

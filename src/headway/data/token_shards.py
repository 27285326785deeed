"""Token shards: a corpus tokenized once, in parallel, and memory-mapped from then on; it may exceed memory.

    CACHE/tokens/KEY/            KEY: a hash of the content, the tokenizer and the split
      meta.json                  what the shards were made from, and their checksums
      train-00000.safetensors    tokens; and for each document its end offset and its size in bytes of text
      valid-00000.safetensors

Shards are written to `KEY.partial`, each to a temporary file renamed when complete, and the folder is renamed when all
shards are in it. A folder called KEY is therefore always complete, and a killed run resumes from its finished shards.
The content of a shard depends on the documents alone, not on the number of workers or interruptions. Cached
shards are checked before they are used (token_cache.py), and encoded again if they are damaged or of another text.
"""

import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.config import DataConfig
from headway.data.records import documents_by_split
from headway.data.shard_files import ShardArrays, read_shard, write_shard
from headway.data.sources import DataSource, open_source
from headway.data.splits import (
    SPLIT_NAMES,
    CorpusScan,
    CorpusStats,
    SplitFractions,
    SplitPlan,
    make_plan,
    sources_of,
    split_fractions,
)
from headway.data.token_cache import (
    CachedScan,
    OnNote,
    discard,
    entry_identity,
    key_of,
    open_partial,
    read_entry,
    remove,
    seal_entry,
    shard_name,
)
from headway.errors import DataError, InputError
from headway.files import cache_folder, file_lock
from headway.tokenizers import Tokenizer

SHARD_BYTES = 8 << 20  # text per shard
ENCODE_BATCH_DOCS = 1000


@dataclass(frozen=True)
class PrepareProgress:
    """Progress of `prepare`, in bytes of text."""

    stage: str  # "reading" or "encoding"
    done: int
    total: int | None
    tokens: int = 0


OnPrepare = Callable[[PrepareProgress], None]


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────


class TokenArray:
    """Shards as one long array of token ids, memory-mapped: only the pages you access are read from disk."""

    def __init__(self, shards: Sequence[ShardArrays], files: Sequence[Path] = ()):
        self.files = list(files)
        self.shards = list(shards)
        self.ends = np.cumsum([len(shard["tokens"]) for shard in self.shards], dtype=np.int64)

    @classmethod
    def of(cls, ids: Any, ends: Any = None) -> "TokenArray":
        """Wrap ids in memory: one document, or documents with these end offsets."""
        ids = np.asarray(ids)
        ends = np.asarray([len(ids)] if ends is None else ends, dtype=np.int64)
        return cls([{"tokens": ids, "ends": ends, "bytes": np.zeros(len(ends), dtype=np.int64)}])

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Tokens start … stop − 1."""
        if not 0 <= start <= stop <= len(self):
            raise InputError(f"tokens {start} to {stop} are out of range: there are {len(self)}")
        shard = int(np.searchsorted(self.ends, start, side="right"))
        if stop == start:
            return np.empty(0, dtype=np.int64)
        base = int(self.ends[shard - 1]) if shard else 0
        if stop <= self.ends[shard]:
            return self.shards[shard]["tokens"][start - base : stop - base]
        slices = []
        while start < stop:  # spans several shards
            end = min(stop, int(self.ends[shard]))
            slices.append(self.shards[shard]["tokens"][start - base : end - base])
            base, start, shard = int(self.ends[shard]), end, shard + 1
        return np.concatenate(slices)

    def windows(self, starts: NDArray[np.int64], width: int) -> NDArray[np.int64]:
        """Windows of `width` tokens, one per row: (B, width)."""
        windows = np.empty((len(starts), width), dtype=np.int64)
        shards = np.searchsorted(self.ends, starts, side="right")
        for row, (start, shard) in enumerate(zip(starts.tolist(), shards.tolist(), strict=True)):
            stop = start + width
            if shard < len(self.shards) and stop <= self.ends[shard]:
                tokens = self.shards[shard]["tokens"]
                base = int(self.ends[shard]) - len(tokens)
                windows[row] = tokens[start - base : stop - base]
            else:  # spans several shards, or is out of range
                windows[row] = self.read(start, stop)
        return windows

    @cached_property
    def document_ends(self) -> NDArray[np.int64]:
        """One past the last token of each document."""
        bases = self.ends - [len(shard["tokens"]) for shard in self.shards]
        ends = [shard["ends"] + base for shard, base in zip(self.shards, bases, strict=True)]
        return np.concatenate(ends) if ends else np.empty(0, dtype=np.int64)

    @property
    def n_documents(self) -> int:
        return sum(len(shard["ends"]) for shard in self.shards)

    @property
    def n_bytes(self) -> int:
        """UTF-8 bytes of the text."""
        return sum(int(shard["bytes"].sum()) for shard in self.shards)


@dataclass(frozen=True)
class PreparedCorpus:
    """The splits of a corpus as tokens."""

    path: Path
    meta: dict[str, Any]
    train: TokenArray
    valid: TokenArray
    test: TokenArray


def open_prepared(path: str | Path) -> PreparedCorpus:
    """Open the folder of a prepared corpus. All shards are read once to compare their checksums."""
    try:
        return _open_entry(Path(path))
    except DataError as problem:
        raise DataError(f"{path} holds no token shards, or they are damaged: {problem}; prepare them again") from None


def _open_entry(folder: Path, identity: dict[str, Any] | None = None) -> PreparedCorpus:
    meta, shards = read_entry(folder, identity)
    splits = {
        split: TokenArray([shard.arrays for shard in shards[split]], [folder / name for name in meta["shards"][split]])
        for split in SPLIT_NAMES
    }
    return PreparedCorpus(folder, meta, **splits)


# ── preparing ─────────────────────────────────────────────────────────────────────────────────────────────────────


class _SourceChangedError(DataError):
    """The text is not the one that was scanned."""


def prepare(
    source: DataSource | str,
    tokenizer: Tokenizer,
    fractions: SplitFractions | None = None,
    *,
    cache: str | Path | None = None,
    workers: int | None = None,
    on_progress: OnPrepare = lambda progress: None,
    on_note: OnNote = lambda note: None,
    shard_bytes: int = SHARD_BYTES,
) -> PreparedCorpus:
    """Tokenize a source into shards, or open them from the cache.

    `workers` threads encode (default: one per core); `shard_bytes` is the text per shard. `on_note` gets a
    message when a damaged part of the cache is rebuilt.
    """
    source = open_source(source) if isinstance(source, str) else source
    fractions = fractions or SplitFractions()
    cache = Path(cache) if cache is not None else cache_folder()
    workers = workers or os.cpu_count() or 1

    def open_or_encode(stats: CorpusStats) -> PreparedCorpus:
        plan = make_plan(stats, fractions, source.name)
        identity = entry_identity(source, stats, plan, tokenizer, shard_bytes)
        folder = cache / "tokens" / key_of(identity)
        try:
            if os.path.lexists(folder):
                return _open_entry(folder, identity)
        except DataError:
            pass  # another process may be rebuilding it: try again under the lock
        folder.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(folder.with_suffix(".lock")):
            try:
                if os.path.lexists(folder):
                    return _open_entry(folder, identity)
            except DataError as problem:
                on_note(f"cached tokens of {source.name} are encoded again: {problem}")
            discard(folder)
            _write_shards(folder, source, plan, stats, tokenizer, workers, on_progress, identity)
            return _open_entry(folder, identity)

    def in_cache(stats: CorpusStats) -> PreparedCorpus:
        try:
            return open_or_encode(stats)
        except OSError as error:
            raise _cache_error(error, cache, stats) from None

    scan = CachedScan(source, fractions, cache)
    if (stats := scan.read(on_note)) is not None:
        try:
            return in_cache(stats)
        except _SourceChangedError:
            on_note(f"the cached scan of {source.name} is out of date; the text is read again")
    stats = _scan(source, fractions, on_progress)
    scan.write(stats)
    return in_cache(stats)


def _cache_error(error: OSError, cache: Path, stats: CorpusStats) -> DataError:
    problem = f"{error.strerror or error} ({error.filename or cache})"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return DataError(f"cannot open all token shards under {cache}: {problem}. Raise the limit with `ulimit -n`")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DataError(
            f"cannot write tokens under {cache}: {problem}; about {1 + stats.n_bytes / 2e6:,.0f} MB are needed. Free "
            f"some space, or choose another folder with HEADWAY_CACHE; finished shards are kept, and the next attempt "
            f"resumes from them"
        )
    return DataError(
        f"cannot write tokens under {cache}: {problem}. Make it a folder that you can write to, or choose another "
        f"one with HEADWAY_CACHE"
    )


def prepare_recipe(
    config: DataConfig,
    tokenizer: Tokenizer,
    *,
    cache: str | Path | None = None,
    on_progress: OnPrepare = lambda progress: None,
    on_note: OnNote = lambda note: None,
) -> list[tuple[PreparedCorpus, float]]:
    """The training sources of a recipe, tokenized, with their weights. Splits with their own path are not prepared."""
    fractions = split_fractions(config)
    return [
        (prepare(source, tokenizer, fractions, cache=cache, on_progress=on_progress, on_note=on_note), weight)
        for source, weight in sources_of(config).values()
    ]


def _scan(source: DataSource, fractions: SplitFractions, on_progress: OnPrepare) -> CorpusStats:
    """Read all records once."""
    scan = CorpusScan(fractions)
    for batch in source.batches():
        scan.add_batch(batch)
        on_progress(PrepareProgress("reading", scan.n_bytes, None))
    return scan.result()


@dataclass
class _ShardDocuments:
    """The documents of one shard."""

    split: str
    number: int
    documents: list[str]
    n_bytes: int = 0

    @property
    def name(self) -> str:
        return shard_name(self.split, self.number)


def _group_into_shards(documents: Iterator[tuple[Any, str]], shard_bytes: int) -> Iterator[_ShardDocuments]:
    """Group (split, document) pairs into shards of one split each."""
    open_shards = {split: _ShardDocuments(split, 0, []) for split in SPLIT_NAMES}
    for split, document in documents:
        shard = open_shards[split]
        size = len(document.encode())
        if shard.documents and shard.n_bytes + size > shard_bytes:
            yield shard
            shard = open_shards[split] = _ShardDocuments(split, shard.number + 1, [])
        shard.documents.append(document)
        shard.n_bytes += size
    yield from (shard for shard in open_shards.values() if shard.documents)


def _write_shards(
    folder: Path,
    source: DataSource,
    plan: SplitPlan,
    stats: CorpusStats,
    tokenizer: Tokenizer,
    workers: int,
    on_progress: OnPrepare,
    identity: dict[str, Any],
) -> None:
    partial = folder.with_suffix(".partial")
    open_partial(partial)
    second_scan = CorpusScan(plan.fractions)  # must agree with the first
    shards: dict[str, dict[str, str]] = {split: {} for split in SPLIT_NAMES}
    tokens: dict[str, int] = dict.fromkeys(SPLIT_NAMES, 0)
    n_done = 0

    def finish(shard: _ShardDocuments, future: "Future[_EncodedShard]") -> None:
        nonlocal n_done
        encoded = future.result()
        shards[shard.split][shard.name] = encoded.sha256
        tokens[shard.split] += encoded.n_tokens
        n_done += encoded.n_bytes
        on_progress(PrepareProgress("encoding", n_done, stats.n_bytes, sum(tokens.values())))

    # Threads suffice: both tokenizer engines release the GIL while they encode, and nothing is copied to a process.
    with ThreadPoolExecutor(workers) as pool:
        pending: list[tuple[_ShardDocuments, Future[_EncodedShard]]] = []
        try:
            documents = documents_by_split(plan.assign(second_scan.tap(source.batches())))
            for shard in _group_into_shards(documents, identity["shard_bytes"]):
                future = pool.submit(_encode_shard, partial, shard, tokenizer, folder.name)
                pending.append((shard, future))
                while len(pending) > workers:
                    finish(*pending.pop(0))
            while pending:
                finish(*pending.pop(0))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    if second_scan.result() != stats:
        remove(partial)
        raise _SourceChangedError(f"{source.name} changed while it was read: run this again when nothing writes to it")
    if sum(tokens.values()) == 0:
        raise DataError(f"{source.name} has no tokens: is it empty, or does the tokenizer drop all of it?")
    sizes = {"records": stats.n_records, "bytes": stats.n_bytes, "tokens": tokens}
    name = source.name.encode(errors="replace").decode()  # the bytes of a file name need not be text
    seal_entry(partial, folder, {"source": name, **identity, **sizes, "shards": shards})


@dataclass(frozen=True)
class _EncodedShard:
    n_tokens: int
    n_bytes: int
    sha256: str


def _encode_shard(partial: Path, shard: _ShardDocuments, tokenizer: Tokenizer, key: str) -> _EncodedShard:
    """Encode documents into a shard, unless a killed run has finished it."""
    digest = hashlib.sha256(f"{key}/{shard.name}/".encode())
    for document in shard.documents:
        digest.update(hashlib.sha256(document.encode()).digest())
    made_from, file = digest.hexdigest(), partial / shard.name
    finished = _finished_shard(file, made_from)
    if finished is not None:
        return finished
    dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
    encoded: list[NDArray[Any]] = []
    documents, is_first = shard.documents, shard.number == 0
    n_bytes = [len(document.encode()) for document in documents]
    while documents:  # in batches, freeing the text that is done
        batch = documents[:ENCODE_BATCH_DOCS]
        del documents[:ENCODE_BATCH_DOCS]
        encoded += [ids.astype(dtype) for ids in tokenizer.encode_documents(batch, is_first=is_first)]
        is_first = False
    arrays = {
        "tokens": np.concatenate(encoded),
        "ends": np.cumsum([len(ids) for ids in encoded], dtype=np.int64),
        "bytes": np.array(n_bytes, dtype=np.int64),
    }
    sha256 = write_shard(file, arrays, made_from)
    return _EncodedShard(len(arrays["tokens"]), sum(n_bytes), sha256)


def _finished_shard(file: Path, made_from: str) -> _EncodedShard | None:
    """The shard that a killed run left, if it is whole and was made from the same documents by the same tokenizer."""
    if not file.exists():
        return None
    try:
        shard = read_shard(file)
    except DataError:
        return None
    if shard.made_from != made_from:
        return None
    return _EncodedShard(len(shard.arrays["tokens"]), int(shard.arrays["bytes"].sum()), shard.sha256)

"""Token shards: a corpus tokenized once, in parallel, and memory-mapped from then on; it may exceed memory.

    CACHE/tokens/KEY/            KEY: a hash of the content, the tokenizer and the split
      meta.json                  what the shards were made from, and their sizes
      train-00000.safetensors    tokens; and for each document its end offset and its size in bytes of text
      valid-00000.safetensors

Shards are written to `KEY.partial`, each to a temporary file renamed when complete, and the folder is renamed when all
shards are in it. A folder called KEY is therefore always complete, and a killed run resumes from its finished shards.
The content of a shard depends on the documents alone, not on the number of workers or interruptions.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.config import DataConfig
from headway.data.records import documents_by_split
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
from headway.errors import DataError, InputError
from headway.files import file_lock, flush, write_text
from headway.tokenizers import Tokenizer

FORMAT_VERSION = 3
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


def cache_folder() -> Path:
    """$HEADWAY_CACHE, or `headway` in the user's cache folder."""
    headway_cache = os.environ.get("HEADWAY_CACHE")
    if headway_cache:
        return Path(headway_cache).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "headway"


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────


class TokenArray:
    """Shards as one long array of token ids, memory-mapped: only the pages you access are read from disk."""

    def __init__(self, files: list[Path]):
        self.files = files
        self.shards = [read_shard(file) for file in files]
        self.ends = np.cumsum([len(shard["tokens"]) for shard in self.shards], dtype=np.int64)

    @classmethod
    def of(cls, ids: Any, ends: Any = None) -> "TokenArray":
        """Wrap ids in memory: one document, or documents with these end offsets."""
        ids = np.asarray(ids)
        tokens = cls([])
        ends = np.asarray([len(ids)] if ends is None else ends, dtype=np.int64)
        tokens.shards = [{"tokens": ids, "ends": ends, "bytes": np.zeros(len(ends), dtype=np.int64)}]
        tokens.ends = np.array([len(ids)], dtype=np.int64)
        return tokens

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
    path = Path(path)
    try:
        meta = json.loads((path / "meta.json").read_text(encoding="utf-8"))
        splits = {split: TokenArray([path / name for name in meta["shards"][split]]) for split in SPLIT_NAMES}
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{path} holds no token shards, or they are damaged: {error}; delete the folder to rebuild it"
        ) from None
    for split, tokens in splits.items():
        if len(tokens) != meta["tokens"][split]:
            raise DataError(f"{path}: the {split} shards are damaged; delete the folder to rebuild it")
    return PreparedCorpus(path, meta, **splits)


def read_shard(file: Path) -> dict[str, NDArray[Any]]:
    """Memory-map the arrays of a safetensors file: an 8-byte header size, a JSON header, then the data."""
    header_size, header = _read_header(file)
    arrays: dict[str, NDArray[Any]] = {}
    for name, entry in header.items():
        if name != "__metadata__":
            dtype = {"U16": np.uint16, "U32": np.uint32, "I64": np.int64}[entry["dtype"]]
            offset, shape = 8 + header_size + entry["data_offsets"][0], tuple(entry["shape"])
            if 0 in shape:  # an empty array cannot be mapped
                arrays[name] = np.empty(shape, dtype=dtype)
                continue
            mapped = np.memmap(file, dtype=dtype, mode="r", offset=offset, shape=shape)
            arrays[name] = mapped.view(np.ndarray)  # the same pages as a plain array: slicing takes a third
    return arrays


def shard_digest(file: Path) -> str:
    """The hash of the documents that a shard was made from."""
    return _read_header(file)[1].get("__metadata__", {}).get("digest", "")


def _read_header(file: Path) -> tuple[int, dict[str, Any]]:
    with open(file, "rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        return size, json.loads(stream.read(size))


# ── preparing ─────────────────────────────────────────────────────────────────────────────────────────────────────


def prepare(
    source: DataSource | str,
    tokenizer: Tokenizer,
    fractions: SplitFractions | None = None,
    *,
    cache: str | Path | None = None,
    workers: int | None = None,
    on_progress: OnPrepare = lambda progress: None,
    shard_bytes: int = SHARD_BYTES,
) -> PreparedCorpus:
    """Tokenize a source into shards, or open them from the cache.

    `workers` threads encode (default: one per core); `shard_bytes` is the text per shard.
    """
    source = open_source(source) if isinstance(source, str) else source
    fractions = fractions or SplitFractions()
    cache = Path(cache) if cache is not None else cache_folder()
    stats = _scan(source, fractions, cache, on_progress)
    plan = make_plan(stats, fractions, source.name)
    identity = [FORMAT_VERSION, stats.digest, tokenizer.fingerprint(), asdict(fractions), shard_bytes]
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
    folder = cache / "tokens" / key
    if (folder / "meta.json").is_file():
        return open_prepared(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(folder.with_suffix(".lock")):
            if not (folder / "meta.json").is_file():  # another process may have written it while we waited
                shutil.rmtree(folder, ignore_errors=True)  # without meta.json its content cannot be trusted
                _write_shards(
                    folder, source, plan, stats, tokenizer, workers or os.cpu_count() or 1, on_progress, shard_bytes
                )
    except OSError as error:
        space = f"; about {1 + stats.n_bytes / 2e6:,.0f} MB are needed" if error.errno == errno.ENOSPC else ""
        raise DataError(
            f"cannot write tokens under {cache}: {error.strerror or error} ({error.filename or folder}){space}. "
            f"Free some space, or choose another folder with HEADWAY_CACHE; finished shards are kept, and "
            f"the next attempt resumes from them"
        ) from None
    return open_prepared(folder)


def prepare_recipe(
    config: DataConfig,
    tokenizer: Tokenizer,
    *,
    cache: str | Path | None = None,
    on_progress: OnPrepare = lambda progress: None,
) -> list[tuple[PreparedCorpus, float]]:
    """The training sources of a recipe, tokenized, with their weights. Splits with their own path are not prepared."""
    fractions = split_fractions(config)
    return [
        (prepare(source, tokenizer, fractions, cache=cache, on_progress=on_progress), weight)
        for source, weight in sources_of(config).values()
    ]


def _scan(source: DataSource, fractions: SplitFractions, cache: Path, on_progress: OnPrepare) -> CorpusStats:
    """Read all records once; cached as long as the files do not change."""
    cached = None
    if source.files and source.is_stable:
        identity = json.dumps([FORMAT_VERSION, source.identity, asdict(fractions)], sort_keys=True)
        cached = cache / "scans" / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.json"
        try:
            return CorpusStats(**json.loads(cached.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            pass
    scan = CorpusScan(fractions)
    for record in source.records():
        scan.add(record)
        on_progress(PrepareProgress("reading", scan.n_bytes, None))
    stats = scan.result()
    if cached is not None:
        try:
            cached.parent.mkdir(parents=True, exist_ok=True)
            write_text(cached, json.dumps(asdict(stats)))
        except OSError:
            pass  # the next run scans again
    return stats


@dataclass
class _ShardDocuments:
    """The documents of one shard."""

    split: str
    number: int
    documents: list[str]
    n_bytes: int = 0

    @property
    def name(self) -> str:
        return f"{self.split}-{self.number:05d}.safetensors"


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
    shard_bytes: int,
) -> None:
    partial = folder.with_suffix(".partial")
    partial.mkdir(exist_ok=True)
    for file in partial.glob("*.tmp"):
        file.unlink()  # left by a killed run
    second_scan = CorpusScan(plan.fractions)  # must agree with the first
    names: dict[str, list[str]] = {split: [] for split in SPLIT_NAMES}
    tokens = dict.fromkeys(SPLIT_NAMES, 0)
    n_done = 0

    def finish(shard: _ShardDocuments, future: "Future[tuple[int, int]]") -> None:
        nonlocal n_done
        n_tokens, n_bytes = future.result()
        tokens[shard.split] += n_tokens
        n_done += n_bytes
        on_progress(PrepareProgress("encoding", n_done, stats.n_bytes, sum(tokens.values())))

    # Threads suffice: both tokenizer engines release the GIL while they encode, and nothing is copied to a process.
    with ThreadPoolExecutor(workers) as pool:
        pending: list[tuple[_ShardDocuments, Future[tuple[int, int]]]] = []
        try:
            documents = documents_by_split(plan.assign(second_scan.tap(source.records())))
            for shard in _group_into_shards(documents, shard_bytes):
                names[shard.split].append(shard.name)
                future = pool.submit(_encode_shard, partial / shard.name, shard.documents, shard.number == 0, tokenizer)
                pending.append((shard, future))
                while len(pending) > workers:
                    finish(*pending.pop(0))
            while pending:
                finish(*pending.pop(0))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    if second_scan.digest != stats.digest:
        shutil.rmtree(partial)
        raise DataError(f"{source.name} changed while it was read: run this again when nothing writes to it")
    if sum(tokens.values()) == 0:
        raise DataError(f"{source.name} has no tokens: is it empty, or does the tokenizer drop all of it?")
    meta = {
        "version": FORMAT_VERSION,
        "source": source.name,
        "digest": stats.digest,
        "tokenizer": tokenizer.fingerprint(),
        "vocab_size": tokenizer.vocab_size,
        "records": stats.n_records,
        "bytes": stats.n_bytes,
        "shares": asdict(plan.fractions),
        "split": "hash" if plan.boundaries is None else "tail",
        "tokens": tokens,
        "shards": names,
    }
    expected = {name for shard_names in names.values() for name in shard_names}
    for file in partial.iterdir():
        if file.name not in expected:
            file.unlink()
    write_text(partial / "meta.json", json.dumps(meta, indent=2) + "\n")
    flush(partial)
    partial.rename(folder)
    flush(folder.parent)


def _encode_shard(file: Path, documents: list[str], is_first: bool, tokenizer: Tokenizer) -> tuple[int, int]:
    """Encode documents into a shard, unless it exists already; returns its tokens and bytes."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(hashlib.sha256(document.encode()).digest())
    if file.is_file() and shard_digest(file) == digest.hexdigest():
        arrays = read_shard(file)
        return len(arrays["tokens"]), int(arrays["bytes"].sum())
    dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
    encoded: list[NDArray[Any]] = []
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
    _write_shard(file, arrays, digest.hexdigest())
    return len(arrays["tokens"]), sum(n_bytes)


def _write_shard(file: Path, arrays: dict[str, NDArray[Any]], digest: str) -> None:
    from safetensors.numpy import save

    temporary = file.with_suffix(".tmp")
    try:
        with open(temporary, "wb") as stream:
            stream.write(save(arrays, {"digest": digest}))
            stream.flush()
            os.fsync(stream.fileno())
        temporary.rename(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise

"""From text to token ids on disk, once: prepared in parallel, memory-mapped ever after, larger than memory.

    CACHE/tokens/KEY/            KEY: a hash of the content, the tokenizer and the split
      meta.json                  what it was made from, and how much there is of it
      train-00000.safetensors    tokens; and for each document where it ends and how many bytes of text it was
      valid-00000.safetensors

Shards are made in `KEY.partial`, each written aside and renamed when whole, and the folder takes its name when all are
there. So whatever is called KEY is complete; killed half-way, the next run goes on with the shards that are. What is in
a shard depends on the documents alone, not on how many workers there were or how often they were killed.
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
from headway.data.records import grouped
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
from headway.files import flush, locked, write_text
from headway.tokenizers import Tokenizer

VERSION = 3  # of what is written
SHARD = 8 << 20  # bytes of text in a shard
SOME = 1000  # documents encoded at a time


@dataclass(frozen=True)
class PrepareProgress:
    """How far preparation is, in bytes of text."""

    stage: str  # "reading" or "encoding"
    done: int
    total: int | None
    tokens: int = 0


OnPrepare = Callable[[PrepareProgress], None]


def cache_folder() -> Path:
    """$HEADWAY_CACHE, or `headway` in the user's cache folder."""
    own = os.environ.get("HEADWAY_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "headway"


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────


class TokenArray:
    """Shards as one long row of token ids, memory-mapped: what is not looked at is not read."""

    def __init__(self, files: list[Path]):
        self.files = files
        self.shards = [read_shard(file) for file in files]
        self.ends = np.cumsum([len(shard["tokens"]) for shard in self.shards], dtype=np.int64)

    @classmethod
    def of(cls, ids: Any, ends: Any = None) -> "TokenArray":
        """Ids that are in memory already, as one document or as documents with these ends."""
        ids = np.asarray(ids)
        made = cls([])
        ends = np.asarray([len(ids)] if ends is None else ends, dtype=np.int64)
        made.shards = [{"tokens": ids, "ends": ends, "bytes": np.zeros(len(ends), dtype=np.int64)}]
        made.ends = np.array([len(ids)], dtype=np.int64)
        return made

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Tokens start … stop − 1."""
        if not 0 <= start <= stop <= len(self):
            raise InputError(f"tokens {start} to {stop} are not all there: there are {len(self)}")
        first = int(np.searchsorted(self.ends, start, side="right"))
        if stop == start:
            return np.empty(0, dtype=np.int64)
        base = int(self.ends[first - 1]) if first else 0
        if stop <= self.ends[first]:
            return self.shards[first]["tokens"][start - base : stop - base]
        pieces = []
        while start < stop:  # over the end of a shard
            end = min(stop, int(self.ends[first]))
            pieces.append(self.shards[first]["tokens"][start - base : end - base])
            base, start, first = int(self.ends[first]), end, first + 1
        return np.concatenate(pieces)

    def windows(self, starts: NDArray[np.int64], width: int) -> NDArray[np.int64]:
        """Windows of so many tokens, a row each: (B, width)."""
        found = np.empty((len(starts), width), dtype=np.int64)
        first = np.searchsorted(self.ends, starts, side="right")
        for row, (start, shard) in enumerate(zip(starts.tolist(), first.tolist(), strict=True)):
            stop = start + width
            if shard < len(self.shards) and stop <= self.ends[shard]:
                tokens = self.shards[shard]["tokens"]
                past = int(self.ends[shard]) - len(tokens)
                found[row] = tokens[start - past : stop - past]
            else:  # over the end of a shard, or of all
                found[row] = self.read(start, stop)
        return found

    @cached_property
    def document_ends(self) -> NDArray[np.int64]:
        """One past the last token of each document."""
        bases = self.ends - [len(shard["tokens"]) for shard in self.shards]
        found = [shard["ends"] + base for shard, base in zip(self.shards, bases, strict=True)]
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)

    @property
    def n_documents(self) -> int:
        return sum(len(shard["ends"]) for shard in self.shards)

    @property
    def n_bytes(self) -> int:
        """UTF-8 bytes of the text."""
        return sum(int(shard["bytes"].sum()) for shard in self.shards)


@dataclass(frozen=True)
class PreparedCorpus:
    """The parts of a corpus as tokens."""

    path: Path
    meta: dict[str, Any]
    train: TokenArray
    valid: TokenArray
    test: TokenArray


def open_prepared(path: str | Path) -> PreparedCorpus:
    path = Path(path)
    try:
        meta = json.loads((path / "meta.json").read_text(encoding="utf-8"))
        parts = {part: TokenArray([path / name for name in meta["shards"][part]]) for part in SPLIT_NAMES}
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{path} holds no prepared tokens, or they are damaged: {error}; remove it to have it made anew"
        ) from None
    for part, tokens in parts.items():
        if len(tokens) != meta["tokens"][part]:
            raise DataError(f"{path}: the {part} shards are damaged; remove the folder to have it made anew")
    return PreparedCorpus(path, meta, **parts)


def read_shard(file: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a safetensors file, mapped: an 8-byte length, a JSON header, then the numbers."""
    size, header = _header(file)
    found: dict[str, NDArray[Any]] = {}
    for name, entry in header.items():
        if name != "__metadata__":
            dtype = {"U16": np.uint16, "U32": np.uint32, "I64": np.int64}[entry["dtype"]]
            begin, shape = 8 + size + entry["data_offsets"][0], tuple(entry["shape"])
            if 0 in shape:  # nothing to map
                found[name] = np.empty(shape, dtype=dtype)
                continue
            mapped = np.memmap(file, dtype=dtype, mode="r", offset=begin, shape=shape)
            found[name] = mapped.view(np.ndarray)  # a plain array over the same pages: its slices cost a third
    return found


def shard_digest(file: Path) -> str:
    """A hash of the documents a shard was made from."""
    return _header(file)[1].get("__metadata__", {}).get("digest", "")


def _header(file: Path) -> tuple[int, dict[str, Any]]:
    with open(file, "rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        return size, json.loads(opened.read(size))


# ── preparing ─────────────────────────────────────────────────────────────────────────────────────────────────────


def prepare(
    source: DataSource | str,
    tokenizer: Tokenizer,
    shares: SplitFractions | None = None,
    *,
    cache: str | Path | None = None,
    workers: int | None = None,
    report: OnPrepare = lambda progress: None,
    shard: int = SHARD,
) -> PreparedCorpus:
    """The tokens of a source, from the cache or made now.

    `workers` threads encode (by default one per core); `shard` is the size of a shard in bytes of text.
    """
    source = open_source(source) if isinstance(source, str) else source
    shares = shares or SplitFractions()
    folder = Path(cache) if cache is not None else cache_folder()
    found = _scan(source, shares, folder, report)
    plan = make_plan(found, shares, source.name)
    made_of = [VERSION, found.digest, tokenizer.fingerprint(), asdict(shares), shard]
    key = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:32]
    place = folder / "tokens" / key
    if (place / "meta.json").is_file():
        return open_prepared(place)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with locked(place.with_suffix(".lock")):
            if not (place / "meta.json").is_file():  # someone else may have made it while we waited
                shutil.rmtree(place, ignore_errors=True)  # without it, whatever is there is not ours to trust
                _make(place, source, plan, found, tokenizer, workers or os.cpu_count() or 1, report, shard)
    except OSError as error:
        room = f"; about {1 + found.n_bytes / 2e6:,.0f} MB are needed" if error.errno == errno.ENOSPC else ""
        raise DataError(
            f"tokens cannot be written under {folder}: {error.strerror or error} ({error.filename or place}){room}. "
            f"Make room, or choose another place with HEADWAY_CACHE or --cache; shards that are whole are kept, and "
            f"the next attempt goes on from there"
        ) from None
    return open_prepared(place)


def prepare_recipe(
    config: DataConfig,
    tokenizer: Tokenizer,
    *,
    cache: str | Path | None = None,
    report: OnPrepare = lambda progress: None,
) -> list[tuple[PreparedCorpus, float]]:
    """Everything a recipe trains on, with weights. Held-out parts with files of their own are not prepared."""
    shares = split_fractions(config)
    return [
        (prepare(source, tokenizer, shares, cache=cache, report=report), weight)
        for source, weight in sources_of(config).values()
    ]


def _scan(source: DataSource, shares: SplitFractions, folder: Path, report: OnPrepare) -> CorpusStats:
    """Read the records once; remembered as long as the files do not change."""
    memo = None
    if source.files:
        identity = json.dumps([VERSION, source.identity, asdict(shares)], sort_keys=True)
        memo = folder / "scans" / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.json"
        try:
            return CorpusStats(**json.loads(memo.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            pass
    watched = CorpusScan(shares)
    for record in source.records():
        watched.add(record)
        report(PrepareProgress("reading", watched.n_bytes, None))
    found = watched.result()
    if memo is not None:
        try:
            memo.parent.mkdir(parents=True, exist_ok=True)
            write_text(memo, json.dumps(asdict(found)))
        except OSError:
            pass  # it is only a memory
    return found


@dataclass
class _Batch:
    """Documents on their way into a shard."""

    part: str
    number: int
    documents: list[str]
    n_bytes: int = 0

    @property
    def name(self) -> str:
        return f"{self.part}-{self.number:05d}.safetensors"


def _batches(dealt: Iterator[tuple[Any, str]], shard: int) -> Iterator[_Batch]:
    """Documents in shards, each part by itself."""
    open_ones = {part: _Batch(part, 0, []) for part in SPLIT_NAMES}
    for part, document in dealt:
        batch = open_ones[part]
        size = len(document.encode())
        if batch.documents and batch.n_bytes + size > shard:
            yield batch
            batch = open_ones[part] = _Batch(part, batch.number + 1, [])
        batch.documents.append(document)
        batch.n_bytes += size
    yield from (batch for batch in open_ones.values() if batch.documents)


def _make(
    place: Path,
    source: DataSource,
    plan: SplitPlan,
    found: CorpusStats,
    tokenizer: Tokenizer,
    workers: int,
    report: OnPrepare,
    shard: int,
) -> None:
    aside = place.with_suffix(".partial")
    aside.mkdir(exist_ok=True)
    for file in aside.glob("*.tmp"):
        file.unlink()  # of a run that was killed
    again = CorpusScan(plan.shares)  # the second reading must say what the first did
    names: dict[str, list[str]] = {part: [] for part in SPLIT_NAMES}
    tokens = dict.fromkeys(SPLIT_NAMES, 0)
    done = 0

    def finish(batch: _Batch, future: "Future[tuple[int, int]]") -> None:
        nonlocal done
        n_tokens, n_bytes = future.result()
        tokens[batch.part] += n_tokens
        done += n_bytes
        report(PrepareProgress("encoding", done, found.n_bytes, sum(tokens.values())))

    # Threads: both engines let go of the interpreter while they encode, and nothing has to be copied to a process.
    with ThreadPoolExecutor(workers) as pool:
        waiting: list[tuple[_Batch, Future[tuple[int, int]]]] = []
        try:
            for batch in _batches(grouped(plan.deal(again.watch(source.records()))), shard):
                names[batch.part].append(batch.name)
                future = pool.submit(_encode_shard, aside / batch.name, batch.documents, batch.number == 0, tokenizer)
                waiting.append((batch, future))
                while len(waiting) > workers:
                    finish(*waiting.pop(0))
            while waiting:
                finish(*waiting.pop(0))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    if again.digest != found.digest:
        shutil.rmtree(aside)
        raise DataError(f"{source.name} changed while it was read: run this again when nothing writes to it")
    if sum(tokens.values()) == 0:
        raise DataError(f"{source.name} gives no tokens")
    meta = {
        "version": VERSION,
        "source": source.name,
        "digest": found.digest,
        "tokenizer": tokenizer.fingerprint(),
        "vocab_size": tokenizer.vocab_size,
        "records": found.n_records,
        "bytes": found.n_bytes,
        "shares": asdict(plan.shares),
        "split": "hash" if plan.cuts is None else "tail",
        "tokens": tokens,
        "shards": names,
    }
    expected = {name for some in names.values() for name in some}
    for file in aside.iterdir():
        if file.name not in expected:
            file.unlink()
    write_text(aside / "meta.json", json.dumps(meta, indent=2) + "\n")
    flush(aside)
    aside.rename(place)
    flush(place.parent)


def _encode_shard(file: Path, documents: list[str], is_first: bool, tokenizer: Tokenizer) -> tuple[int, int]:
    """Encode documents into a shard, unless it is there; tokens and bytes in it."""
    content = hashlib.sha256()
    for document in documents:
        content.update(hashlib.sha256(document.encode()).digest())
    if file.is_file() and shard_digest(file) == content.hexdigest():
        found = read_shard(file)
        return len(found["tokens"]), int(found["bytes"].sum())
    dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
    pieces: list[NDArray[Any]] = []
    n_bytes = [len(document.encode()) for document in documents]
    while documents:  # some at a time, and what is done is let go
        some = documents[:SOME]
        del documents[:SOME]
        pieces += [ids.astype(dtype) for ids in tokenizer.framed_arrays(some, is_first=is_first)]
        is_first = False
    arrays = {
        "tokens": np.concatenate(pieces),
        "ends": np.cumsum([len(piece) for piece in pieces], dtype=np.int64),
        "bytes": np.array(n_bytes, dtype=np.int64),
    }
    _write_shard(file, arrays, content.hexdigest())
    return len(arrays["tokens"]), sum(n_bytes)


def _write_shard(file: Path, arrays: dict[str, NDArray[Any]], digest: str) -> None:
    from safetensors.numpy import save

    aside = file.with_suffix(".tmp")
    try:
        with open(aside, "wb") as opened:
            opened.write(save(arrays, {"digest": digest}))
            opened.flush()
            os.fsync(opened.fileno())
        aside.rename(file)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise

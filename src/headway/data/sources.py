"""Where data comes from: one name, whatever is behind it.

headway.data.open_source("pydocs")                              built in
headway.data.open_source("my.txt")                              a file, a folder, a glob; .gz too
headway.data.open_source("reviews.csv", text="review", label="stars")
headway.data.open_source("train.{en,de}")                       two parallel files
headway.data.open_source("hub:owner/name")                      the Hugging Face hub
"""

import glob
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headway.data import hub
from headway.data.builtin import CORPORA, corpus
from headway.data.readers import ENDINGS, ReadOptions, format_of, kind_of, read, read_parallel
from headway.data.records import Kind, Pair, Record, documents_of, texts_of
from headway.data.synthetic_tasks import is_task
from headway.errors import ConfigError, DataError, suggest


@dataclass
class DataSource:
    """Data that can be read from its beginning, again and again; nothing is kept in memory."""

    name: str
    kind: Kind
    read: Callable[[], Iterator[Record]]
    files: list[Path] = field(default_factory=list)
    how: ReadOptions = field(default_factory=ReadOptions)
    skipped: int = 0  # records of the last reading that were left out because they were empty

    @property
    def size(self) -> int | None:
        """Bytes on disk, compressed ones as they are; None for what is generated."""
        return sum(file.stat().st_size for file in self.files) or None

    @property
    def identity(self) -> list[Any]:
        """What tells this source from another without reading it; changes when a file is written to."""
        found = [(str(file), file.stat()) for file in self.files]
        # The time of the last change of status too: a copy may keep the time of writing, and the size.
        stats = [(name, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for name, s in found]
        return [self.name if not self.files else "", self.kind, asdict(self.how), stats]

    def records(self) -> Iterator[Record]:
        """Every record that is not empty; an error where there is none. A line that is one document stays one."""
        self.skipped = 0
        found = False
        keeps_empty = self.how.format == "lines"
        for record in self.read():
            texts = texts_of(record)
            is_empty = (
                not all(text.strip() for text in texts) if isinstance(record, Pair) else not any(map(str.strip, texts))
            )
            if is_empty and not keeps_empty:
                self.skipped += 1
                continue
            found = found or not is_empty
            yield record
        if not found:
            raise DataError(f"{self.name} is empty: there is no text to learn from")

    def texts(self) -> Iterator[str]:
        """Every text on its own, both sides of pairs too: what a tokenizer is made from."""
        for record in self.records():
            yield from texts_of(record)

    def documents(self) -> Iterator[str]:
        """Documents for a language model; pairs, labels and tags become lines."""
        return documents_of(self.records())


def open_source(
    path: str,
    *,
    root: str | None = None,
    format: str = "auto",
    text: str | None = None,
    pairs: str | None = None,
    target_path: str | None = None,
    label: str | None = None,
    separator: str | None = None,
    tag_scheme: str = "bio",
    errors: str = "strict",
) -> DataSource:
    """The data at a path, or a built-in corpus by name; the options are those of a recipe's `[data]`."""
    how = ReadOptions(format, text, pairs, label, separator, tag_scheme, errors)
    if (built_in := corpus(path)) is not None:
        changed = [name for name, value in asdict(how).items() if value != getattr(ReadOptions(), name)]
        if changed or target_path:
            raise ConfigError(f"{', '.join(changed) or 'target_path'}: {path} is built in and read in one way only")
        return DataSource(path, "pairs" if is_task(path) else "text", built_in)
    if braces := re.search(r"\{([^{},]+),([^{},]+)\}", path):
        if target_path is not None:
            raise ConfigError(f"{path} names both sides already; leave target_path out")
        path, target_path = (path[: braces.start()] + side + path[braces.end() :] for side in braces.groups())
    if target_path is not None:
        return _parallel(path, target_path, root, how)
    files = find_files(path, root)
    if format == "auto":
        files, kind_of_file = _one_format(path, files)
    else:
        kind_of_file = how.format
    name = path

    def read_all() -> Iterator[Record]:
        for file in files:
            yield from read(file, kind_of_file, how)

    return DataSource(name, kind_of(kind_of_file, how), read_all, files, how)


def _parallel(path: str, target_path: str, root: str | None, how: ReadOptions) -> DataSource:
    changed = [
        name for name, value in asdict(how).items() if value != getattr(ReadOptions(), name) and name != "errors"
    ]
    if changed:
        raise ConfigError(f"{', '.join(changed)}: two parallel files are lines of text, and read in one way only")
    ours, theirs = Path(locate(path, root)), Path(locate(target_path, root))
    for file in (ours, theirs):
        if format_of(file) != "text":
            raise ConfigError(
                f"{file.name} is a {format_of(file)} file, not lines of text; name two columns of one (pairs)"
            )
        if not file.is_file():
            what = "is no ordinary file" if file.exists() else "is not there"
            raise DataError(f"{file} {what}: pairs are two files, a sentence a line")
    return DataSource(f"{path} + {target_path}", "pairs", lambda: read_parallel(ours, theirs, how), [ours, theirs], how)


def locate(path: str, root: str | None = None) -> str:
    """Where a data path leads, wherever one stands: a built-in corpus by name, or an absolute path. Relative ones are
    looked for in `root`; without one in $HEADWAY_DATA, then where one stands."""
    if corpus(path) is not None or path.startswith(hub.PREFIX):
        return path
    shared = os.environ.get("HEADWAY_DATA")
    here = os.path.abspath(Path(path).expanduser())
    base = Path(root or shared or ".").expanduser()
    there = os.path.abspath(base / Path(path).expanduser())
    return here if root is None and _is_there(here) and not _is_there(there) else there


def _is_there(path: str) -> bool:
    """A file or folder; of two in one, "train.{en,de}", the first; of a glob, some file."""
    first = re.sub(r"\{([^{},]*),[^{}]*\}", r"\1", path)
    return os.path.exists(path) or os.path.exists(first) or next(glob.iglob(path, recursive=True), None) is not None


def find_files(path: str, root: str | None = None) -> list[Path]:
    """A file; the data files of a folder at any depth, of a glob or of a dataset of the hub, in order of name."""
    if not path:
        raise DataError(f"'' names no data; give a file, a folder, or a built-in corpus ({', '.join(CORPORA)})")
    place = hub.fetch(path) if path.startswith(hub.PREFIX) else Path(locate(path, root))
    if place.is_file():
        return [place]
    if place.is_dir():
        endings = tuple(ending + more for ending in ENDINGS for more in ("", ".gz"))
        files = sorted(f for f in _visible(place) if f.is_file() and f.name.lower().endswith(endings))
        if not files:
            raise DataError(
                f"{place} holds no data file ({', '.join(ENDINGS)}); name a file, or a glob such as '{place}/**/*.md'"
            )
        return files
    files = sorted(Path(f) for f in glob.glob(str(place), recursive=True) if Path(f).is_file())
    if not files:
        if place.exists():
            raise DataError(f"{place} is no ordinary file, and data is read more than once: save it to a file first")
        what = "no file fits the glob" if glob.has_magic(path) else "no text at"
        raise DataError(
            f"{what} {place}: neither a file, a folder, nor a built-in corpus ({', '.join(CORPORA)})."
            + suggest(path, CORPORA)
        )
    return files


def _visible(folder: Path) -> Iterator[Path]:
    """All files below a folder but hidden ones; a folder that cannot be read is an error, not an empty one."""

    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename} cannot be read: {error.strerror}")

    for place, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(place) / name for name in names if not name.startswith("."))


def open_pairs(path: str, columns: str | None = None) -> Iterator[Pair]:
    """The pairs at a path; of a table the named columns, or the first two."""
    is_file = corpus(path) is None and "{" not in path
    known = {"csv": columns or "1,2", "tsv": columns or "1,2", "jsonl": columns, "parquet": columns} if is_file else {}
    source = open_source(path, pairs=known.get(format_of(path)))
    if source.kind != "pairs":
        raise DataError(
            f"{path} holds {source.kind}, and not pairs: name two files as train.{{en,de}}, or a table of two columns"
        )
    return (record for record in source.records() if isinstance(record, Pair))


def _one_format(path: str, files: list[Path]) -> tuple[list[Path], str]:
    """Files of one format; a folder or glob that mixes several has to say which is meant."""
    formats: dict[str, int] = {}
    for file in files:
        formats[format_of(file)] = formats.get(format_of(file), 0) + 1
    if len(formats) > 1:
        counted = ", ".join(f"{n} {format}" for format, n in formats.items())
        raise DataError(
            f"{path} holds files of several formats ({counted}); name those of one kind by a glob, such as "
            f"'{Path(path) / '**' if Path(path).is_dir() else Path(path).parent}/*.txt'"
        )
    return files, next(iter(formats))

"""Data sources: one name for a built-in corpus, files, or a dataset of the hub.

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
from itertools import chain
from pathlib import Path
from typing import Any

from headway.data import hub
from headway.data.builtin import CORPORA, corpus, corpus_kind
from headway.data.faulty_files import faults_error, read_files
from headway.data.file_search import expand_user, glob_files, unique_files, visible_files
from headway.data.readers import (
    ENDINGS,
    READER_KINDS,
    READERS,
    ReadOptions,
    batches_of,
    format_of,
    kind_of,
    read_parallel,
)
from headway.data.records import Kind, Pair, Record, documents_of, is_empty, texts_of
from headway.data.text_files import read_errors
from headway.entry_points import declared, load_declared, plugin_hint
from headway.errors import ConfigError, DataError, count, suggest
from headway.file_reading import suggest_file


@dataclass(repr=False)
class DataSource:
    """Data that can be read from the start any number of times; every pass streams."""

    name: str
    kind: Kind
    read: Callable[[], Iterator[Record]]
    files: list[Path] = field(default_factory=list)
    options: ReadOptions = field(default_factory=ReadOptions)
    skipped: int = 0  # empty records left out by the last pass
    is_stable: bool = True  # equal files give equal records
    read_batches: Callable[[], Iterator[list[Record]]] | None = None  # what `read` yields, in lists
    empty_files: list[Path] = field(default_factory=list)  # files in which the last pass found no text
    left_out: list[Path] = field(default_factory=list)  # other files in the folder, which are not read

    def __repr__(self) -> str:
        size = "" if self.size is None else f", {count(self.size, 'byte')}"
        return f"DataSource({self.name!r}, {self.kind}{size})"

    @property
    def size(self) -> int | None:
        """Size on disk in bytes, before decompression; None for generated data."""
        return sum(_status(file).st_size for file in self.files) or None

    @property
    def identity(self) -> list[Any]:
        """Identifies the source without reading it; changes whenever one of its files is written."""
        file_stats = [(str(file), _status(file)) for file in self.files]
        # Includes ctime: a copy may preserve mtime and size.
        stats = [(name, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for name, s in file_stats]
        return [self.name if not self.files else "", self.kind, asdict(self.options), stats]

    def records(self) -> Iterator[Record]:
        """All non-empty records; an error if there are none. With format="lines", empty lines are kept."""
        return chain.from_iterable(self.batches())

    def batches(self) -> Iterator[list[Record]]:
        """`records` in lists of about a megabyte of text, which is faster for short records."""
        self.skipped = 0
        has_text = False
        keep_empty = self.options.format == "lines"
        for batch in batches_of(self.read()) if self.read_batches is None else self.read_batches():
            if keep_empty:
                has_text = has_text or not all(map(is_empty, batch))
            else:
                kept = [record for record in batch if not is_empty(record)]
                self.skipped += len(batch) - len(kept)
                has_text, batch = has_text or bool(kept), kept
            if batch:
                yield batch
        if not has_text:
            is_table = self.options.format in ("csv", "tsv")
            what = "it has no rows with text below its header" if is_table else "it has no text"
            raise DataError(f"{self.name} is empty: {what}; choose another source, or add text")

    def texts(self) -> Iterator[str]:
        """Every text by itself, both sides of pairs too: the training data of a tokenizer."""
        records: Iterator[Any] = self.records()
        return records if self.kind == "text" else chain.from_iterable(map(texts_of, records))

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
    text_pair: str | None = None,
    label_separator: str | None = None,
    imports: bool = True,
) -> DataSource:
    """Open the data at a path, or a built-in corpus by name; the options are those of a recipe's `[data]`.

    A name may be one that an installed package declares, which is then imported; pass `imports=False` if the name comes
    from a file.
    """
    if imports:
        load_declared("dataset", path, CORPORA)
        load_declared("reader", format, READERS)
    options = ReadOptions(format, text, pairs, label, separator, tag_scheme, errors, text_pair, label_separator)
    if (built_in := corpus(path)) is not None:
        changed = _changed_options(options)
        if changed or target_path:
            raise ConfigError(f"{', '.join(changed) or 'target_path'}: {path} is built in and takes no read options")
        return DataSource(path, corpus_kind(path), lambda: iter(built_in()))
    if braces := re.search(r"\{([^{},]+),([^{},]+)\}", path):
        if target_path is not None:
            raise ConfigError(f"{path} names both sides already; leave out target_path")
        path, target_path = (path[: braces.start()] + side + path[braces.end() :] for side in braces.groups())
    if target_path is not None:
        return _open_parallel(path, target_path, root, options)
    files, left_out = find_data_and_other_files(path, root)
    file_format = _common_format(path, files, options, left_out) if format == "auto" else options.format
    empty_files: list[Path] = []

    def read_batches() -> Iterator[list[Record]]:
        return read_files(path, files, file_format, options, empty_files, left_out)

    return DataSource(
        path,
        kind_of(file_format, options),
        lambda: chain.from_iterable(read_batches()),
        files,
        options,
        is_stable=file_format not in READER_KINDS,  # a registered reader may change while its files do not
        read_batches=read_batches,
        empty_files=empty_files,
        left_out=left_out,
    )


def _status(file: Path) -> os.stat_result:
    """The status of a file, or of a broken link: that is an error only when it is read."""
    with read_errors(str(file)):
        return file.stat() if file.exists() else file.lstat()


def _changed_options(options: ReadOptions) -> list[str]:
    defaults = asdict(ReadOptions())
    return [name for name, value in asdict(options).items() if value != defaults[name]]


def _open_parallel(path: str, target_path: str, root: str | None, options: ReadOptions) -> DataSource:
    changed = [name for name in _changed_options(options) if name != "errors"]
    if changed:
        raise ConfigError(f"{', '.join(changed)}: parallel files are plain lines of text; the only option is errors")
    source, target = Path(locate(path, root)), Path(locate(target_path, root))
    for file in (source, target):
        if format_of(file) != "text":
            raise ConfigError(
                f"{file.name} is a {format_of(file)} file, not lines of text; name two columns of one file (pairs)"
            )
        if not file.is_file():
            problem = "is not a regular file" if file.exists() else "does not exist"
            raise DataError(f"{file} {problem}: parallel data is two text files, one sentence per line")
    name = f"{path} + {target_path}"
    return DataSource(name, "pairs", lambda: read_parallel(source, target, options), [source, target], options)


def locate(path: str, root: str | None = None) -> str:
    """Resolve a data path: the name of a built-in corpus, a hub source, or an absolute path. Relative paths resolve
    against `root`; without a root, against $HEADWAY_DATA and then the working directory."""
    if corpus(path) is not None or path.startswith(hub.PREFIX):
        return path
    base = expand_user(root or os.environ.get("HEADWAY_DATA") or ".")
    expanded = expand_user(path)
    in_base, in_cwd = os.path.abspath(base / expanded), os.path.abspath(expanded)
    return in_cwd if root is None and _exists(in_cwd) and not _exists(in_base) else in_base


def _exists(path: str) -> bool:
    """Whether a file or folder exists; for "train.{en,de}" its first side, for a glob any match."""
    first = re.sub(r"\{([^{},]*),[^{}]*\}", r"\1", path)
    return os.path.exists(path) or os.path.exists(first) or next(glob_files(path), None) is not None


def find_files(path: str, root: str | None = None) -> list[Path]:
    """A file, or the data files of a folder (at any depth), a glob or a hub dataset, sorted by name."""
    return find_data_and_other_files(path, root)[0]


def find_data_and_other_files(path: str, root: str | None = None) -> tuple[list[Path], list[Path]]:
    """`find_files`, and the visible files of a folder whose endings are not those of data files."""
    if not path:
        raise DataError(f"the data path is empty; give a file, a folder, or a built-in corpus ({', '.join(CORPORA)})")
    location = hub.fetch(path) if path.startswith(hub.PREFIX) else Path(locate(path, root))
    with read_errors(str(location)):
        if location.is_file():
            return [location], []
        if location.is_dir():
            return _data_files(location)
        files = unique_files(glob_files(str(location)))
        if files and files != [location]:
            return files, []
        if location.exists():
            raise DataError(f"{location} is not a regular file, and data is read more than once: save it to a file")
        if location.is_symlink():
            raise DataError(f"{location} is a broken link to {os.readlink(location)}: repair it")
    problem = "no file matches the glob" if glob.has_magic(path) else "no text at"
    raise DataError(
        f"{problem} {location}: neither a file, a folder, nor a built-in corpus ({', '.join(CORPORA)})."
        + (f" {plugin_hint('dataset', location.name)}" if location.name in declared("dataset") else "")
        + (suggest(path, CORPORA) or suggest_file(location))
    )


def _data_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """The files below a folder that have the endings of data files, and the other files."""
    endings = tuple(ending + gz for ending in ENDINGS for gz in ("", ".gz"))
    files: list[Path] = []
    other_files: list[Path] = []
    for file in visible_files(folder):
        (files if file.name.lower().endswith(endings) else other_files).append(file)
    if not files:
        raise DataError(
            f"{folder} holds no data file ({', '.join(ENDINGS)}); name a file, or a glob such as '{folder}/**/*.md'"
        )
    return unique_files(files), sorted(other_files)


def open_pairs(path: str, columns: str | None = None) -> Iterator[Pair]:
    """The pairs at a path; of a table, the named columns or by default the first two."""
    is_file = corpus(path) is None and "{" not in path
    by_format = {"csv": columns or "1,2", "tsv": columns or "1,2", "jsonl": columns, "parquet": columns}
    source = open_source(path, pairs=by_format.get(format_of(path)) if is_file else None)
    if source.kind != "pairs":
        raise DataError(
            f"{path} holds {source.kind}, not pairs: name two files as train.{{en,de}}, or a table of two columns"
        )
    return (record for record in source.records() if isinstance(record, Pair))


def _common_format(path: str, files: list[Path], options: ReadOptions, left_out: list[Path]) -> str:
    """The one format of all files; a folder or glob with several formats is an error."""
    formats: dict[str, int] = {}
    for file in files:
        formats[format_of(file)] = formats.get(format_of(file), 0) + 1
    if len(formats) > 1:
        counts = ", ".join(f"{n} {format}" for format, n in formats.items())
        reason = (
            f"{path} holds files of several formats ({counts}); select one format with a glob, such as "
            f"'{Path(path) / '**' if Path(path).is_dir() else Path(path).parent}/*.txt'"
        )
        raise faults_error(path, files, options, reason=reason, left_out=left_out)
    return next(iter(formats))

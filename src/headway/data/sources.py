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
from headway.data.builtin import CORPORA
from headway.data.formats import ENDINGS, Format, Reading, format_of, kind_of, read, read_parallel
from headway.data.records import Kind, Pair, Record, documents_of, texts_of
from headway.data.tasks import TASKS
from headway.errors import ConfigError, DataError, suggest


@dataclass
class Source:
    """Data that can be read from its beginning, again and again; nothing is kept in memory."""

    name: str
    kind: Kind
    read: Callable[[], Iterator[Record]]
    files: list[Path] = field(default_factory=list)
    how: Reading = field(default_factory=Reading)
    skipped: int = 0  # records of the last reading that were left out because they were empty

    @property
    def size(self) -> int | None:
        """Bytes on disk, compressed ones as they are; None for what is generated."""
        return sum(file.stat().st_size for file in self.files) or None

    @property
    def identity(self) -> list[Any]:
        """What tells this source from another without reading it; changes when a file is written to."""
        stats = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in self.files]
        return [self.name if not self.files else "", self.kind, asdict(self.how), stats]

    def records(self) -> Iterator[Record]:
        """Every record that is not empty; an error where there is none."""
        self.skipped = 0
        found = False
        for record in self.read():
            texts = texts_of(record)
            is_empty = (
                not all(text.strip() for text in texts) if isinstance(record, Pair) else not any(map(str.strip, texts))
            )
            if is_empty:
                self.skipped += 1
                continue
            found = True
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
    format: Format | str = "auto",
    text: str | None = None,
    pairs: str | None = None,
    target_path: str | None = None,
    label: str | None = None,
    separator: str | None = None,
    scheme: str = "bio",
    errors: str = "strict",
) -> Source:
    """The data at a path, or a built-in corpus by name; the options are those of a recipe's `[data]`."""
    how = Reading(format, text, pairs, label, separator, scheme, errors)  # type: ignore[arg-type]
    if path in CORPORA:
        changed = [name for name, value in asdict(how).items() if value != getattr(Reading(), name)]
        if changed or target_path:
            raise ConfigError(f"{', '.join(changed) or 'target_path'}: {path} is built in and read in one way only")
        return Source(path, "pairs" if path in TASKS else "text", CORPORA[path])
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

    return Source(name, kind_of(kind_of_file, how), read_all, files, how)


def _parallel(path: str, target_path: str, root: str | None, how: Reading) -> Source:
    for name in ("text", "pairs", "label"):
        if getattr(how, name) is not None:
            raise ConfigError(f"{name}={getattr(how, name)!r} names a column, but two parallel files have none")
    ours, theirs = Path(locate(path, root)), Path(locate(target_path, root))
    for file in (ours, theirs):
        if not file.is_file():
            raise DataError(f"no file {file}: pairs are two files, a sentence a line")
    return Source(f"{path} + {target_path}", "pairs", lambda: read_parallel(ours, theirs, how), [ours, theirs], how)


def locate(path: str, root: str | None = None) -> str:
    """Where a data path leads, wherever one stands: a built-in corpus by name, or an absolute path."""
    if path in CORPORA or path.startswith(hub.PREFIX):
        return path
    base = Path(root or os.environ.get("HEADWAY_DATA") or ".").expanduser()
    return os.path.abspath(base / Path(path).expanduser())


def find_files(path: str, root: str | None = None) -> list[Path]:
    """A file; the data files of a folder at any depth, of a glob or of a dataset of the hub, in order of name."""
    place = hub.fetch(path) if path.startswith(hub.PREFIX) else Path(locate(path, root))
    if place.is_file():
        return [place]
    if place.is_dir():
        endings = tuple(ending + more for ending in ENDINGS for more in ("", ".gz"))
        visible = (f for f in place.rglob("*") if not any(part.startswith(".") for part in f.relative_to(place).parts))
        files = sorted(f for f in visible if f.is_file() and f.name.lower().endswith(endings))
        if not files:
            raise DataError(
                f"{place} holds no data file ({', '.join(ENDINGS)}); name a file, or a glob such as '{place}/**/*.md'"
            )
        return files
    files = sorted(Path(f) for f in glob.glob(str(place), recursive=True) if Path(f).is_file())
    if not files:
        raise DataError(
            f"no text at {place}: neither a file, a folder, nor a built-in corpus ({', '.join(CORPORA)})."
            + suggest(path, CORPORA)
        )
    return files


def _one_format(path: str, files: list[Path]) -> tuple[list[Path], Format]:
    """Files of one format; a folder or glob that mixes several has to say which is meant."""
    formats: dict[Format, int] = {}
    for file in files:
        formats[format_of(file)] = formats.get(format_of(file), 0) + 1
    if len(formats) > 1:
        counted = ", ".join(f"{n} {format}" for format, n in formats.items())
        raise DataError(f"{path} holds files of several formats ({counted}); name one kind, such as '{path}/**/*.txt'")
    return files, next(iter(formats))

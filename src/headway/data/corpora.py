"""Where text comes from: the corpora that every CPython carries, generated tasks, and the user's own files.

A corpus is a list of documents. Held-out text is the same on every machine and in every run: documents are dealt by
a hash of their content, so that adding one never moves another; a corpus of few documents holds out its end.
"""

import glob
import hashlib
import os
import sysconfig
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from headway.config import DataConfig
from headway.data.tasks import TASKS, task_text
from headway.errors import DataError, suggest

FEW = 20  # documents below which the end of the text is held out instead of every so-many-th document


def pydocs() -> list[str]:
    """The reference prose inside every CPython: about 80 help topics, 0.5 MB of English."""
    from pydoc_data.topics import topics

    return [topics[name] for name in sorted(topics)]


def stdlib() -> list[str]:
    """CPython's own sources, a module a document: about 12 MB of Python. Its test suite is left out."""
    root = Path(sysconfig.get_paths()["stdlib"])
    skipped = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "pydoc_data"}
    files = sorted(f for f in root.rglob("*.py") if not skipped.intersection(f.relative_to(root).parts))
    texts = []
    for file in files:
        try:
            texts.append(file.read_text(encoding="utf-8"))
        except (UnicodeDecodeError, OSError):
            continue  # a few test inputs are written in other encodings on purpose
    return [text for text in texts if text.strip()]


CORPORA: dict[str, Callable[[], list[str]]] = {
    "pydocs": pydocs,
    "stdlib": stdlib,
    **{name: partial(task_text, name) for name in TASKS},
}


class Split(NamedTuple):
    train: list[str]
    valid: list[str]


def load_documents(path: str, root: str | None = None) -> list[str]:
    """A built-in corpus by name, a text file, a folder (its .txt files, at any depth) or a glob; a file a document."""
    if path in CORPORA:
        return CORPORA[path]()
    place = Path(locate(path, root))
    if place.is_file():
        files = [place]
    elif place.is_dir():
        files = sorted(f for f in place.rglob("*.txt") if f.is_file())
        if not files:
            raise DataError(f"{place} holds no .txt file; name a file, or a glob such as '{place}/**/*.md'")
    else:
        files = sorted(Path(f) for f in glob.glob(str(place), recursive=True) if Path(f).is_file())
    if not files:
        raise DataError(
            f"no text at {place}: neither a file, a folder, nor a built-in corpus ({', '.join(CORPORA)})."
            + suggest(path, CORPORA)
        )
    documents = [read_text(file) for file in files]
    if not any(document.strip() for document in documents):
        raise DataError(f"{place} is empty: there is no text to learn from")
    return documents


def locate(path: str, root: str | None = None) -> str:
    """Where a data path leads, wherever one stands: a built-in corpus by name, or an absolute path."""
    if path in CORPORA:
        return path
    base = Path(root or os.environ.get("HEADWAY_DATA") or ".").expanduser()
    return os.path.abspath(base / Path(path).expanduser())


def read_text(file: str | Path) -> str:
    """A UTF-8 file as it is, line ends included."""
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from None
    return decode_text(data, str(file))


def decode_text(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name} is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start:,}; "
            f"convert it first, such as: iconv -f latin1 -t utf-8 {name} > converted.txt"
        ) from None


def split(documents: list[str], valid: float) -> Split:
    """Training and held-out documents; about a share `valid` of the text is held out."""
    if len(documents) >= FEW:
        held = [_fraction(document) < valid for document in documents]
        parts = Split(
            [d for d, is_held in zip(documents, held, strict=True) if not is_held],
            [d for d, is_held in zip(documents, held, strict=True) if is_held],
        )
        if all(parts):
            return parts
    cut = round(sum(map(len, documents)) * (1 - valid))  # in characters, through all documents
    train, held_out = [], []
    for document in documents:
        train.append(document[:cut])
        held_out.append(document[cut:])
        cut = max(0, cut - len(document))
    parts = Split([d for d in train if d], [d for d in held_out if d])
    if not all(parts):
        raise DataError(
            f"{sum(map(len, documents))} characters cannot be split into training and held-out text with "
            f"data.valid={valid}; give more text"
        )
    return parts


def _fraction(document: str) -> float:
    """A number in [0, 1) that depends on the content alone."""
    return int.from_bytes(hashlib.sha256(document.encode()).digest()[:8], "big") / 2**64


def load_split(config: DataConfig) -> Split:
    return split(load_documents(config.path, config.root), config.valid)

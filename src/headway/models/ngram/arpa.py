r"""ARPA, the format of n-gram models that every toolkit reads (Doug Paul; described in SRILM's ngram-format(5)):

    \data\
    ngram 1=2730

    \1-grams:
    -3.1466911	first	-0.0755798         log10 of the probability, the n-gram, log10 of its backoff
"""

import gzip
import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

import numpy as np

from headway.config import NGramConfig
from headway.errors import DataError, InputError
from headway.files import write_chunks
from headway.models.ngram.counts import Array
from headway.models.ngram.model import NGram
from headway.models.ngram.spelling import BEGIN, UNKNOWN, spelled, tokenizer_for, words_of
from headway.tokenizers import Tokenizer

T = TypeVar("T")

NEVER = -99.0  # how zero is written
ROUNDING = 1e-4  # by which log10 of 1 may be above 0
LINES = 1 << 16  # read or written at a time


def write_arpa(model: NGram, file: str | Path) -> dict[str, str]:
    """Write a model; gzipped where the name ends in .gz. Returns the words that had to be named otherwise."""
    smoothing = model.config.smoothing
    if smoothing in ("add-k", "stupid-backoff"):
        raise InputError(
            f"an ARPA file backs off to shorter contexts with a weight, which {smoothing} does not: "
            f"kneser-ney, witten-bell and none can be written"
        )
    names, renamed = spelled(model)
    lines = _lines(model, names)
    chunks: Iterator[bytes] = ("".join(some).encode() for some in lines)
    if str(file).lower().endswith(".gz"):
        chunks = (gzip.compress(chunk, 6, mtime=0) for chunk in chunks)  # members one after the other are one file
    write_chunks(file, chunks)
    return renamed


def _lines(model: NGram, names: list[str]) -> Iterator[list[str]]:
    order = model.config.order
    sizes = [len(model.column("log_p", k)) for k in range(1, order + 1)]
    yield ["\\data\\\n", *(f"ngram {k}={n}\n" for k, n in enumerate(sizes, 1)), "\n"]
    grams = [""]
    for k in range(1, order + 1):
        yield [f"\\{k}-grams:\n"]
        contexts, token = model.contexts(k), model.column("token", k)
        longer: list[str] = []
        for at in range(0, len(token), LINES):
            here = slice(at, at + LINES)
            p = _numbers(model.column("log_p", k)[here])
            if k == 1 and model.begin is not None and at <= model.begin < at + LINES:
                p[model.begin - at] = "0"  # as KenLM writes what is given
            before, words = [grams[c] for c in contexts[here].tolist()], [names[i] for i in token[here].tolist()]
            if k == order:
                yield [f"{x}\t{b}{w}\n" for x, b, w in zip(p, before, words, strict=True)]
                continue
            mine = [f"{b}{w}" for b, w in zip(before, words, strict=True)]
            backoff = _numbers(model.column("backoff", k)[here])
            yield [f"{x}\t{gram}\t{y}\n" for x, gram, y in zip(p, mine, backoff, strict=True)]
            longer += [f"{gram} " for gram in mine]
        grams = longer  # each with the space that follows it
        yield ["\n"]
    yield ["\\end\\\n"]


def _numbers(logs: Array) -> list[str]:
    """Natural logarithms as log10, to seven places. Nearly all are between −10 and 0, and there are millions: their
    digits are found for all at once, column by column."""
    values = np.maximum(logs / math.log(10), NEVER)
    sevenths = np.rint(values * -1e7).astype(np.int64)
    is_usual = (values < 0) & (sevenths < 10**8)
    rest = np.where(is_usual, sevenths, 0)
    digits = np.empty((len(values), 10), np.uint8)  # as in -1.2345678
    digits[:, 0], digits[:, 2] = ord("-"), ord(".")
    for column in (9, 8, 7, 6, 5, 4, 3, 1):
        rest, digit = np.divmod(rest, 10)
        digits[:, column] = digit + ord("0")
    written = digits.view("S10").ravel().astype("U10").tolist()
    for i in np.flatnonzero(~is_usual).tolist():
        written[i] = f"{values[i]:.8g}"
    return written


def read_arpa(file: str | Path) -> NGram:
    """The model in a file, gzipped or not, with a tokenizer for its words."""
    try:
        with open(file, "rb") as start:
            is_packed = start.read(2) == b"\x1f\x8b"
        unpacked = gzip.open if is_packed else open
        with unpacked(file, "rt", encoding="utf-8") as opened:
            return _Reader(str(file), opened).model()
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 ({error}): convert it first") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file} cannot be read: {error}") from None


class _Reader:
    def __init__(self, name: str, lines: Iterable[str]):
        self.name, self.lines, self.number = name, iter(lines), 0

    def line(self) -> str:
        """The next one that is not empty."""
        for line in self.lines:
            self.number += 1
            if line.strip():
                return line.rstrip("\n")
        raise self.wrong("ends in the middle: there is no \\end\\")

    def wrong(self, what: str) -> DataError:
        return DataError(f"{self.name}, line {self.number}: {what}; is it an ARPA file, and whole?")

    def model(self) -> NGram:
        while self.line().strip() != "\\data\\":
            pass  # what stands before is for people
        sizes: list[int] = []
        while (line := self.line().strip()).startswith("ngram "):
            which, equals, n = line.removeprefix("ngram ").replace(" ", "").partition("=")
            if not equals or not which.isdecimal() or not n.isdecimal() or int(which) != len(sizes) + 1:
                raise self.wrong(f"{line!r} does not say how many {len(sizes) + 1}-grams there are")
            sizes.append(int(n))
        if not sizes:
            raise self.wrong("it does not say how many n-grams there are")
        found, p, backoff = self.section(1, sizes[0], line, lambda grams: grams)
        words = [word for some in found for word in some]
        if UNKNOWN not in words:  # some programs shout
            words = [UNKNOWN if word == UNKNOWN.upper() else word for word in words]
        tokenizer = tokenizer_for(words)
        vocab, V = tokenizer.backend.get_vocab(), tokenizer.vocab_size
        vocab.setdefault(UNKNOWN.upper(), vocab[UNKNOWN])
        config = NGramConfig(
            vocab_size=V, order=len(sizes), smoothing="given", bos_id=tokenizer.bos_id, eos_id=tokenizer.eos_id
        )
        model = NGram(config)
        model.tokenizer = tokenizer
        ids = np.array([vocab[word] for word in words], dtype=np.int64)
        self.unique(ids, 1)
        log_p, log_b = np.full(V, -np.inf), np.zeros(V)
        log_p[vocab[UNKNOWN]] = -100 * math.log(10)  # where the file has none: as KenLM does
        log_p[ids], log_b[ids] = p, backoff
        log_p[vocab[BEGIN]] = -np.inf  # it is given
        model.set_columns(1, np.zeros(V, np.int64), np.arange(V), log_p, log_b)
        for k in range(2, len(sizes) + 1):
            rest, p, backoff = self.section(k, sizes[k - 1], self.line().strip(), partial(self.tokens, k, vocab))
            tokens = np.concatenate([np.zeros((0, k), np.int64), *rest])
            context = tokens[:, 0]
            for j in range(1, k - 1):
                context = model.find(j + 1, context, tokens[:, j])
                self.known(context, tokens, j + 1, tokenizer)
            keys = context * V + tokens[:, -1]
            self.unique(keys, k)
            by = np.argsort(keys)
            model.set_columns(k, context[by], tokens[by, -1], p[by], backoff[by])
        if self.line().strip() != "\\end\\":
            raise self.wrong("more than was said at its beginning")
        return model

    def section(self, k: int, n: int, title: str, read: Callable[[list[str]], T]) -> tuple[list[T], Array, Array]:
        """The n-grams of an order, what is `read` of some of them at a time; natural logarithms."""
        if title != f"\\{k}-grams:":
            raise self.wrong(f"{title!r} where \\{k}-grams: should be")
        found, values = [], np.zeros((n, 2))
        for at in range(0, n, LINES):
            p, grams, backoff = self.columns(self.take(min(LINES, n - at)), k)
            here = values[at : at + LINES]
            try:
                here[:, 0] = list(map(float, p))
                here[:, 1] = list(map(float, backoff)) if backoff else 0.0
            except ValueError as error:
                raise self.wrong(f"one of its {k}-grams has a number that is none ({error})") from None
            is_odd = ~(here < np.inf).all(axis=1) | (here[:, 0] > ROUNDING)
            if len(odd := np.flatnonzero(is_odd)):
                what = f"{p[odd[0]]} {grams[odd[0]]}"
                raise self.wrong(f"{what!r:.60} is no n-gram with the logarithm of a probability")
            found.append(read(grams))
        values *= math.log(10)
        values[values <= NEVER * math.log(10)] = -np.inf
        return found, values[:, 0], values[:, 1]

    def take(self, n: int) -> list[str]:
        """The next lines that are not empty."""
        found: list[str] = []
        while len(found) < n:
            some = list(islice(self.lines, n - len(found)))
            self.number += len(some)
            if not some:
                raise self.wrong("ends in the middle: there is no \\end\\")
            found += [line for line in some if line.strip()]
        return found

    def columns(self, lines: list[str], k: int) -> tuple[list[str], list[str], list[str]]:
        """Probabilities, n-grams and backoffs, if there are any. Usually all lines have as many tabs, and one cut makes
        all fields: a list for each of millions of lines would have Python look through them again and again for what
        it can throw away."""
        tabs = {line.count("\t") for line in lines}
        if tabs in ({1}, {2}):
            fields, width = "".join(lines).rstrip("\n").replace("\n", "\t").split("\t"), tabs.pop() + 1
            return fields[0::width], fields[1::width], fields[2::width] if width == 3 else []
        rows = [self.fields(line.rstrip("\n").split("\t"), k) for line in lines]
        return [row[0] for row in rows], [row[1] for row in rows], [row[2] if len(row) == 3 else "0" for row in rows]

    def fields(self, row: list[str], k: int) -> list[str]:
        """Some programs write spaces where tabs should be."""
        if len(row) == 1:
            parts = words_of(row[0])
            row = [parts[0], " ".join(parts[1 : k + 1]), *parts[k + 1 :]]
        if len(row) not in (2, 3):
            raise self.wrong(f"{' '.join(row)!r:.60} is no {k}-gram with its probability")
        return row

    def tokens(self, k: int, vocab: dict[str, int], grams: list[str]) -> Array:
        if {gram.count(" ") for gram in grams} == {k - 1}:
            words = " ".join(grams).split(" ")
        else:
            rows = list(map(words_of, grams))
            if odd := [gram for gram, row in zip(grams, rows, strict=True) if len(row) != k]:
                raise self.wrong(f"{odd[0]!r} is no {k}-gram")
            words = list(chain.from_iterable(rows))
        try:
            return np.fromiter(map(vocab.__getitem__, words), np.int64, len(words)).reshape(-1, k)
        except KeyError as error:
            raise self.wrong(f"{error.args[0]!r} is in a {k}-gram and not among the 1-grams") from None

    def known(self, numbers: Array, tokens: Array, j: int, tokenizer: Tokenizer) -> None:
        if len(missing := np.flatnonzero(numbers < 0)):
            gram = [tokenizer.token(id) for id in tokens[missing[0]].tolist()]
            raise self.wrong(f"{' '.join(gram)!r} is there, but not {' '.join(gram[:j])!r}, which it goes on from")

    def unique(self, keys: Array, k: int) -> None:
        if len(np.unique(keys)) != len(keys):
            raise self.wrong(f"a {k}-gram is there twice")

r"""ARPA, the format of n-gram models that every toolkit reads (Doug Paul; described in SRILM's ngram-format(5)):

    \data\
    ngram 1=2730

    \1-grams:
    -3.1466911	first	-0.0755798         log10 of the probability, the n-gram, log10 of its backoff
"""

import gzip
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from headway.config import NGramConfig
from headway.errors import DataError, InputError
from headway.files import write_chunks
from headway.interop.words import BEGIN, UNKNOWN, spelled, tokenizer_for
from headway.models.counting import Array
from headway.models.ngram import NGram

NEVER = -99.0  # how zero is written
LINES = 1 << 16  # written at a time


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
    if str(file).endswith(".gz"):
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
    except (OSError, EOFError) as error:
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
        words, p, backoff = self.section(1, sizes[0], line)
        tokenizer = tokenizer_for(words)
        vocab, V = tokenizer.backend.get_vocab(), tokenizer.vocab_size
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
            grams, p, backoff = self.section(k, sizes[k - 1], self.line().strip())
            tokens = self.tokens(grams, k, vocab)
            context = tokens[:, 0]
            for j in range(1, k - 1):
                context = model.find(j + 1, context, tokens[:, j])
                self.known(context, grams, j + 1)
            keys = context * V + tokens[:, -1]
            self.unique(keys, k)
            by = np.argsort(keys)
            model.set_columns(k, context[by], tokens[by, -1], p[by], backoff[by])
        if self.line().strip() != "\\end\\":
            raise self.wrong("more than was said at its beginning")
        return model

    def section(self, k: int, n: int, title: str) -> tuple[list[str], Array, Array]:
        """The n-grams of an order; natural logarithms."""
        if title != f"\\{k}-grams:":
            raise self.wrong(f"{title!r} where \\{k}-grams: should be")
        grams: list[str] = []
        numbers: list[tuple[str, str]] = []
        for _ in range(n):
            fields = self.line().split("\t")
            if len(fields) == 1:  # some programs write spaces
                parts = fields[0].split()
                fields = [parts[0], " ".join(parts[1 : k + 1]), *parts[k + 1 :]]
            if len(fields) not in (2, 3):
                raise self.wrong(f"{' '.join(fields)!r:.60} is no {k}-gram with its probability")
            grams.append(fields[1])
            numbers.append((fields[0], fields[2] if len(fields) == 3 else "0"))
        try:
            values = np.array(numbers, dtype=float).reshape(-1, 2) * math.log(10)
        except ValueError as error:
            raise self.wrong(f"one of its {k}-grams has a number that is none ({error})") from None
        values[values <= NEVER * math.log(10)] = -np.inf
        return grams, values[:, 0], values[:, 1]

    def tokens(self, grams: list[str], k: int, vocab: dict[str, int]) -> Array:
        try:
            rows = [[vocab[word] for word in gram.split()] for gram in grams]
        except KeyError as error:
            raise self.wrong(f"{error.args[0]!r} is in a {k}-gram and not among the 1-grams") from None
        if any(len(row) != k for row in rows):
            odd = next(gram for gram, row in zip(grams, rows, strict=True) if len(row) != k)
            raise self.wrong(f"{odd!r} is no {k}-gram")
        return np.array(rows, dtype=np.int64).reshape(-1, k)

    def known(self, numbers: Array, grams: list[str], j: int) -> None:
        if len(missing := np.flatnonzero(numbers < 0)):
            gram = grams[missing[0]].split()
            raise self.wrong(f"{' '.join(gram)!r} is there, but not {' '.join(gram[:j])!r}, which it goes on from")

    def unique(self, keys: Array, k: int) -> None:
        if len(np.unique(keys)) != len(keys):
            raise self.wrong(f"a {k}-gram is there twice")

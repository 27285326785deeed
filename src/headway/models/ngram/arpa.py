r"""ARPA files, the n-gram format every toolkit reads (Doug Paul; described in SRILM's ngram-format(5)):

    \data\
    ngram 1=2730

    \1-grams:
    -3.1466911	first	-0.0755798         log10 of the probability, the n-gram, log10 of its backoff weight

Files have millions of lines, so both directions work on `CHUNK_LINES` lines at a time, column by column.
"""

import gzip
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

import numpy as np

from headway.config import NGramConfig
from headway.config.models import MAX_ORDER
from headway.errors import DataError, InputError
from headway.files import write_chunks
from headway.models.ngram.counts import Array
from headway.models.ngram.model import NGram
from headway.models.ngram.spelling import BOS, UNK, spell_vocabulary, split_words, tokenizer_for
from headway.models.ngram.text_lines import read_lines
from headway.tokenizers import Tokenizer

T = TypeVar("T")

LOG10_ZERO = -99.0  # how the format writes log10(0)
MISSING_UNK_LOG10_P = -100.0  # if the file has no <unk>, as in KenLM
MAX_LOG10_P = 1e-4  # above 0 by rounding
CHUNK_LINES = 1 << 16
MAX_COUNT_DIGITS = 15
TRUNCATED = "the file ends before \\end\\"


# ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────────


def write_arpa(model: NGram, file: str | Path) -> dict[str, str]:
    """Write a model; gzipped if the name ends in .gz. Returns the words that had to be renamed, and their new names."""
    smoothing = model.config.smoothing
    if smoothing in ("add-k", "stupid-backoff"):
        raise InputError(
            f"an ARPA file stores backoff weights to shorter contexts, and {smoothing} has none: "
            f"use kneser-ney, witten-bell or none"
        )
    words, renamed = spell_vocabulary(model)
    chunks: Iterator[bytes] = ("".join(lines).encode() for lines in _line_chunks(model, words))
    if str(file).lower().endswith(".gz"):
        chunks = (gzip.compress(chunk, 6, mtime=0) for chunk in chunks)  # concatenated gzip members are one gzip file
    write_chunks(file, chunks)
    return renamed


def _line_chunks(model: NGram, words: list[str]) -> Iterator[list[str]]:
    order = model.config.order
    sizes = [len(model.column("log_p", k)) for k in range(1, order + 1)]
    yield ["\\data\\\n", *(f"ngram {k}={n}\n" for k, n in enumerate(sizes, 1)), "\n"]
    contexts = [""]  # the (k−1)-grams as text, each followed by a space
    for k in range(1, order + 1):
        yield [f"\\{k}-grams:\n"]
        context_indices, tokens = model.context_indices(k), model.column("token", k)
        next_contexts: list[str] = []
        for start in range(0, len(tokens), CHUNK_LINES):
            chunk = slice(start, start + CHUNK_LINES)
            p = _format_log10(model.column("log_p", k)[chunk])
            bos_id = model.context_only_id
            if k == 1 and bos_id is not None and start <= bos_id < start + CHUNK_LINES:
                p[bos_id - start] = "0"  # as KenLM writes BOS, which is never predicted
            prefixes = [contexts[c] for c in context_indices[chunk].tolist()]
            last_words = [words[token] for token in tokens[chunk].tolist()]
            if k == order:
                yield [f"{x}\t{prefix}{word}\n" for x, prefix, word in zip(p, prefixes, last_words, strict=True)]
                continue
            grams = [f"{prefix}{word}" for prefix, word in zip(prefixes, last_words, strict=True)]
            backoff = _format_log10(model.column("backoff", k)[chunk])
            yield [f"{x}\t{gram}\t{y}\n" for x, gram, y in zip(p, grams, backoff, strict=True)]
            next_contexts += [f"{gram} " for gram in grams]
        contexts = next_contexts
        yield ["\n"]
    yield ["\\end\\\n"]


def _format_log10(logs: Array) -> list[str]:
    """Natural logarithms as log10 with seven decimals. There are millions of them and nearly all lie between −10 and 0,
    so the digits of those are computed for the whole array, one decimal place at a time."""
    values = np.maximum(logs / math.log(10), LOG10_ZERO)
    scaled = np.rint(values * -1e7).astype(np.int64)
    is_common = (values < 0) & (scaled < 10**8)
    remainder = np.where(is_common, scaled, 0)
    digits = np.empty((len(values), 10), np.uint8)  # as in -1.2345678
    digits[:, 0], digits[:, 2] = ord("-"), ord(".")
    for column in (9, 8, 7, 6, 5, 4, 3, 1):
        remainder, digit = np.divmod(remainder, 10)
        digits[:, column] = digit + ord("0")
    formatted = digits.view("S10").ravel().astype("U10").tolist()
    for i in np.flatnonzero(~is_common).tolist():
        formatted[i] = f"{values[i]:.8g}"
    return formatted


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────


def read_arpa(file: str | Path) -> NGram:
    """Read a model from a file, gzipped or not, with a tokenizer for its words."""
    return _Reader(str(file), read_lines(file)).read_model()


class _Reader:
    """Reads the file front to back; errors name the line."""

    def __init__(self, name: str, lines: Iterable[str]):
        self.name, self.lines, self.line_number = name, iter(lines), 0

    def error(self, problem: str) -> DataError:
        return DataError(f"{self.name}, line {self.line_number}: {problem}; is this a complete ARPA file?")

    # ── the model ─────────────────────────────────────────────────────────────────────────────────────────────────

    def read_model(self) -> NGram:
        sizes, title = self.read_header()
        model, vocab = self.read_unigrams(sizes, title)
        for k in range(2, len(sizes) + 1):
            self.read_order(k, sizes[k - 1], model, vocab)
        if self.next_line().strip() != "\\end\\":
            raise self.error("expected \\end\\, but there are more n-grams than the header says")
        return model

    def read_header(self) -> tuple[list[int], str]:
        """The number of n-grams of each order, and the line after them. Text before \\data\\ is a comment."""
        while self.next_line().strip() != "\\data\\":
            pass
        sizes: list[int] = []
        while (line := self.next_line().strip()).startswith("ngram "):
            k, equals, n = line.removeprefix("ngram ").replace(" ", "").partition("=")
            is_number = n.isdecimal() and len(n) <= MAX_COUNT_DIGITS
            if not equals or k != str(len(sizes) + 1) or not is_number or len(sizes) == MAX_ORDER:
                raise self.error(f"expected 'ngram {len(sizes) + 1}=COUNT', got {line!r:.60}")
            sizes.append(int(n))
        if not sizes:
            raise self.error(f"expected 'ngram 1=COUNT', got {line!r:.60}")
        return sizes, line

    def read_unigrams(self, sizes: list[int], title: str) -> tuple[NGram, dict[str, int]]:
        """The unigrams are the vocabulary: a model with them and their tokenizer, and the ids of the words."""
        chunks, p, backoff = self.read_section(1, sizes[0], title, lambda grams: grams)
        words = [word for chunk in chunks for word in chunk]
        if UNK not in words:  # some programs write <UNK>
            words = [UNK if word == UNK.upper() else word for word in words]
        tokenizer = tokenizer_for(words)
        vocab, V = tokenizer.vocab, tokenizer.vocab_size
        vocab.setdefault(UNK.upper(), vocab[UNK])
        config = NGramConfig(
            vocab_size=V, order=len(sizes), smoothing="given", bos_id=tokenizer.bos_id, eos_id=tokenizer.eos_id
        )
        model = NGram(config)
        model.tokenizer = tokenizer
        ids = np.array([vocab[word] for word in words], dtype=np.int64)
        self.check_unique(ids, 1)
        log_p, log_backoff = np.full(V, -np.inf), np.zeros(V)
        log_p[vocab[UNK]] = MISSING_UNK_LOG10_P * math.log(10)
        log_p[ids], log_backoff[ids] = p, backoff
        log_p[vocab[BOS]] = -np.inf  # never predicted
        model.set_log_probs(1, np.zeros(V, np.int64), np.arange(V), log_p, log_backoff)
        return model, vocab

    def read_order(self, k: int, size: int, model: NGram, vocab: dict[str, int]) -> None:
        """Read the k-grams (k > 1), sort them as the model needs them, and store them there."""
        chunks, p, backoff = self.read_section(k, size, self.next_line().strip(), partial(self.to_ids, k, vocab))
        tokens = np.concatenate([np.zeros((0, k), np.int64), *chunks])
        context = tokens[:, 0]
        for j in range(1, k - 1):
            context = model.find(j + 1, context, tokens[:, j])
            self.check_contexts(context, tokens, j + 1, model.tokenizer)
        keys = context * model.config.vocab_size + tokens[:, -1]
        self.check_unique(keys, k)
        by_key = np.argsort(keys)
        model.set_log_probs(k, context[by_key], tokens[by_key, -1], p[by_key], backoff[by_key])

    def read_section(self, k: int, n: int, title: str, parse: Callable[[list[str]], T]) -> tuple[list[T], Array, Array]:
        """The n k-grams, each chunk of them as `parse` returns it; their log probabilities and log backoff weights,
        natural."""
        if title != f"\\{k}-grams:":
            raise self.error(f"expected \\{k}-grams:, got {title!r:.60}")
        parsed, read = [], [np.zeros((0, 2))]  # nothing of size n: the header may be wrong
        for start in range(0, n, CHUNK_LINES):
            p, grams, backoff = self.split_columns(self.next_lines(min(CHUNK_LINES, n - start)), k)
            chunk = np.zeros((len(p), 2))
            try:
                chunk[:, 0] = list(map(float, p))
                chunk[:, 1] = list(map(float, backoff)) if backoff else 0.0
            except ValueError as error:
                raise self.error(f"a {k}-gram has an invalid number ({error})") from None
            is_invalid = ~(chunk < np.inf).all(axis=1) | (chunk[:, 0] > MAX_LOG10_P)
            if len(invalid := np.flatnonzero(is_invalid)):
                entry = f"{p[invalid[0]]} {grams[invalid[0]]}"
                raise self.error(f"{entry!r:.60} is not an n-gram with the log10 of a probability")
            parsed.append(parse(grams))
            read.append(chunk)
        values = np.concatenate(read)
        values *= math.log(10)
        values[values <= LOG10_ZERO * math.log(10)] = -np.inf
        return parsed, values[:, 0], values[:, 1]

    # ── lines and columns ─────────────────────────────────────────────────────────────────────────────────────────

    def next_line(self) -> str:
        """The next line that is not empty."""
        for line in self.lines:
            self.line_number += 1
            if line.strip():
                return line.rstrip("\n")
        raise self.error(TRUNCATED)

    def next_lines(self, n: int) -> list[str]:
        """The next n lines that are not empty."""
        lines: list[str] = []
        while len(lines) < n:
            batch = list(islice(self.lines, n - len(lines)))
            self.line_number += len(batch)
            if not batch:
                raise self.error(TRUNCATED)
            lines += [line for line in batch if line.strip()]
        return lines

    def split_columns(self, lines: list[str], k: int) -> tuple[list[str], list[str], list[str]]:
        """Probabilities, n-grams and backoff weights, if any. Usually all lines have the same number of tabs, and a
        single split makes all fields: one list per line, for millions of lines, would keep Python's garbage collector
        busy."""
        tab_counts = {line.count("\t") for line in lines}
        if tab_counts in ({1}, {2}):
            fields, width = "".join(lines).rstrip("\n").replace("\n", "\t").split("\t"), tab_counts.pop() + 1
            return fields[0::width], fields[1::width], fields[2::width] if width == 3 else []
        rows = [self.split_fields(line.rstrip("\n").split("\t"), k) for line in lines]
        return [row[0] for row in rows], [row[1] for row in rows], [row[2] if len(row) == 3 else "0" for row in rows]

    def split_fields(self, row: list[str], k: int) -> list[str]:
        """Some programs write spaces in place of tabs."""
        if len(row) == 1:
            words = split_words(row[0])
            row = [words[0], " ".join(words[1 : k + 1]), *words[k + 1 :]]
        if len(row) not in (2, 3):
            raise self.error(f"{' '.join(row)!r:.60} is not a {k}-gram with its probability")
        return row

    def to_ids(self, k: int, vocab: dict[str, int], grams: list[str]) -> Array:
        """The token ids (N, k) of k-grams."""
        if {gram.count(" ") for gram in grams} == {k - 1}:
            words = " ".join(grams).split(" ")
        else:
            rows = list(map(split_words, grams))
            if invalid := [gram for gram, row in zip(grams, rows, strict=True) if len(row) != k]:
                raise self.error(f"{invalid[0]!r} is not a {k}-gram")
            words = list(chain.from_iterable(rows))
        try:
            return np.fromiter(map(vocab.__getitem__, words), np.int64, len(words)).reshape(-1, k)
        except KeyError as error:
            raise self.error(f"{error.args[0]!r} occurs in a {k}-gram but is not among the 1-grams") from None

    # ── checks ────────────────────────────────────────────────────────────────────────────────────────────────────

    def check_contexts(self, indices: Array, tokens: Array, j: int, tokenizer: Tokenizer) -> None:
        if len(missing := np.flatnonzero(indices < 0)):
            words = [tokenizer.token(id) for id in tokens[missing[0]].tolist()]
            raise self.error(f"{' '.join(words)!r} is listed, but not its prefix {' '.join(words[:j])!r}")

    def check_unique(self, keys: Array, k: int) -> None:
        if len(np.unique(keys)) != len(keys):
            raise self.error(f"a {k}-gram is listed twice")

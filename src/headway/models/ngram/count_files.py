"""N-grams and how often each was there, one a line, as the lecture shows those of the web (Brants & Franz 2006):

    serve as the index 223

A model writes those of all its orders. Read, such a file is smoothed as any counts are; where it holds the longest
n-grams alone, the shorter ones are what these begin and end with.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headway.config import NGramConfig
from headway.errors import DataError, InputError
from headway.files import read_utf8, write_chunks
from headway.models.ngram.counts import Array, Counts, Grams
from headway.models.ngram.model import NGram
from headway.models.ngram.spelling import BEGIN, END, spelled, tokenizer_for, words_of

DIGITS = 15  # of a count: sums of a thousand of them still fit


def write_counts(model: NGram, file: str | Path) -> dict[str, str]:
    """Write what a model has counted. Returns the words that had to be named otherwise."""
    if not len(model.column("count", 1)):
        raise InputError("these n-grams came with probabilities and without counts: there is nothing to write")
    names, renamed = spelled(model)
    write_chunks(file, ("".join(lines).encode() for lines in _lines(model, names)))
    return renamed


def _lines(model: NGram, names: list[str]) -> Iterator[list[str]]:
    grams = names
    for k in range(1, model.config.order + 1):
        if k > 1:
            contexts, tokens = model.contexts(k).tolist(), model.column("token", k).tolist()
            grams = [f"{grams[c]} {names[t]}" for c, t in zip(contexts, tokens, strict=True)]
        yield [f"{gram} {n}\n" for gram, n in zip(grams, model.column("count", k).tolist(), strict=True) if n]


def read_counts(file: str | Path, **settings: Any) -> NGram:
    """A model of the counts in a file; `settings` are those of an n-gram: smoothing, prune, k."""
    by_order: dict[int, dict[tuple[str, ...], int]] = {}
    try:
        text = read_utf8(file)
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 ({error}): convert it first") from None
    for number, line in enumerate(text.split("\n"), 1):
        if not words_of(line):
            continue
        *words, n = words_of(line)
        if not words or not n.isdecimal() or len(n) > DIGITS:
            raise DataError(f"{file}, line {number}: {line!r:.60} is not an n-gram and how often it was there")
        if BEGIN in words[1:] or END in words[:-1]:
            raise DataError(f"{file}, line {number}: {line!r:.60}: {BEGIN} begins a sentence and {END} ends it")
        of = by_order.setdefault(len(words), {})
        of[tuple(words)] = of.get(tuple(words), 0) + int(n)
    if not by_order:
        raise DataError(f"{file} holds no n-grams: lines such as 'serve as the index 223'")
    order = max(by_order)
    for k in range(order, 1, -1):
        _shorter(by_order.setdefault(k - 1, {}), by_order[k])
    tokenizer = tokenizer_for(gram[0] for gram in by_order[1])
    vocab, V = tokenizer.backend.get_vocab(), tokenizer.vocab_size
    config = NGramConfig(vocab_size=V, order=order, bos_id=tokenizer.bos_id, eos_id=tokenizer.eos_id, **settings)
    model = NGram(config)
    model.tokenizer = tokenizer
    model.smooth(_counts(by_order, order, vocab, V, model.begin))
    return model


def _shorter(known: dict[tuple[str, ...], int], longer: dict[tuple[str, ...], int]) -> None:
    """Add what n-grams begin and end with, where it is not there: what they begin with as often as they are."""
    begins: dict[tuple[str, ...], int] = {}
    for gram, n in longer.items():
        begins[gram[:-1]] = begins.get(gram[:-1], 0) + n
    ends: dict[tuple[str, ...], int] = {}
    for gram, n in longer.items():
        ends[gram[1:]] = ends.get(gram[1:], 0) + n
    for gram in begins | ends:
        if gram not in known:
            known[gram] = max(begins.get(gram, 0), ends.get(gram, 0))


def _counts(
    by_order: dict[int, dict[tuple[str, ...], int]], order: int, vocab: dict[str, int], V: int, begin: int | None
) -> Counts:
    """Numbered as counting.py numbers them."""
    found: list[Grams] = []
    numbers: dict[tuple[str, ...], int] = {(word,): id for word, id in vocab.items()}
    for k in range(1, order + 1):
        if k == 1:
            count = np.zeros(V, np.int64)
            for gram, n in by_order[1].items():
                count[numbers[gram]] = n
            is_first = np.arange(V) == (-1 if begin is None else begin)
            found.append(Grams(np.arange(V), count, np.zeros(V, np.int64), is_first, np.zeros(V, bool)))
            continue
        grams = list(by_order[k])
        keys = np.array([numbers[g[:-1]] * V + vocab[g[-1]] for g in grams], dtype=np.int64)
        by = np.argsort(keys)
        suffix = np.array([numbers[g[1:]] for g in grams], dtype=np.int64)[by]
        count = np.array(list(by_order[k].values()), dtype=np.int64)[by]
        is_first = found[-1].is_first[keys[by] // V]
        found.append(Grams(keys[by], count, suffix, is_first, np.zeros(len(grams), bool)))
        numbers = {grams[i]: place for place, i in enumerate(by.tolist())}
    return Counts(found, V, begin, first_seen=_in_file(by_order[1], vocab, V))


def _in_file(unigrams: dict[tuple[str, ...], int], vocab: dict[str, int], V: int) -> Array:
    """No text says where a word was first; the file's order will do."""
    first = np.full(V, -2, np.int64)
    for place, (word,) in enumerate(unigrams):
        first[vocab[word]] = place
    return first

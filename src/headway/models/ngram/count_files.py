"""Count files: one n-gram and its count per line, as in the Web 1T corpus of the lecture (Brants & Franz 2006):

    serve as the index 223

`write_counts` writes the n-grams of all orders of a model. `read_counts` fits a model to such a file, with any
smoothing. If the file holds only the longest n-grams, the counts of shorter ones are derived from their prefixes and
suffixes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headway.config import NGramConfig
from headway.config.models import MAX_ORDER
from headway.errors import DataError, InputError
from headway.files import write_chunks
from headway.models.ngram.counts import Array, Counts, Grams
from headway.models.ngram.model import NGram
from headway.models.ngram.spelling import BOS, EOS, spell_vocabulary, split_words, tokenizer_for
from headway.models.ngram.text_lines import read_lines

MAX_COUNT_DIGITS = 15  # the sum of a thousand such counts still fits in 64 bits

GramCounts = dict[tuple[str, ...], int]


# ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────────


def write_counts(model: NGram, file: str | Path) -> dict[str, str]:
    """Write the counts of a model. Returns the words that had to be renamed, and their new names."""
    if not len(model.column("count", 1)):
        raise InputError("this model has probabilities but no counts (it was read from an ARPA file): nothing to write")
    words, renamed = spell_vocabulary(model)
    write_chunks(file, ("".join(lines).encode() for lines in _line_chunks(model, words)))
    return renamed


def _line_chunks(model: NGram, words: list[str]) -> Iterator[list[str]]:
    grams = words
    for k in range(1, model.config.order + 1):
        if k > 1:
            contexts, tokens = model.context_indices(k).tolist(), model.column("token", k).tolist()
            grams = [f"{grams[c]} {words[t]}" for c, t in zip(contexts, tokens, strict=True)]
        yield [f"{gram} {n}\n" for gram, n in zip(grams, model.column("count", k).tolist(), strict=True) if n]


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────────


def read_counts(file: str | Path, **settings: Any) -> NGram:
    """Fit a model to the counts in a file; `settings` are those of `NGramConfig`: smoothing, prune, k."""
    by_order = _parse(file)
    order = max(by_order)
    for k in range(order, 1, -1):
        _add_shorter(by_order.setdefault(k - 1, {}), by_order[k])
    tokenizer = tokenizer_for(gram[0] for gram in by_order[1])
    vocab, V = tokenizer.vocab, tokenizer.vocab_size
    config = NGramConfig(vocab_size=V, order=order, bos_id=tokenizer.bos_id, eos_id=tokenizer.eos_id, **settings)
    model = NGram(config)
    model.tokenizer = tokenizer
    model.smooth(_to_arrays(by_order, order, vocab, V, model.context_only_id))
    return model


def _parse(file: str | Path) -> dict[int, GramCounts]:
    """The counts in a file, by order. The counts of an n-gram that occurs more than once are added."""
    by_order: dict[int, GramCounts] = {}
    for number, line in enumerate(read_lines(file), 1):
        line = line.removesuffix("\n")
        if not split_words(line):
            continue
        *words, n = split_words(line)
        if not words or not n.isdecimal() or len(n) > MAX_COUNT_DIGITS:
            raise DataError(f"{file}, line {number}: {line!r:.60} is not an n-gram followed by its count")
        if BOS in words[1:] or EOS in words[:-1]:
            raise DataError(
                f"{file}, line {number}: {line!r:.60}: {BOS} may only start an n-gram and {EOS} may only end one"
            )
        if len(words) > MAX_ORDER:
            raise DataError(f"{file}, line {number}: an n-gram of {len(words):,} words; at most {MAX_ORDER:,} are read")
        counts = by_order.setdefault(len(words), {})
        counts[tuple(words)] = counts.get(tuple(words), 0) + int(n)
    if not by_order:
        raise DataError(f"{file} holds no n-grams: expected lines such as 'serve as the index 223'")
    return by_order


def _add_shorter(counts: GramCounts, longer: GramCounts) -> None:
    """Add the prefixes and suffixes of the `longer` n-grams that are missing from `counts`.

    Either sum is a lower bound on the true count, so the larger one is taken.
    """
    as_prefix: GramCounts = {}
    for gram, n in longer.items():
        as_prefix[gram[:-1]] = as_prefix.get(gram[:-1], 0) + n
    as_suffix: GramCounts = {}
    for gram, n in longer.items():
        as_suffix[gram[1:]] = as_suffix.get(gram[1:], 0) + n
    for gram in as_prefix | as_suffix:
        if gram not in counts:
            counts[gram] = max(as_prefix.get(gram, 0), as_suffix.get(gram, 0))


def _to_arrays(
    by_order: dict[int, GramCounts], order: int, vocab: dict[str, int], V: int, bos_id: int | None
) -> Counts:
    """The counts with the n-grams indexed as in counts.py."""
    grams: list[Grams] = []
    indices: dict[tuple[str, ...], int] = {(word,): id for word, id in vocab.items()}
    for k in range(1, order + 1):
        if k == 1:
            count = np.zeros(V, np.int64)
            for gram, n in by_order[1].items():
                count[indices[gram]] = n
            starts_with_bos = np.arange(V) == (-1 if bos_id is None else bos_id)
            grams.append(Grams(np.arange(V), count, np.zeros(V, np.int64), starts_with_bos, np.zeros(V, bool)))
            continue
        words = list(by_order[k])
        keys = np.array([indices[gram[:-1]] * V + vocab[gram[-1]] for gram in words], dtype=np.int64)
        order_by_key = np.argsort(keys)
        keys = keys[order_by_key]
        suffix = np.array([indices[gram[1:]] for gram in words], dtype=np.int64)[order_by_key]
        count = np.array(list(by_order[k].values()), dtype=np.int64)[order_by_key]
        starts_with_bos = grams[-1].starts_with_bos[keys // V]
        grams.append(Grams(keys, count, suffix, starts_with_bos, np.zeros(len(words), bool)))
        indices = {words[i]: index for index, i in enumerate(order_by_key.tolist())}
    return Counts(grams, V, bos_id, first_position=_positions_in_file(by_order[1], vocab, V))


def _positions_in_file(unigrams: GramCounts, vocab: dict[str, int], V: int) -> Array:
    """The rank of each word in the file, which stands in for its first position in the unknown text."""
    first_position = np.full(V, -2, np.int64)
    for position, (word,) in enumerate(unigrams):
        first_position[vocab[word]] = position
    return first_position

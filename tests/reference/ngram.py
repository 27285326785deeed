"""Kneser-Ney smoothing straight from the definition, with dicts, one n-gram at a time."""

import math
from collections import Counter, defaultdict

BOS = "<s>"


def ngrams(sentences: list[list[str]], order: int) -> dict[int, Counter]:
    """The n-gram counts of each order; sentences include their <s> and </s>."""
    counts = {k: Counter() for k in range(1, order + 1)}
    for words in sentences:
        for k in counts:
            counts[k].update(tuple(words[i : i + k]) for i in range(len(words) - k + 1))
    return counts


def kneser_ney(sentences: list[list[str]], order: int, vocabulary: list[str]) -> dict[tuple, tuple[float, float]]:
    """n-gram → (probability, backoff), interpolated modified Kneser-Ney (Chen & Goodman 1999) as in lmplz."""
    counts = ngrams(sentences, order)
    adjusted = {order: dict(counts[order])}
    for k in range(1, order):
        preceding = defaultdict(set)
        for gram in counts[k + 1]:
            preceding[gram[1:]].add(gram[0])
        adjusted[k] = {g: c if g[0] == BOS else len(preceding[g]) for g, c in counts[k].items()}
    adjusted[1].pop((BOS,), None)
    discounts = {k: _discounts(_counts_of_counts(adjusted, counts, sentences, k, order)) for k in adjusted}
    table: dict[tuple, tuple[float, float]] = {}
    words = [word for word in vocabulary if word != BOS]
    for k in range(1, order + 1):
        D = discounts[k]
        continuations = defaultdict(dict)
        for gram, a in adjusted[k].items():
            continuations[gram[:-1]][gram[-1]] = a
        for context, counts_after in continuations.items():
            total = sum(counts_after.values())
            gamma = sum(D[min(a, 3)] for a in counts_after.values()) / total
            if context:
                table[context] = (table[context][0], gamma)
            for word in words if k == 1 else counts_after:
                a = counts_after.get(word, 0)
                lower = 1 / len(words) if k == 1 else table[(*context, word)[1:]][0]
                table[(*context, word)] = ((a - D[min(a, 3)]) / total + gamma * lower, 1.0)
        if k == 1:
            table[(BOS,)] = (0.0, 1.0)
    return table


def _counts_of_counts(adjusted: dict, counts: dict, sentences: list[list[str]], k: int, order: int) -> list[int]:
    """How many k-grams have adjusted count 1, 2, 3 and 4, for the discounts. lmplz takes the n-gram it visits last, and
    the suffixes of that n-gram, by their plain count."""
    tallied = dict(adjusted[k])
    rank = {BOS: -1, "</s>": -1}
    for word in (word for words in sentences for word in words):
        rank.setdefault(word, len(rank))
    if k < order:
        grams = (gram for j in range(1, order) for gram in counts[j])
        last = max(grams, key=lambda gram: [rank[word] for word in reversed(gram)])
        if len(last) >= k and last[-k:] in tallied:
            tallied[last[-k:]] = counts[k][last[-k:]]
    counts_of_counts = Counter(tallied.values())
    return [counts_of_counts[j] for j in (1, 2, 3, 4)]


def _discounts(counts_of_counts: list[int]) -> list[float]:
    n1, n2, n3, n4 = counts_of_counts
    if 0 in (n1, n2, n3):
        return [0.0, 0.5, 1.0, 1.5]
    Y = n1 / (n1 + 2 * n2)
    D = [0.0, 1 - 2 * Y * n2 / n1, 2 - 3 * Y * n3 / n2, 3 - 4 * Y * n4 / n3]
    return D if all(0 <= d <= j for j, d in enumerate(D)) else [0.0, 0.5, 1.0, 1.5]


def probability(table: dict[tuple, tuple[float, float]], history: list[str], word: str, order: int) -> float:
    """p(word | history), by the backoff recursion."""
    context = tuple(history[max(0, len(history) - order + 1) :])
    if (*context, word) in table:
        return table[(*context, word)][0]
    assert context, word
    return table.get(context, (0.0, 1.0))[1] * probability(table, list(context[1:]), word, order)


def log10(p: float) -> float:
    return math.log10(p) if p > 0 else -99.0

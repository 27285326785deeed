"""N-gram smoothing in dicts, one n-gram at a time, from the definitions."""

import math
from collections import Counter, defaultdict

BEGIN = "<s>"


def ngrams(sentences: list[list[str]], order: int) -> dict[int, Counter]:
    """Counts of every order; sentences come with their <s> and </s>."""
    found = {k: Counter() for k in range(1, order + 1)}
    for words in sentences:
        for k in found:
            found[k].update(tuple(words[i : i + k]) for i in range(len(words) - k + 1))
    return found


def kneser_ney(sentences: list[list[str]], order: int, vocabulary: list[str]) -> dict[tuple, tuple[float, float]]:
    """n-gram → (probability, backoff), interpolated modified Kneser-Ney (Chen & Goodman 1999), lmplz's conventions."""
    counts = ngrams(sentences, order)
    adjusted = {order: dict(counts[order])}
    for k in range(1, order):
        before = defaultdict(set)
        for gram in counts[k + 1]:
            before[gram[1:]].add(gram[0])
        adjusted[k] = {g: c if g[0] == BEGIN else len(before[g]) for g, c in counts[k].items()}
    adjusted[1].pop((BEGIN,), None)
    discounts = {k: _discounts(_tallied(adjusted, counts, sentences, k, order)) for k in adjusted}
    table: dict[tuple, tuple[float, float]] = {}
    words = [word for word in vocabulary if word != BEGIN]
    for k in range(1, order + 1):
        D = discounts[k]
        followers = defaultdict(dict)
        for gram, a in adjusted[k].items():
            followers[gram[:-1]][gram[-1]] = a
        for context, of in followers.items():
            total = sum(of.values())
            gamma = sum(D[min(a, 3)] for a in of.values()) / total
            if context:
                table[context] = (table[context][0], gamma)
            for word in words if k == 1 else of:
                a = of.get(word, 0)
                below = 1 / len(words) if k == 1 else table[(*context, word)[1:]][0]
                table[(*context, word)] = ((a - D[min(a, 3)]) / total + gamma * below, 1.0)
        if k == 1:
            table[(BEGIN,)] = (0.0, 1.0)
    return table


def _tallied(adjusted: dict, counts: dict, sentences: list[list[str]], k: int, order: int) -> list[int]:
    """What the discounts are computed from: lmplz takes the last n-gram it comes to by its count."""
    values = dict(adjusted[k])
    rank = {BEGIN: -1, "</s>": -1}
    for word in (word for words in sentences for word in words):
        rank.setdefault(word, len(rank))
    if k < order:
        grams = (gram for j in range(1, order) for gram in counts[j])
        last = max(grams, key=lambda gram: [rank[word] for word in reversed(gram)])  # with all that it ends in
        if len(last) >= k and last[-k:] in values:
            values[last[-k:]] = counts[k][last[-k:]]
    tally = Counter(values.values())
    return [tally[j] for j in (1, 2, 3, 4)]


def _discounts(n: list[int]) -> list[float]:
    n1, n2, n3, n4 = n
    if 0 in (n1, n2, n3):
        return [0.0, 0.5, 1.0, 1.5]
    Y = n1 / (n1 + 2 * n2)
    D = [0.0, 1 - 2 * Y * n2 / n1, 2 - 3 * Y * n3 / n2, 3 - 4 * Y * n4 / n3]
    return D if all(0 <= d <= j for j, d in enumerate(D)) else [0.0, 0.5, 1.0, 1.5]


def probability(table: dict[tuple, tuple[float, float]], history: list[str], word: str, order: int) -> float:
    """By the recursion itself."""
    context = tuple(history[max(0, len(history) - order + 1) :])
    if (*context, word) in table:
        return table[(*context, word)][0]
    assert context, word
    return table.get(context, (0.0, 1.0))[1] * probability(table, list(context[1:]), word, order)


def log10(p: float) -> float:
    return math.log10(p) if p > 0 else -99.0

"""How diverse generated texts are: distinct-n, repetition and self-BLEU, on words split at whitespace.

    distinct-n    different n-grams / n-grams, over all texts (Li et al. 2016); no n-gram spans two texts
    repetition    1 − different 4-grams / 4-grams of a text, averaged over the texts (Welleck et al. 2020, seq-rep-4)
    self-BLEU     BLEU-4 of each text with all the others as its references, averaged (Zhu et al. 2018)

Distinct-n grows with diversity; repetition and self-BLEU fall. All are from 0 to 1.
"""

import math
from collections import Counter
from collections.abc import Sequence

from headway.errors import InputError

MAX_ORDER = 4  # of BLEU and of repetition


def ngrams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    """All sequences of n words in a row."""
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def distinct(texts: Sequence[str], n: int) -> float:
    """Different n-grams of words divided by n-grams; 0 if there are none.

    >>> distinct(["a b a b"], 2)
    0.6666666666666666
    """
    all_ngrams = [ngram for text in texts for ngram in ngrams(text.split(), n)]
    return len(set(all_ngrams)) / len(all_ngrams) if all_ngrams else 0.0


def repetition(texts: Sequence[str], n: int = MAX_ORDER) -> float:
    """The fraction of n-grams that occurred before in the same text, averaged over the texts; 0 for a shorter text.

    >>> repetition(["a b a b a b"], 2)
    0.6
    """
    if not texts:
        raise InputError("no texts to measure")
    counts = [(len(set(grams)), len(grams)) for grams in (ngrams(text.split(), n) for text in texts)]
    return sum(1 - n_distinct / n_all for n_distinct, n_all in counts if n_all) / len(texts)


def self_bleu(texts: Sequence[str]) -> float:
    """The mean BLEU of each text against all the others: 1 if all are equal, near 0 if they share no words."""
    if len(texts) < 2:
        raise InputError(f"self-BLEU of {len(texts)} text compares nothing: give at least 2")
    words = [text.split() for text in texts]
    return sum(_bleu(hypothesis, [*words[:i], *words[i + 1 :]]) for i, hypothesis in enumerate(words)) / len(texts)


def _bleu(hypothesis: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Sentence BLEU (Papineni et al. 2002) as sacreBLEU computes it by default: the orders that the hypothesis is long
    enough for, and 1/2, 1/4, … in place of matches where an order has none (Lin & Och 2004, exponential)."""
    if not hypothesis:
        return float(any(not reference for reference in references))
    log_precision, order, smoothing = 0.0, min(MAX_ORDER, len(hypothesis)), 1.0
    for n in range(1, order + 1):
        counts = Counter(ngrams(hypothesis, n))
        most: Counter[tuple[str, ...]] = Counter()
        for reference in references:
            most |= Counter(ngrams(reference, n))
        n_matches = (counts & most).total()
        if n == 1 and not n_matches:
            return 0.0
        smoothing = smoothing if n_matches else smoothing / 2
        log_precision += math.log((n_matches or smoothing) / counts.total()) / order
    closest = min((abs(len(reference) - len(hypothesis)), len(reference)) for reference in references)[1]
    brevity_penalty = min(0.0, 1 - closest / len(hypothesis))
    return math.exp(log_precision + brevity_penalty)

"""GLEU, the metric of grammatical error correction: BLEU that also looks at the source.

Napoles et al. 2015, "Ground Truth for Grammatical Error Correction Metrics", with the revision of 2016 ("GLEU Without
Tuning"). A hypothesis earns its n-grams that are in the reference, and loses those that it kept from the source
although the reference changed them:

    matches_n = max(0, Σ min(h, r) − Σ min(h, s where r has none))          counts in hypothesis, reference, source
    GLEU      = min(1, exp(1 − |r| / |h|)) · (Π matches_n / n-grams of h)^¼                           n = 1, …, 4

Words are what whitespace separates, as in the tokenized files of JFLEG. With several references, one is drawn for each
sentence and the corpus is scored; the result is the mean of 500 such draws, whose seeds are those of JFLEG's script.
"""

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headway.errors import InputError

MAX_ORDER = 4
N_DRAWS = 500
SEED_STEP = 101  # draw j has the seed 101 j


def gleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]], sources: Sequence[str]) -> float:
    """GLEU of a corpus, from 0 to 100; `references` are lists as long as the list of hypotheses.

    >>> gleu(["She buys a red car ."], [["She buys a red car ."]], ["She buy an red car ."])
    100.0
    """
    counts = reference_counts(hypotheses, references, sources)  # (N, R, 2 + 2 · MAX_ORDER)
    n, n_references, _ = counts.shape
    if n_references == 1:
        return 100 * _score(counts[:, 0].sum(axis=0))
    scores = []
    for draw in range(N_DRAWS):
        rng = random.Random(draw * SEED_STEP)
        drawn = [int(rng.random() * n_references) for _ in range(n)]  # randint of Python 2
        scores.append(_score(counts[np.arange(n), drawn].sum(axis=0)))
    return 100 * sum(scores) / len(scores)


def sentence_gleu(hypothesis: str, references: Sequence[str], source: str) -> float:
    """GLEU of one sentence, the mean over its references, from 0 to 100. Counts of 0 are smoothed to 1."""
    counts = reference_counts([hypothesis], [[reference] for reference in references], [source])[0]
    return 100 * sum(_score(np.where(row == 0, 1, row)) for row in counts) / len(counts)


def reference_counts(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], sources: Sequence[str]
) -> NDArray[np.float64]:
    """What GLEU counts, for every sentence and reference (N, R, 10): the lengths of the hypothesis and the reference,
    then for each order the matches and the n-grams of the hypothesis."""
    lengths = {len(hypotheses), len(sources), *map(len, references)}
    if len(lengths) > 1 or not references or not hypotheses:
        raise InputError(
            f"GLEU compares line by line: {len(hypotheses):,} hypotheses, {len(sources):,} sources and "
            f"{', '.join(f'{len(lines):,}' for lines in references) or 'no'} references must be as many, and at least 1"
        )
    return np.array(
        [
            [_count(hypothesis.split(), reference.split(), source.split()) for reference in sentence_references]
            for hypothesis, source, *sentence_references in zip(hypotheses, sources, *references, strict=True)
        ],
        dtype=np.float64,
    )


def _count(hypothesis: list[str], reference: list[str], source: list[str]) -> list[int]:
    counts = [len(hypothesis), len(reference)]
    for n in range(1, MAX_ORDER + 1):
        h, r, s = (_ngrams(words, n) for words in (hypothesis, reference, source))
        changed = Counter({ngram: count for ngram, count in s.items() if ngram not in r})
        counts += [max(0, (h & r).total() - (h & changed).total()), max(0, len(hypothesis) - n + 1)]
    return counts


def _ngrams(words: list[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[i:] for i in range(n)), strict=False))


def _score(counts: NDArray[np.float64]) -> float:
    """GLEU from 0 to 1 of summed counts; 0 if any count is."""
    if not counts.all():
        return 0.0
    hypothesis_length, reference_length = counts[:2]
    precision = np.log(counts[2::2] / counts[3::2]).mean()
    return float(np.exp(min(0.0, 1 - reference_length / hypothesis_length) + precision))

"""Smoothing: from counts to probabilities, also of tokens that never followed a context.

Every method yields the two numbers per n-gram of an ARPA file: the probability of its last token after the others, and
the backoff weight it applies, as a context, to tokens that never followed it:

    p(w | h) = probability[h w]  if h w was counted,  else  backoff[h] · p(w | h'),    h': h without its first token

The recursion ends at 1/W for each of the W predictable tokens. The backoff weight of a context that was never counted
is 1. `SMOOTHINGS` lists the methods; `is_kept` says which n-grams survive pruning, `k_added` is the k of add-k.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headway.models.ngram.counts import Array, Counts

FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)  # for texts too small to estimate them, as `lmplz --discount_fallback` has them
MIN_BACKOFF = 1e-12  # no interpolated probability is zero
STUPID_BACKOFF_ALPHA = 0.4  # Brants et al. 2007, §4


@dataclass(frozen=True)
class NgramProbs:
    """The M n-grams of one order."""

    probability: Array  # (M,)
    backoff: Array  # (M,); 1 for n-grams that were never a context; empty for the longest order


@dataclass(frozen=True)
class DiscountedMass:
    """The count of each n-gram, split into what it keeps and what is discounted for its context's backoff."""

    kept: Array  # (M,)
    freed: Array  # (M,)


# ── interpolated: Kneser-Ney, Witten-Bell ─────────────────────────────────────────────────────────────────────────


def interpolate(
    counts: Counts, is_kept: list[Array], discount: Callable[[Counts, int], DiscountedMass]
) -> list[NgramProbs]:
    """p(w | h) = kept(h w) / total(h) + γ(h) p(w | h'), where γ(h) is the freed fraction of total(h).

    Pruned n-grams free all of their mass, so every distribution still sums to 1.
    """
    lower = np.full(1, 1 / counts.n_predictable)
    probs: list[NgramProbs] = []
    for k, (grams, is_kept_k) in enumerate(zip(counts.grams, is_kept, strict=True), start=1):
        context, n_contexts = counts.contexts(k)
        mass = discount(counts, k)
        total = np.bincount(context, mass.kept + mass.freed, n_contexts)
        freed = np.bincount(context, np.where(is_kept_k, mass.freed, mass.kept + mass.freed), n_contexts)
        gamma = np.maximum(np.divide(freed, total, out=np.ones(n_contexts), where=total > 0), MIN_BACKOFF)
        discounted = np.divide(mass.kept, total[context], out=np.zeros(len(grams)), where=total[context] > 0)
        lower = discounted + gamma[context] * lower[grams.suffix]
        if k > 1:
            probs[-1] = NgramProbs(probs[-1].probability, gamma)
        probs.append(NgramProbs(lower, np.zeros(0)))
    return probs


def kneser_ney(counts: Counts, is_kept: list[Array], k_added: float) -> list[NgramProbs]:
    """Interpolated modified Kneser-Ney (Chen & Goodman 1999, §4.1), as lmplz estimates it (Heafield et al. 2013).

    The count of an n-gram is replaced by the adjusted count a(h w): the number of distinct tokens that precede it.
    N-grams of the longest order, and those that start with BOS, which nothing precedes, keep their count. The discount
    is one of three, for a = 1, a = 2 and a ≥ 3 (eq. 26).
    """
    last_ngrams = _last_ngrams_of_lmplz(counts)

    def discount(counts: Counts, k: int) -> DiscountedMass:
        a = _adjusted_counts(counts, k)
        tallied = a.copy()
        if k <= len(last_ngrams):
            index = last_ngrams[k - 1]
            tallied[index] = counts.grams[k - 1].count[index]
        D = np.array([0.0, *discounts(*np.bincount(np.minimum(tallied, 5), minlength=6)[1:5].tolist())])
        freed = D[np.minimum(a, 3)]
        return DiscountedMass(a - freed, freed)

    return interpolate(counts, is_kept, discount)


def _adjusted_counts(counts: Counts, k: int) -> Array:
    grams = counts.grams[k - 1]
    if k == len(counts.grams):
        a = grams.count.copy()
    else:
        n_preceding = np.bincount(counts.grams[k].suffix, minlength=len(grams)) + grams.starts_text
        a = np.where(grams.starts_with_bos, grams.count, n_preceding)
    if k == 1 and counts.bos_id is not None:
        a[counts.bos_id] = 0  # never predicted
    return a


def discounts(n1: int, n2: int, n3: int, n4: int) -> tuple[float, float, float]:
    """The discounts for a = 1, 2 and ≥ 3, from the number of n-grams with a = 1, 2, 3 and 4 (eq. 26)."""
    if min(n1, n2, n3) == 0:
        return FALLBACK_DISCOUNTS
    Y = n1 / (n1 + 2 * n2)
    D = 1 - 2 * Y * n2 / n1, 2 - 3 * Y * n3 / n2, 3 - 4 * Y * n4 / n3
    return D if all(0 <= d <= j for j, d in enumerate(D, start=1)) else FALLBACK_DISCOUNTS


def _last_ngrams_of_lmplz(counts: Counts) -> list[int]:
    """The index of the n-gram that lmplz visits last, for each order below the longest.

    lmplz visits n-grams sorted by their last token, then by the one before it, and so on, where tokens rank by first
    occurrence. When it tallies how many have a = 1, 2, …, it uses the raw count, not the adjusted one, of the n-grams
    it visits last. In a text of a few thousand words this moves the third decimal place, so we do the same.
    """
    if len(counts.grams) == 1:
        return []
    rank, V = counts.first_position, counts.vocab_size
    chain = [int(rank.argmax())]
    first_token = np.arange(V)  # of each n-gram
    for shorter, grams in zip(counts.grams, counts.grams[1:-1], strict=False):
        first_token = first_token[grams.keys // V]
        extensions = np.flatnonzero(grams.suffix == chain[-1])
        if shorter.starts_with_bos[chain[-1]] or not len(extensions):
            break
        chain.append(int(extensions[rank[first_token[extensions]].argmax()]))
    return chain


def witten_bell(counts: Counts, is_kept: list[Array], k_added: float) -> list[NgramProbs]:
    """γ(h) = T(h) / (count(h) + T(h)), where T(h) is the number of distinct tokens that follow h (Witten & Bell 1991,
    method C). It has nothing to tune and works well for characters."""

    def discount(counts: Counts, k: int) -> DiscountedMass:
        c = _predicted_counts(counts, k)
        return DiscountedMass(c, (c > 0).astype(float))

    return interpolate(counts, is_kept, discount)


# ── not interpolated: relative frequencies, add-k ─────────────────────────────────────────────────────────────────


def maximum_likelihood(counts: Counts, is_kept: list[Array], k_added: float) -> list[NgramProbs]:
    """count(h w) / count(h), and 0 for what was not counted. Pruned n-grams count as never seen; a context left with no
    continuation backs off with weight 1."""
    return _relative_frequencies(counts, is_kept, lambda total: (total == 0).astype(float), 0.0)


def stupid_backoff(counts: Counts, is_kept: list[Array], k_added: float) -> list[NgramProbs]:
    """count(h w) / count(h), or else 0.4 times the score after the shorter context (Brants et al. 2007, §4). The scores
    do not sum to 1. A token that was never counted scores 0.4/W."""
    all_kept = [np.ones(len(grams), bool) for grams in counts.grams]  # pruned n-grams still count towards count(h)
    alpha = STUPID_BACKOFF_ALPHA
    return _relative_frequencies(
        counts, all_kept, lambda total: np.full(len(total), alpha), alpha / counts.n_predictable
    )


def _relative_frequencies(
    counts: Counts, is_kept: list[Array], backoff: Callable[[Array], Array], unseen: float
) -> list[NgramProbs]:
    """`backoff` maps the totals of the contexts to their weights; `unseen` is the probability of an unseen unigram."""
    probs: list[NgramProbs] = []
    for k in range(1, len(counts.grams) + 1):
        context, n_contexts = counts.contexts(k)
        c = np.where(is_kept[k - 1], _predicted_counts(counts, k), 0)
        total = np.bincount(context, c, n_contexts)
        if k > 1:
            probs[-1] = NgramProbs(probs[-1].probability, backoff(total))
        p = np.divide(c, total[context], out=np.zeros(len(c)), where=total[context] > 0)
        probs.append(NgramProbs(np.where(c > 0, p, unseen) if k == 1 else p, np.zeros(0)))
    return probs


def add_k(counts: Counts, is_kept: list[Array], k_added: float) -> list[NgramProbs]:
    """(count(h w) + k) / (count(h) + k W) after the full context, without regard to shorter ones.

    So `backoff` is the weight of the uniform distribution 1/W, not of the shorter context. Pruned n-grams count as
    never seen.
    """
    W = counts.n_predictable
    probs: list[NgramProbs] = []
    for k in range(1, len(counts.grams) + 1):
        context, n_contexts = counts.contexts(k)
        c = np.where(is_kept[k - 1], _predicted_counts(counts, k), 0)
        total = np.bincount(context, c, n_contexts) + k_added * W
        if k > 1:
            probs[-1] = NgramProbs(probs[-1].probability, k_added * W / total)
        probs.append(NgramProbs((c + k_added) / total[context], np.zeros(0)))
    return probs


def _predicted_counts(counts: Counts, k: int) -> Array:
    """The count of each k-gram; 0 for the unigram BOS, which is never predicted."""
    c = counts.grams[k - 1].count.astype(float)
    if k == 1 and counts.bos_id is not None:
        c[counts.bos_id] = 0
    return c


SMOOTHINGS: dict[str, Callable[[Counts, list[Array], float], list[NgramProbs]]] = {
    "kneser-ney": kneser_ney,
    "witten-bell": witten_bell,
    "add-k": add_k,
    "stupid-backoff": stupid_backoff,
    "none": maximum_likelihood,
}

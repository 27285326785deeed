"""From counts to probabilities: what the tokens get that never followed a context.

Every smoothing comes down to two numbers per n-gram, those of an ARPA file: the probability of its last token after the
others, and what it hands on, as a context, to tokens that never followed it:

    p(w | h) = probability[h w]  if h w was counted,  else  backoff[h] · p(w | h'),    h': h without its first token

The chain ends at 1/W for each of the W tokens that can come next. A context that was never counted hands on all.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headway.models.ngram.counts import Array, Counts

FALLBACK = (0.5, 1.0, 1.5)  # discounts where a text is too small to tell them, as `lmplz --discount_fallback` has them
LEAST = 1e-12  # that any context hands on, so that nothing is impossible


@dataclass(frozen=True)
class NgramProbs:
    """Of the n-grams of one order."""

    probability: Array  # (M,)
    backoff: Array  # (M,); 1 where an n-gram was never a context; none for the longest


@dataclass(frozen=True)
class DiscountedMass:
    """How the count of each n-gram is dealt out: what it keeps, and what its context hands on."""

    kept: Array  # (M,)
    freed: Array  # (M,)


def interpolated(
    counts: Counts, is_kept: list[Array], deal: Callable[[Counts, int], DiscountedMass]
) -> list[NgramProbs]:
    """p(w | h) = kept(h w) / total(h) + γ(h) p(w | h'), where γ(h) is what is freed. N-grams that are pruned free all
    they have, so that every distribution still sums to 1."""
    below = np.full(1, 1 / counts.n_words)
    found: list[NgramProbs] = []
    for k, (grams, stays) in enumerate(zip(counts.grams, is_kept, strict=True), start=1):
        context, n_contexts = counts.contexts(k)
        mass = deal(counts, k)
        total = np.bincount(context, mass.kept + mass.freed, n_contexts)
        freed = np.bincount(context, np.where(stays, mass.freed, mass.kept + mass.freed), n_contexts)
        gamma = np.maximum(np.divide(freed, total, out=np.ones(n_contexts), where=total > 0), LEAST)
        share = np.divide(mass.kept, total[context], out=np.zeros(len(grams)), where=total[context] > 0)
        below = share + gamma[context] * below[grams.suffix]
        if k > 1:
            found[-1] = NgramProbs(found[-1].probability, gamma)
        found.append(NgramProbs(below, np.zeros(0)))
    return found


def kneser_ney(counts: Counts, is_kept: list[Array], k_added: float) -> list[NgramProbs]:
    """Interpolated modified Kneser-Ney (Chen & Goodman 1999, §4.1), as lmplz estimates it (Heafield et al. 2013).

    An n-gram has a(h w) instead of its count: how many different tokens stood before it. Those of the longest order and
    those that begin a text, which nothing can stand before, have their count. From it a discount is taken, one for
    a = 1, one for 2, and one for 3 and more (eq. 26).
    """
    last = _last(counts)

    def deal(counts: Counts, k: int) -> DiscountedMass:
        a = _adjusted(counts, k)
        tallied = a.copy()
        if k <= len(last):
            tallied[last[k - 1]] = counts.grams[k - 1].count[last[k - 1]]
        D = np.array([0.0, *discounts(*np.bincount(np.minimum(tallied, 5), minlength=6)[1:5].tolist())])
        freed = D[np.minimum(a, 3)]
        return DiscountedMass(a - freed, freed)

    return interpolated(counts, is_kept, deal)


def _adjusted(counts: Counts, k: int) -> Array:
    grams = counts.grams[k - 1]
    if k == len(counts.grams):
        a = grams.count.copy()
    else:
        before = np.bincount(counts.grams[k].suffix, minlength=len(grams)) + grams.is_edge
        a = np.where(grams.is_first, grams.count, before)
    if k == 1 and counts.bos_id is not None:
        a[counts.bos_id] = 0  # it is given, never predicted
    return a


def discounts(n1: int, n2: int, n3: int, n4: int) -> tuple[float, float, float]:
    """For a = 1, 2, and 3 or more, from how many n-grams have a = 1, 2, 3 and 4."""
    if min(n1, n2, n3) == 0:
        return FALLBACK
    Y = n1 / (n1 + 2 * n2)
    D = 1 - 2 * Y * n2 / n1, 2 - 3 * Y * n3 / n2, 3 - 4 * Y * n4 / n3
    return D if all(0 <= d <= j for j, d in enumerate(D, start=1)) else FALLBACK


def _last(counts: Counts) -> list[int]:
    """The n-grams that lmplz comes to last, one of each order below the longest. It goes through them by their last
    token, then the one before it, and so on, tokens numbered as they first appear; and when it counts how many have
    a = 1, 2, …, it takes the very last ones by their count. In a text of some thousand words that moves the third
    decimal place, so the same is done here."""
    if len(counts.grams) == 1:
        return []
    rank, V = counts.first_seen, counts.vocab_size
    chain = [int(rank.argmax())]
    head = np.arange(V)  # the first token of each n-gram
    for shorter, grams in zip(counts.grams, counts.grams[1:-1], strict=False):
        head = head[grams.keys // V]
        options = np.flatnonzero(grams.suffix == chain[-1])
        if shorter.is_first[chain[-1]] or not len(options):
            break
        chain.append(int(options[rank[head[options]].argmax()]))
    return chain


def witten_bell(counts: Counts, is_kept: list[Array], k_added: float) -> list[NgramProbs]:
    """A context hands on one part for each token that followed it: T(h) of count(h) + T(h), where T(h) is how many
    different ones (Witten & Bell 1991, method C). Nothing to tune; good for characters."""

    def deal(counts: Counts, k: int) -> DiscountedMass:
        c = _predicted(counts, k)
        return DiscountedMass(c, (c > 0).astype(float))

    return interpolated(counts, is_kept, deal)


def maximum_likelihood(counts: Counts, is_kept: list[Array], k_added: float) -> list[NgramProbs]:
    """count(h w) / count(h), and nothing for what was not counted. What is pruned counts as if it had not been there;
    a context of which nothing is left hands on all."""
    return _relative(counts, is_kept, lambda total: (total == 0).astype(float), 0.0)


def stupid_backoff(counts: Counts, is_kept: list[Array], k_added: float) -> list[NgramProbs]:
    """The same, and 0.4 of what the shorter context says for what was not counted (Brants et al. 2007, §4): scores that
    do not sum to 1. A token never seen gets 0.4/W."""
    whole = [np.ones(len(grams), bool) for grams in counts.grams]  # what is pruned is still a share of its context
    return _relative(counts, whole, lambda total: np.full(len(total), ALPHA), ALPHA / counts.n_words)


def add_k(counts: Counts, is_kept: list[Array], k_added: float) -> list[NgramProbs]:
    """(count(h w) + k) / (count(h) + k W) after a whole context, of shorter ones nothing: `backoff` is the share of
    1/W, not of a shorter context's distribution. What is pruned counts as if it had not been there."""
    W = counts.n_words
    found: list[NgramProbs] = []
    for k in range(1, len(counts.grams) + 1):
        context, n_contexts = counts.contexts(k)
        c = np.where(is_kept[k - 1], _predicted(counts, k), 0)
        total = np.bincount(context, c, n_contexts) + k_added * W
        if k > 1:
            found[-1] = NgramProbs(found[-1].probability, k_added * W / total)
        found.append(NgramProbs((c + k_added) / total[context], np.zeros(0)))
    return found


ALPHA = 0.4  # Brants et al. 2007, §4

SMOOTHINGS: dict[str, Callable[[Counts, list[Array], float], list[NgramProbs]]] = {
    "kneser-ney": kneser_ney,
    "witten-bell": witten_bell,
    "add-k": add_k,
    "stupid-backoff": stupid_backoff,
    "none": maximum_likelihood,
}


def _relative(
    counts: Counts, is_kept: list[Array], hands_on: Callable[[Array], Array], unseen: float
) -> list[NgramProbs]:
    found: list[NgramProbs] = []
    for k in range(1, len(counts.grams) + 1):
        context, n_contexts = counts.contexts(k)
        c = np.where(is_kept[k - 1], _predicted(counts, k), 0)
        total = np.bincount(context, c, n_contexts)
        if k > 1:
            found[-1] = NgramProbs(found[-1].probability, hands_on(total))
        p = np.divide(c, total[context], out=np.zeros(len(c)), where=total[context] > 0)
        found.append(NgramProbs(np.where(c > 0, p, unseen) if k == 1 else p, np.zeros(0)))
    return found


def _predicted(counts: Counts, k: int) -> Array:
    """How often each n-gram was there, that of the begin token alone not counted: it is given."""
    c = counts.grams[k - 1].count.astype(float)
    if k == 1 and counts.bos_id is not None:
        c[counts.bos_id] = 0
    return c

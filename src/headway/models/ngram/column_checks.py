"""Checks of the columns of an n-gram model: the n-grams are sorted, the probabilities valid.

A file may be damaged or untrusted. Each column takes one vectorised pass, in chunks.
"""

from collections.abc import Iterator

import numpy as np

from headway.errors import CheckpointError
from headway.models.ngram.counts import Array

MAX_LOG_P = 3e-4  # above 0 by rounding
MAX_SUM_OF_P = 1.01
CHUNK = 1 << 22


def find_problem(
    k: int,
    order: int,
    vocab_size: int,
    n_contexts: int,
    *,
    start: Array,
    token: Array,
    log_p: Array,
    backoff: Array,
    count: Array,
    is_normalized: bool = True,
) -> str:
    """What is wrong with the k-grams, given the number of (k−1)-grams, their contexts; "" if nothing is.

    `is_normalized`: whether the probabilities after a context sum to 1, or less where some were pruned.
    """
    n = len(log_p)
    if k == 1 and n != vocab_size:
        return f"{n:,} unigrams for vocab_size={vocab_size:,}"
    if len(start) != n_contexts + 1 or start[0] != 0 or start[-1] != n or len(token) != n:
        return "the columns have different lengths"
    if len(backoff) != (n if k < order else 0) or len(count) not in (0, n):
        return "the columns have different lengths"
    if any((np.diff(chunk) < 0).any() for chunk in _chunks(start, overlap=1)):
        return "the n-grams are not sorted by context"
    if any(chunk.min() < 0 or chunk.max() >= vocab_size for chunk in _chunks(token)):
        return "a token outside the vocabulary"
    if not _is_sorted_by_token(start, token):
        return "the n-grams of a context are not sorted by their last token"
    if any(not (chunk <= MAX_LOG_P).all() for chunk in _chunks(log_p)):  # also finds NaN
        return "a probability is above 1 or not a number"
    if any(not (chunk < np.inf).all() for chunk in _chunks(backoff)):
        return "a backoff weight is infinite or not a number"
    if any(chunk.min() < 0 for chunk in _chunks(count)):
        return "a count is negative"
    if is_normalized and _max_sum_of_p(start, log_p) > MAX_SUM_OF_P:
        return "the probabilities after a context sum to more than 1"
    return ""


def check_log_probs(log_p: Array) -> None:
    """Refuse probabilities above 1. Backoff weights may be above 1, so the columns alone cannot show it."""
    if log_p.size and not log_p.max() <= MAX_LOG_P:
        raise CheckpointError(
            "this n-gram model gives a token a probability above 1: its backoff weights are wrong; copy the model "
            "again, or refit it"
        )


def _chunks(column: Array, *, overlap: int = 0) -> Iterator[Array]:
    for i in range(0, len(column), CHUNK):
        yield column[i : i + CHUNK + overlap]


def _is_sorted_by_token(start: Array, token: Array) -> bool:
    """Whether each token is greater than the one before it, unless it is the first of its context."""
    n_descents = sum(int((np.diff(chunk) <= 0).sum()) for chunk in _chunks(token, overlap=1))
    first = start[:-1][np.diff(start) > 0]  # of the contexts that have n-grams
    first = first[first > 0]
    return n_descents == sum(int((token[i] <= token[i - 1]).sum()) for i in _chunks(first))


def _max_sum_of_p(start: Array, log_p: Array) -> float:
    """The largest sum of probabilities after one context."""
    first = start[:-1][np.diff(start) > 0]
    if not len(first):
        return 0.0
    return float(np.add.reduceat(np.exp(log_p), first).max())

"""Constrained decoding of tags: the most probable sequence among those that keep the rules of the scheme.

The tag of each word alone may give an I-PER after O, which no entity begins with. Viterbi's algorithm (1967) finds the
valid sequence with the largest sum of log-probabilities:

    δ_t(j) = log p_t(j) + max_i δ_{t−1}(i)    over the tags i that j may follow
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.data.tag_schemes import OUTSIDE, can_follow, scheme_of

LOWEST_LOG_PROB = -1e6  # in place of −∞ and NaN, so that only the rules exclude a sequence


@dataclass(frozen=True)
class TagRules:
    """Which tags may follow which, by their ids."""

    transitions: NDArray[np.bool_]  # (C, C): may the second follow the first?
    starts: NDArray[np.bool_]  # (C,): may a sentence start with it?
    ends: NDArray[np.bool_]  # (C,): may it end with it?

    @classmethod
    def of(cls, labels: Sequence[str]) -> "TagRules | None":
        """The rules of the scheme that label names imply, BIO or BIOES; None if they imply none."""
        scheme = scheme_of(labels)
        if scheme is None:
            return None
        return cls(
            np.array([[can_follow(first, second, scheme) for second in labels] for first in labels]),
            np.array([can_follow(OUTSIDE, label, scheme) for label in labels]),
            np.array([can_follow(label, OUTSIDE, scheme) for label in labels]),
        )

    def allow(self, tags: NDArray[np.int64]) -> bool:
        """Whether a sequence of tag ids (T,) keeps the rules."""
        if len(tags) == 0:
            return True
        return bool(self.starts[tags[0]] and self.ends[tags[-1]] and self.transitions[tags[:-1], tags[1:]].all())


def decode_tags(log_probs: NDArray[Any], rules: TagRules | None) -> NDArray[np.int64]:
    """The best tag ids (T,) of a sentence with these log-probabilities (T, C), under the rules if there are any."""
    best = log_probs.argmax(axis=1)
    # If the best tag of each word is a valid sequence, no other can be better.
    return best if rules is None or rules.allow(best) else viterbi(log_probs, rules)


def viterbi(log_probs: NDArray[Any], rules: TagRules) -> NDArray[np.int64]:
    """The valid sequence of tag ids (T,) with the largest sum of log-probabilities (T, C)."""
    n_words, n_tags = log_probs.shape
    if n_words == 0:
        return np.empty(0, dtype=np.int64)
    log_probs = np.nan_to_num(log_probs.astype(np.float64), nan=LOWEST_LOG_PROB, posinf=0.0, neginf=LOWEST_LOG_PROB)
    forbidden = np.where(rules.transitions, 0.0, -np.inf)  # (C, C)
    scores = np.where(rules.starts, log_probs[0], -np.inf)  # (C,) of the best sequence that ends in each tag
    previous = np.empty((n_words, n_tags), dtype=np.int64)  # the tag before each tag in that sequence
    for t in range(1, n_words):
        candidates = scores[:, None] + forbidden  # (C, C)
        previous[t] = candidates.argmax(axis=0)
        scores = candidates.max(axis=0) + log_probs[t]
    tags = np.empty(n_words, dtype=np.int64)
    tags[-1] = np.where(rules.ends, scores, -np.inf).argmax()
    for t in range(n_words - 1, 0, -1):
        tags[t - 1] = previous[t, tags[t]]
    return tags

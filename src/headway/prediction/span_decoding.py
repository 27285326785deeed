"""From the start and end scores of tokens to the spans of a passage, best first (Devlin et al. 2019, §4.2-4.3).

    score(i … j)     = start_i + end_j        i ≤ j < i + max_tokens, both in the passage
    score(no answer) = start_[CLS] + end_[CLS]

A long passage is read in windows. A span that lies in several of them has its highest score; there is no answer only
if no window has one, so "no answer" has its lowest score, as in the released code of the paper.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Scores = NDArray[np.float32]


class TokenSpan(NamedTuple):
    """The tokens `first` to `last` of a passage, inclusive."""

    first: int
    last: int
    score: float


def span_scores(starts: Scores, ends: Scores, max_tokens: int) -> Scores:
    """starts, ends (S,) → (S, max_tokens): row i, column n is the span of n + 1 tokens from token i on; −∞ if it would
    end after the last token."""
    padding = np.full(max_tokens, -np.inf, dtype=ends.dtype)  # one more than needed, so that S may be 0
    return starts[:, None] + sliding_window_view(np.concatenate((ends, padding)), max_tokens)[: len(starts)]


class PassageScores:
    """The scores of all spans of a passage, collected from its windows.

    `can_delimit` (S,) says which tokens may begin or end an answer: those with visible text.
    """

    def __init__(self, can_delimit: NDArray[np.bool_], max_tokens: int):
        self.can_delimit, self.max_tokens = can_delimit, max(1, min(max_tokens, len(can_delimit)))
        self.spans: Scores = np.full((len(can_delimit), self.max_tokens), -np.inf, dtype=np.float32)
        self.no_answer = np.inf

    def add_window(self, first_token: int, starts: Scores, ends: Scores, no_answer: float) -> None:
        """Scores of a window whose passage tokens begin with `first_token`."""
        tokens = slice(first_token, first_token + len(starts))
        starts, ends = (np.where(self.can_delimit[tokens], scores, -np.inf) for scores in (starts, ends))
        np.maximum(self.spans[tokens], span_scores(starts, ends, self.max_tokens), out=self.spans[tokens])
        self.no_answer = min(self.no_answer, no_answer)

    def ranked(self) -> Iterator[TokenSpan]:
        """All spans, best first; of equal ones the earlier, then the shorter."""
        scores = self.spans.flatten()
        while scores.size and np.isfinite(score := scores[best := int(scores.argmax())]):
            first, n = divmod(best, self.max_tokens)
            yield TokenSpan(first, first + n, float(score))
            scores[best] = -np.inf

    def log_sum(self) -> float:
        """log Σ exp(score) over all spans and no answer: what their softmax divides by."""
        scores = np.append(self.spans.astype(np.float64), self.no_answer)
        highest = scores.max()
        return float(highest + np.log(np.exp(scores - highest).sum()))

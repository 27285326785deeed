"""A metric: the fraction of characters that are right, in their place."""

from collections.abc import Sequence

import headway


def character_accuracy(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Matching characters ÷ characters of the longer of the two, over all texts."""
    pairs = list(zip(hypotheses, references, strict=True))
    n_right = sum(a == b for hypothesis, reference in pairs for a, b in zip(hypothesis, reference, strict=False))
    return n_right / max(1, sum(max(len(hypothesis), len(reference)) for hypothesis, reference in pairs))


headway.register("metric", "character_accuracy", character_accuracy)

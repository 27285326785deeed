"""ROUGE (Lin 2004), the metric of summaries, by rouge-score (an extra): n-grams that a summary shares with a reference.

    rouge("rougeL", ["names refer to objects"], [["a name refers to an object"]])        from 0 to 100

The F-measure is averaged over summaries; of several references, the one with the highest counts. Words are lower-cased
and stemmed, as in the papers that report ROUGE.
"""

from collections.abc import Sequence
from typing import Any

from headway.errors import InputError, install_command

ROUGE_NAMES = ("rouge1", "rouge2", "rougeL")  # shared words, shared pairs of words, longest common subsequence


def rouge(name: str, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """The mean F-measure of one variant, from 0 to 100."""
    scorer = import_rouge().RougeScorer([name], use_stemmer=True)
    scores = [
        scorer.score_multi(list(sentence_references), hypothesis)[name].fmeasure
        for hypothesis, *sentence_references in zip(hypotheses, *references, strict=True)
    ]
    return 100 * sum(scores) / len(scores)


def import_rouge() -> Any:
    """rouge-score's module, or an error with the install command."""
    try:
        from rouge_score import rouge_scorer
    except ImportError:
        raise InputError(f"ROUGE needs rouge-score: {install_command('metrics')}") from None
    return rouge_scorer

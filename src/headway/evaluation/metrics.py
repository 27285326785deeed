"""How good translations are, by sacreBLEU (an extra): BLEU and chrF with their signatures, for a whole text, for each
sentence, and for two systems against each other.

    bleu(["Ein Hund spielt im Park."], ["Ein Hund spielt im Park."])        100.0
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headway.errors import InputError

NAMES = ("BLEU", "chrF2")


@dataclass(frozen=True)
class Metric:
    name: str  # "BLEU", "chrF2"
    score: float  # 0 to 100
    signature: str  # all that a score depends on
    summary: str  # as sacreBLEU prints it


@dataclass(frozen=True)
class PairedBootstrapResult:
    """One metric of two systems; p is how likely a difference like this is by chance (paired bootstrap)."""

    name: str
    first: float
    second: float
    p: float
    within: tuple[float, float]  # 95 % of the resamplings of each lie within ± this of it
    signature: str


def score(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool = False) -> list[Metric]:
    """BLEU and chrF of a text, a sentence a line, against one reference or several of the same length."""
    check_lines(hypotheses, references)
    found = []
    for metric in _metrics(lowercase):
        result = metric.corpus_score(list(hypotheses), [list(some) for some in references])
        signature = str(metric.get_signature())
        found.append(Metric(result.name, result.score, signature, result.format(width=2)))
    return found


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """BLEU alone, cased, for what asks for it again and again."""
    check_lines(hypotheses, [references])
    metric = _sacrebleu("metrics").BLEU(force=True)
    return float(metric.corpus_score(list(hypotheses), [list(references)]).score)


def sentence_scores(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool = False
) -> list[dict[str, float]]:
    """BLEU (smoothed, with the n-grams that fit) and chrF of each sentence."""
    check_lines(hypotheses, references)
    metrics = _metrics(lowercase, effective_order=True)
    return [
        {
            result.name: round(result.score, 2)
            for metric in metrics
            for result in [metric.sentence_score(text, [some[i] for some in references])]
        }
        for i, text in enumerate(hypotheses)
    ]


def compare(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    lowercase: bool = False,
    samples: int = 1000,
) -> list[PairedBootstrapResult]:
    """Two systems on the same sentences by paired bootstrap (Koehn 2004): how often does resampling the sentences turn
    the order round? The seed is fixed, so that the answer is."""
    for texts in (first, second):
        check_lines(texts, references)
    significance = _sacrebleu("significance")
    metrics = dict(zip(NAMES, _metrics(lowercase), strict=True))
    test = significance.PairedTest(
        [("first", list(first)), ("second", list(second))],
        metrics,
        references=[list(some) for some in references],
        test_type="bs",
        n_samples=samples,
    )
    signatures, found = test()
    rows = [(name, found[name]) for name in found if name != "System"]
    return [
        PairedBootstrapResult(
            name=name,
            first=pair[0].score,
            second=pair[1].score,
            p=1.0 if pair[0].score == pair[1].score else pair[1].p_value,  # of equals sacreBLEU says 1 / samples
            within=(float(pair[0].ci), float(pair[1].ci)),
            signature=str(signatures[name]),
        )
        for name, pair in rows
    ]


def check_lines(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if not hypotheses or not references:
        raise InputError("there is nothing to score: give at least one sentence and one reference")
    for number, some in enumerate(references, 1):
        if len(some) != len(hypotheses):
            raise InputError(
                f"{len(hypotheses):,} translations and {len(some):,} lines of reference {number}: they go together "
                f"line by line, so there must be as many; were lines lost or empty ones dropped?"
            )


def check_installed() -> None:
    """Say so now, not when there is something to score."""
    _sacrebleu("metrics")


def _metrics(lowercase: bool, **of_bleu: Any) -> list[Any]:
    metrics = _sacrebleu("metrics")
    # force: what sacreBLEU thinks of lines that end in " ." is for its own command line
    return [metrics.BLEU(lowercase=lowercase, force=True, **of_bleu), metrics.CHRF(lowercase=lowercase)]


def _sacrebleu(part: str) -> Any:
    from importlib import import_module

    try:
        return import_module(f"sacrebleu.{part}")
    except ImportError:
        raise InputError("BLEU and chrF need sacrebleu: pip install 'headway[metrics]'") from None

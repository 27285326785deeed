"""Metrics of generated text: exact match, BLEU and chrF by sacreBLEU with their signatures, ROUGE, GLEU.

    bleu(["Ein Hund spielt im Park."], ["Ein Hund spielt im Park."])        100.0

BLEU and chrF are for a corpus, for each sentence, or for two systems against each other. Here `references` are one list
of sentences, or several of equal length. `METRICS` are those that `eval.metric` can name.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from headway.errors import InputError, count, install_command
from headway.evaluation.gleu import gleu
from headway.evaluation.rouge import ROUGE_NAMES, import_rouge, rouge

SACREBLEU_NAMES = ("BLEU", "chrF2")


@dataclass(frozen=True)
class Metric:
    """A corpus-level score."""

    name: str  # "BLEU", "chrF2"
    score: float  # 0 to 100
    signature: str  # sacreBLEU's: all settings that the score depends on
    summary: str  # as sacreBLEU prints it


@dataclass(frozen=True)
class PairedBootstrapResult:
    """One metric of two systems; p is the probability of such a difference under the null hypothesis that they are
    equally good (paired bootstrap)."""

    name: str
    first: float
    second: float
    p: float
    ci_half_widths: tuple[float, float]  # half-width of the 95 % confidence interval of each score
    signature: str


def exact_match(answers: Iterable[str], expected: Iterable[str]) -> float:
    """The fraction of answers that equal the expected ones, apart from surrounding whitespace.

    >>> exact_match(["1987-03-03", "1987-03-04 "], ["1987-03-03", "1987-03-03"])
    0.5
    """
    matches = [answer.strip() == target.strip() for answer, target in zip(answers, expected, strict=True)]
    if not matches:
        raise InputError("no answers to score")
    return sum(matches) / len(matches)


def score(hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool = False) -> list[Metric]:
    """BLEU and chrF of a corpus, one sentence per item."""
    check_lines(hypotheses, references)
    scores = []
    for metric in _metrics(lowercase):
        result = metric.corpus_score(list(hypotheses), [list(reference) for reference in references])
        scores.append(Metric(result.name, result.score, str(metric.get_signature()), result.format(width=2)))
    return scores


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Cased BLEU against one reference, as a plain number."""
    check_lines(hypotheses, [references])
    metric = _import_sacrebleu("metrics").BLEU(force=True)
    return float(metric.corpus_score(list(hypotheses), [list(references)]).score)


@dataclass(frozen=True)
class GenerationMetric:
    """A metric that `eval.metric` can name: hypotheses and references in, one number out."""

    name: str
    function: Callable[..., float]  # (hypotheses, references), with the changes below
    higher_is_better: bool = True
    takes_all_references: bool = False  # as several lists; otherwise the first list only
    takes_sources: bool = False  # as a third argument

    def __call__(
        self, hypotheses: Sequence[str], *references: Sequence[str], sources: Sequence[str] | None = None
    ) -> float:
        if self.takes_sources and sources is None:
            raise InputError(f"the metric {self.name!r} compares texts with their sources: give the sources too")
        arguments = [hypotheses, references if self.takes_all_references else references[0]]
        value = float(self.function(*arguments, *([sources] if self.takes_sources else [])))
        if not math.isfinite(value):
            raise InputError(
                f"the metric {self.name!r} of {count(len(hypotheses), 'text')} is {value}: it must return a number"
            )
        return value


METRICS: dict[str, GenerationMetric] = {
    "bleu": GenerationMetric("bleu", bleu),
    "exact_match": GenerationMetric("exact_match", exact_match),
    **{name: GenerationMetric(name, partial(rouge, name), takes_all_references=True) for name in ROUGE_NAMES},
    "gleu": GenerationMetric("gleu", gleu, takes_all_references=True, takes_sources=True),
}
ALWAYS_REPORTED = ("bleu", "exact_match")  # by `headway eval` of texts with references


def related_metrics(names: Iterable[str]) -> list[str]:
    """The metrics to report beside those that always are: one variant of ROUGE stands for all of them."""
    related = (ROUGE_NAMES if name in ROUGE_NAMES else (name,) for name in names)
    return [name for name in dict.fromkeys(chain.from_iterable(related)) if name not in ALWAYS_REPORTED]


def bleu_words(text: str) -> list[str]:
    """The words of a text as BLEU counts them: sacreBLEU's tokenizer 13a also splits off punctuation.

    >>> bleu_words("3 March, 1987.")
    ['3', 'March', ',', '1987', '.']
    """
    return _import_sacrebleu("tokenizers.tokenizer_13a").Tokenizer13a()(text).split()


def sentence_scores(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool = False
) -> list[dict[str, float]]:
    """BLEU (smoothed, with effective order: only n-grams that the sentence is long enough for) and chrF of each
    sentence."""
    check_lines(hypotheses, references)
    metrics = _metrics(lowercase, effective_order=True)
    scores = []
    for i, hypothesis in enumerate(hypotheses):
        results = [metric.sentence_score(hypothesis, [reference[i] for reference in references]) for metric in metrics]
        scores.append({result.name: round(result.score, 2) for result in results})
    return scores


def compare(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    lowercase: bool = False,
    samples: int = 1000,
) -> list[PairedBootstrapResult]:
    """Compare two systems on the same sentences by paired bootstrap (Koehn 2004): how often does resampling the
    sentences reverse their order? The seed is fixed, so the result is reproducible."""
    for hypotheses in (first, second):
        check_lines(hypotheses, references)
    test = _import_sacrebleu("significance").PairedTest(
        [("first", list(first)), ("second", list(second))],
        dict(zip(SACREBLEU_NAMES, _metrics(lowercase), strict=True)),
        references=[list(reference) for reference in references],
        test_type="bs",
        n_samples=samples,
    )
    signatures, results = test()
    return [
        PairedBootstrapResult(
            name=name,
            first=pair[0].score,
            second=pair[1].score,
            p=1.0 if pair[0].score == pair[1].score else pair[1].p_value,  # for equal scores sacreBLEU says 1 / samples
            ci_half_widths=(float(pair[0].ci), float(pair[1].ci)),
            signature=str(signatures[name]),
        )
        for name, pair in results.items()
        if name != "System"
    ]


def check_lines(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Every reference must have as many lines as there are hypotheses."""
    if not hypotheses or not references:
        raise InputError("there is nothing to score: give at least one sentence and one reference")
    for number, reference in enumerate(references, 1):
        if len(reference) != len(hypotheses):
            raise InputError(
                f"{len(hypotheses):,} translations and {len(reference):,} lines of reference {number}: they are "
                f"compared line by line, so there must be as many; were lines lost, or empty ones dropped?"
            )


def check_installed(metric: str = "bleu") -> None:
    """Raise now if the package of a metric is missing, not after the work whose result it would score."""
    if metric == "bleu":
        _import_sacrebleu("metrics")
    elif metric in ROUGE_NAMES:
        import_rouge()


def _metrics(lowercase: bool, **bleu_options: Any) -> list[Any]:
    metrics = _import_sacrebleu("metrics")
    # force=True silences sacreBLEU's warning about lines that end in " ."
    return [metrics.BLEU(lowercase=lowercase, force=True, **bleu_options), metrics.CHRF(lowercase=lowercase)]


def _import_sacrebleu(module: str) -> Any:
    from importlib import import_module

    try:
        return import_module(f"sacrebleu.{module}")
    except ImportError:
        raise InputError(f"BLEU and chrF need sacrebleu: {install_command('metrics')}") from None

"""Evaluate translations: BLEU, chrF and exact match against references, and two systems against each other.

    score = evaluate_translator(model, sources, [references])
    print(score.exact_match, [metric.summary for metric in score.metrics])

`references` are one list of sentences or several, each as long as the list of translations.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from headway.errors import InputError
from headway.evaluation import metrics
from headway.evaluation.metrics import Metric, PairedBootstrapResult, check_lines
from headway.generation.noisy_channel import NoisyChannelReranker
from headway.generation.source import truncated_sources
from headway.generation.translate import DEFAULT_BATCH_SOURCES, DEFAULT_BEAMS, translations
from headway.models.base import Model, Seq2SeqLM

BLEU_ORDER = 4  # BLEU counts n-grams of up to four words


@dataclass(frozen=True)
class TranslationScore:
    """The scores of a list of translations."""

    hypotheses: list[str]
    references: list[list[str]]
    exact_match: float  # the fraction of translations that equal one of their references
    metrics: list[Metric]  # BLEU and chrF
    comparison: list[PairedBootstrapResult] = field(default_factory=list)  # with a second system, if there is one
    lowercase: bool = False
    seconds: float | None = None  # spent on translating
    named_metrics: dict[str, float] = field(default_factory=dict)  # further ones that were asked for by name

    @property
    def is_too_short_for_bleu(self) -> bool:
        """Whether no reference has the four words that BLEU needs, as sacreBLEU counts words."""
        words = (metrics.bleu_words(line) for reference in self.references for line in reference)
        return all(len(line) < BLEU_ORDER for line in words)

    def sentences(self) -> list[dict[str, Any]]:
        """The scores of each sentence, with its text and references."""
        scores = metrics.sentence_scores(self.hypotheses, self.references, lowercase=self.lowercase)
        rows = zip(self.hypotheses, zip(*self.references, strict=True), scores, strict=True)
        return [
            {"line": number, "translation": text, "references": list(references), **sentence}
            for number, (text, references, sentence) in enumerate(rows, 1)
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            **({} if self.seconds is None else {"seconds": self.seconds}),
            "n_sentences": len(self.hypotheses),
            "exact_match": self.exact_match,
            **{metric.name: metric.score for metric in self.metrics},
            **self.named_metrics,
            "signatures": {metric.name: metric.signature for metric in self.metrics},
            "comparison": [asdict(result) for result in self.comparison],
        }


def evaluate_translations(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    against: Sequence[str] | None = None,
    limit: int | None = None,
    lowercase: bool = False,
    metrics_by_name: Sequence[str] = (),
    sources: Sequence[str] | None = None,
) -> TranslationScore:
    """Score translations that exist already.

    `against` are the translations of a second system, to be compared by paired bootstrap. `limit` scores the first
    sentences only. `metrics_by_name` adds metrics that `eval.metric` can name, your own too. ROUGE and GLEU see every
    reference, others the first of each sentence; GLEU also needs the `sources`.
    """
    check_lines(hypotheses, references)
    _check_limit(limit)
    for lines in filter(None, (against, sources)):
        check_lines(lines, references)
    texts, answers = list(hypotheses[:limit]), [list(reference[:limit]) for reference in references]
    exact = [text.strip() in map(str.strip, lines) for text, *lines in zip(texts, *answers, strict=True)]
    named = {
        name: metrics.METRICS[name](texts, *answers, sources=None if sources is None else sources[:limit])
        for name in metrics_by_name
    }
    comparison = []
    if against is not None:
        comparison = metrics.compare(texts, against[:limit], answers, lowercase=lowercase)
    return TranslationScore(
        hypotheses=texts,
        references=answers,
        exact_match=sum(exact) / len(exact),
        metrics=metrics.score(texts, answers, lowercase=lowercase),
        comparison=comparison,
        lowercase=lowercase,
        named_metrics=named,
    )


def evaluate_translator(
    model: Model | Seq2SeqLM,
    sources: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    against: Sequence[str] | Model | None = None,
    reranker: NoisyChannelReranker | None = None,
    num_beams: int = DEFAULT_BEAMS,
    length_penalty: float = 1.0,
    batch_size: int = DEFAULT_BATCH_SOURCES,
    limit: int | None = None,
    lowercase: bool = False,
    metrics_by_name: Sequence[str] = (),
    on_message: Callable[[str], None] = lambda line: None,
    on_progress: Callable[[int], None] = lambda n_done: None,
) -> TranslationScore:
    """Translate the sources by beam search and score the result.

    Sources that exceed the context are cut off, because every source counts; `on_message` says how many. `against` are
    the translations of a second system, or a second model that translates the same sources. It is never reranked, so
    that you can compare a model with and without its reranker. `metrics_by_name` is that of `evaluate_translations`.
    `on_progress` is called with the number of sources translated so far.
    """
    check_lines(sources, references)
    _check_limit(limit)
    if against is not None and not isinstance(against, Model):
        check_lines(against, references)
    sources = sources[:limit]
    options: dict[str, Any] = {"num_beams": num_beams, "length_penalty": length_penalty, "batch_size": batch_size}
    start = time.monotonic()
    hypotheses = _translate(model, sources, on_message, on_progress, reranker=reranker, **options)
    seconds = time.monotonic() - start
    if isinstance(against, Model):
        against = _translate(against, sources, on_message, on_progress, **options)
    score = evaluate_translations(
        hypotheses,
        [reference[:limit] for reference in references],
        against=None if against is None else against[:limit],
        lowercase=lowercase,
        metrics_by_name=metrics_by_name,
        sources=sources,
    )
    return replace(score, seconds=seconds)


def _check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise InputError(f"limit={limit} leaves nothing to score: use at least 1, or None for all")


def _translate(
    model: Any,
    sources: Sequence[str],
    on_message: Callable[[str], None],
    on_progress: Callable[[int], None],
    **options: Any,
) -> list[str]:
    """The best translation of each source, on one line."""
    if n_truncated := len(truncated_sources(model, sources)):
        on_message(f"note: {n_truncated:,} of {len(sources):,} texts exceed the model's context and are cut off")
    texts = [""] * len(sources)
    for n_done, (row, translation) in enumerate(translations(model, sources, truncate=True, **options), 1):
        texts[row] = " ".join(translation.text.split("\n"))
        on_progress(n_done)
    return texts

"""Scores of taggers: precision, recall and F1 of entities, and the accuracy of words.

An entity counts as found if its type, its first and its last word are all right. What an entity is in an invalid
sequence of tags is defined as in conlleval and seqeval's default mode (`entity_spans`). Micro averages count all
entities alike, macro averages all types. Tags that mark no entities, such as parts of speech, are scored by accuracy.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.data.records import Record, TaggedSentence
from headway.data.tag_schemes import entity_spans, mark_entities, scheme_of
from headway.evaluation.precision_recall import MatchCounts, macro_scores, total
from headway.models import Model, Tagger
from headway.prediction.heads import require_head
from headway.prediction.viterbi import TagRules, decode_tags
from headway.prediction.word_scores import word_log_probs

Tags = Sequence[Sequence[str]]  # of each sentence, the tag of each word


@dataclass(frozen=True, repr=False)
class TaggingReport:
    """Predicted tags compared with the truth. `labels` are all tags that the model knows."""

    labels: Sequence[str]
    truth: Tags
    predicted: Tags
    argmax: Tags | None = None  # the best tag of each word, if `predicted` was constrained to valid sequences

    @property
    def has_entities(self) -> bool:
        return mark_entities(self.labels)

    @cached_property
    def accuracy(self) -> float:
        """The fraction of words with the right tag."""
        pairs = (pair for tags in zip(self.truth, self.predicted, strict=True) for pair in zip(*tags, strict=True))
        return sum(true == tag for true, tag in pairs) / max(self.n_words, 1)

    @property
    def n_words(self) -> int:
        return sum(map(len, self.truth))

    @cached_property
    def counts_by_type(self) -> dict[str, MatchCounts]:
        """The counts of every type that is in the data or was predicted, in alphabetical order."""
        return count_entities(self.truth, self.predicted)

    @property
    def counts(self) -> MatchCounts:
        """The counts of all types together."""
        return total(self.counts_by_type.values())

    @property
    def f1(self) -> float:
        """Micro-averaged F1 of entities."""
        return self.counts.f1

    @property
    def macro_scores(self) -> dict[str, float]:
        """The means of precision, recall and F1 over the types."""
        return macro_scores(self.counts_by_type.values())

    @cached_property
    def argmax_f1(self) -> float | None:
        """F1 without constraints; None if there were none."""
        return None if self.argmax is None else total(count_entities(self.truth, self.argmax).values()).f1

    @property
    def n_invalid(self) -> int:
        """Sentences whose best tags, word by word, are not a valid sequence."""
        rules, id_of = TagRules.of(self.labels), {label: id for id, label in enumerate(self.labels)}
        if rules is None or self.argmax is None:
            return 0
        return sum(not rules.allow(np.array([id_of[tag] for tag in tags], dtype=np.int64)) for tags in self.argmax)

    # ── for paired bootstrap ──────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def statistics(self) -> NDArray[np.int64]:
        """Counts per sentence whose sum gives `statistic`: entities found, predicted and true (N, 3), or words with the
        right tag and all words (N, 2)."""
        rows = []
        for true, tags in zip(self.truth, self.predicted, strict=True):
            if self.has_entities:
                rows.append([*total(count_entities([true], [tags]).values())])
            else:
                rows.append([sum(a == b for a, b in zip(true, tags, strict=True)), len(true)])
        return np.array(rows, dtype=np.int64)

    @property
    def statistic_name(self) -> str:
        return "F1" if self.has_entities else "accuracy"

    def statistic(self, sums: NDArray[Any]) -> Any:
        """F1, or the accuracy of tags that mark no entities, from sums of `statistics` (…, k)."""
        if self.has_entities:
            return 2 * sums[..., 0] / np.maximum(sums[..., 1] + sums[..., 2], 1)
        return sums[..., 0] / np.maximum(sums[..., 1], 1)

    # ── as numbers and as text ────────────────────────────────────────────────────────────────────────────────────

    @property
    def metrics(self) -> Mapping[str, float]:
        return ({"f1": self.f1} if self.has_entities else {}) | {"accuracy": self.accuracy}

    def to_dict(self) -> dict[str, Any]:
        table: dict[str, Any] = {"accuracy": self.accuracy, "n_sentences": len(self.truth), "n_words": self.n_words}
        if self.has_entities:
            by_type = {type: counts.scores | counts._asdict() for type, counts in self.counts_by_type.items()}
            macro = {f"macro_{name}": value for name, value in self.macro_scores.items()}
            table = self.counts.scores | macro | table | self.counts._asdict() | {"types": by_type}
        if self.argmax_f1 is not None:
            table |= {"argmax_f1": self.argmax_f1, "n_invalid": self.n_invalid}
        return table

    def render(self) -> str:
        accuracy = f"{'accuracy':<16}{self.accuracy:.2%} of {self.n_words:,} words"
        if not self.has_entities:
            return accuracy
        rows = [(type, counts.scores, f"{counts.n_true:,}") for type, counts in self.counts_by_type.items()]
        rows += [("micro average", self.counts.scores, f"{self.counts.n_true:,}")]
        rows += [("macro average", self.macro_scores, "")]
        width = max(15, *(len(name) for name, *_ in rows))
        lines = [f"{'entities':<{width}} {'precision':>9} {'recall':>9} {'F1':>9} {'number':>9}"]
        for name, scores, number in rows:
            cells = " ".join(f"{value:>9.2%}" for value in scores.values())
            lines.append(f"{name:<{width}} {cells} {number:>9}".rstrip())
        lines.append(accuracy)
        if self.argmax_f1 is not None:
            scheme = str(scheme_of(self.labels)).upper()
            lines.append(
                f"{'unconstrained':<16}F1 {self.argmax_f1:.2%}: the best tag of each word breaks the rules of {scheme} "
                f"in {self.n_invalid:,} of {len(self.truth):,} sentences"
            )
        return "\n".join(lines)


def count_entities(truth: Tags, predicted: Tags) -> dict[str, MatchCounts]:
    """The counts of every type of entity in true or predicted tags, in alphabetical order of the types."""
    n_correct: Counter[str] = Counter()
    n_predicted: Counter[str] = Counter()
    n_true: Counter[str] = Counter()
    for true_tags, tags in zip(truth, predicted, strict=True):
        true_spans, spans = set(entity_spans(true_tags)), set(entity_spans(tags))
        n_correct.update(span.type for span in true_spans & spans)
        n_predicted.update(span.type for span in spans)
        n_true.update(span.type for span in true_spans)
    types = sorted(n_predicted.keys() | n_true.keys())
    return {type: MatchCounts(n_correct[type], n_predicted[type], n_true[type]) for type in types}


def tagging_report(
    model: Model,
    records: Sequence[Record],
    *,
    context: int | None = None,
    batch_size: int = 32,
    check_stop: Callable[[], None] = lambda: None,
) -> TaggingReport:
    """Tag the words of the records, and compare. Every word is scored, also those beyond the context."""
    tagger = require_head(model, Tagger, "tag")
    sentences = [record for record in records if isinstance(record, TaggedSentence)]
    labels = tagger.config.labels
    rules = TagRules.of(labels)
    log_probs = word_log_probs(
        tagger,
        [sentence.words for sentence in sentences],
        context=context,
        batch_size=batch_size,
        on_progress=lambda n_done: check_stop(),
    )

    def decode(rules: TagRules | None) -> list[list[str]]:
        return [[labels[id] for id in decode_tags(scores, rules)] for scores in log_probs]

    truth = [sentence.tags for sentence in sentences]
    return TaggingReport(labels, truth, decode(rules), None if rules is None else decode(None))

"""Classify texts: the probability of each label.

    model = headway.load("runs/reviews")
    for result in headway.classify(model, ["A gem.", "Two hours of my life."]):
        print(result.label, result.probability)

The probabilities of a model with one label per text are a softmax and sum to 1. Those of a multi-label model are a
sigmoid each: a text has every label whose probability reaches the threshold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor

from headway.data.datasets.classification import TextOrPair, encode_texts
from headway.errors import InputError
from headway.models.base import Model
from headway.models.heads import Classifier
from headway.prediction.batching import DEFAULT_BATCH_SIZE, EncoderInput, OnProgress, as_texts, run_encoder
from headway.prediction.heads import require_head

DEFAULT_THRESHOLD = 0.5


@dataclass(frozen=True)
class Classification:
    """The labels of a text, by their probability."""

    probabilities: Mapping[str, float]  # by label, the most probable first
    labels: tuple[str, ...]  # those the text has: the most probable one, or in a multi-label model any number
    is_truncated: bool = False  # whether the text was longer than the model's context, and lost its end

    @property
    def label(self) -> str:
        """The most probable label."""
        return next(iter(self.probabilities))

    @property
    def probability(self) -> float:
        """Of the most probable label."""
        return self.probabilities[self.label]


def classify(
    model: Model,
    texts: Sequence[TextOrPair],
    *,
    batch_size: int = DEFAULT_BATCH_SIZE,
    threshold: float = DEFAULT_THRESHOLD,
    on_progress: OnProgress = lambda n_done: None,
) -> list[Classification]:
    """The labels of each text, or of each pair `(text, text_pair)`.

    `threshold` is the probability from which on a multi-label model gives a label.
    """
    classifier = require_head(model, Classifier, "classify")
    texts = as_texts(texts, _is_text_or_pair, "classify")
    if not 0 < threshold < 1:
        raise InputError(f"threshold={threshold} is not a probability between 0 and 1")
    scores = label_probabilities(classifier, texts, batch_size=batch_size, on_progress=on_progress)
    names, multi_label = classifier.config.labels, classifier.config.multi_label
    results = []
    for p, is_truncated in zip(scores.probabilities, scores.is_truncated, strict=True):
        by_label = {names[i]: float(p[i]) for i in p.argsort(descending=True, stable=True).tolist()}
        labels = [name for name in by_label if by_label[name] >= threshold] if multi_label else [*by_label][:1]
        results.append(Classification(by_label, tuple(labels), is_truncated))
    return results


def _is_text_or_pair(text: object) -> bool:
    parts = [text] if isinstance(text, str) else text
    is_pair = isinstance(parts, list | tuple) and len(parts) == (1 if isinstance(text, str) else 2)
    return is_pair and all(isinstance(part, str) for part in cast(Sequence[object], parts))


class LabelProbabilities(NamedTuple):
    probabilities: Tensor  # (N, C) float32, on the CPU
    is_truncated: list[bool]


def label_probabilities(
    model: Classifier,
    texts: Sequence[TextOrPair],
    *,
    context: int | None = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
    on_progress: OnProgress = lambda n_done: None,
) -> LabelProbabilities:
    """The probability of each label for each text. `context` is the longest input in tokens (default: the model's)."""
    if len(model.config.labels) == 1 and not model.config.multi_label:
        raise InputError(
            f"this model has one output, {model.config.labels[0]!r}: it predicts a number, not one of several labels, "
            f"so it has no probabilities; use a model with two labels or more"
        )
    encoded = encode_texts(model.tokenizer, texts, context or model.config.context)
    has_segments = getattr(model.config, "n_segments", 0) > 1
    inputs = []
    for number, (ids, segments) in enumerate(zip(encoded.ids, encoded.segments, strict=True), 1):
        if not ids:
            raise InputError(f"text {number} has no tokens: it is empty, or the tokenizer knows none of it")
        inputs.append(EncoderInput(ids, segments if has_segments and 1 in segments else None))
    probabilities = torch.zeros(len(inputs), len(model.config.labels))
    for number, logits in run_encoder(model, inputs, model, batch_size=batch_size, on_progress=on_progress):
        scores = logits.float()
        probabilities[number] = (scores.sigmoid() if model.config.multi_label else scores.softmax(dim=-1)).cpu()
    return LabelProbabilities(probabilities, encoded.is_truncated)

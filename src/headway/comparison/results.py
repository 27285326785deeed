"""What a comparison yields: one `ModelResult` per model. report.py prints and plots them."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class CurvePoint:
    """One evaluation during training."""

    tokens: float
    flops: float
    seconds: float
    score: float  # bits per byte; for pairs, nats per target token; else the metric of the comparison


@dataclass(frozen=True)
class LengthBucket:
    """Scores of pairs whose sources have `least` to `most` tokens."""

    min_tokens: int
    max_tokens: int
    n: int  # pairs
    exact_match: float
    bleu: float | None = None  # None for tasks with one right answer


@dataclass(frozen=True, repr=False)
class ModelResult:
    """One model of a comparison: what it cost and how it scored."""

    name: str
    year: int | None
    title: str
    run: str
    n_params: int
    n_tokens: int  # trained on, repetitions included; of labelled texts and tagged words, their number
    steps: int
    flops: float  # of training; 0 for an n-gram or a bag of words, which multiply nothing
    seconds: float
    scores: dict[str, float]  # bits_per_byte, perplexity; or exact_match, bleu; or accuracy, macro_f1, f1
    curve: list[CurvePoint] = field(default_factory=list)
    by_length: list[LengthBucket] = field(default_factory=list)
    sample: str = ""
    init_from: str | None = None  # the weights it started from, whose tokenizer it has
    vocab_size: int | None = None  # of its tokenizer, where it is not the shared one
    sees_future: bool = False  # a later token changes earlier logits, so its score means nothing

    def __repr__(self) -> str:
        scores = ", ".join(f"{name} {value:.4g}" for name, value in self.scores.items())
        return f"ModelResult({self.name!r}, {self.n_params:,} parameters, {scores})"


@dataclass(frozen=True, repr=False)
class Comparison:
    """All models of a comparison, and what they were scored on."""

    data: str
    kind: str  # "text", "pairs", "labelled" or "tagged"
    split: str  # the split that is scored, "valid" or "test"
    size: str  # of that split, in words
    context: int
    vocab_size: int
    budget: str  # in words
    results: list[ModelResult]
    metric: str  # the one that counts: "bits_per_byte", "exact_match", "bleu", "accuracy", "f1"
    longest: int | None = None  # pairs: tokens of the longest source in the training split
    prompt: str = ""
    path: str = ""
    unit: str = "tokens"  # of the budget: "tokens", "seconds" or "epochs"
    interrupted: bool = False  # while training: there are no results yet; `resume=True` continues

    def __repr__(self) -> str:
        scores = ", ".join(f"{result.name} {result.scores[self.metric]:.4g}" for result in self.results)
        return f"Comparison({self.data!r}, {self.metric}: {scores or 'interrupted'})"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

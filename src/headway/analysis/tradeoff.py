"""Quality against diversity: what a temperature or a filter gains and costs.

Each setting samples n continuations of a prompt. Quality is how likely they are, under the model itself at temperature
1 and without filters, or under another model, the judge. Diversity is how different their words are
(evaluation/diversity.py). A low temperature writes likely texts that resemble each other, a high one the opposite; the
settings between them that are better on both axes are the ones worth using.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from headway.analysis.plotting import MARKERS, legend_entry, open_figure, set_title, shorten, theme
from headway.data.datasets.causal import consecutive_windows
from headway.data.loader import IGNORE_INDEX, CausalBatch
from headway.errors import ConfigError, InputError
from headway.evaluation.diversity import distinct, repetition, self_bleu
from headway.evaluation.perplexity import batch_token_nll
from headway.generation.complete import Completion, complete
from headway.generation.generate import require_tokenizer
from headway.models.adapter import language_model
from headway.models.base import AnyLanguageModel, LanguageModel, eval_mode
from headway.nn.masks import padding
from headway.tables import Column, render_table
from headway.tokenizers import Tokenizer

DEFAULT_TEMPERATURES = (0.2, 0.5, 1.0, 1.5)
JUDGE_BATCH_WINDOWS = 8
MAX_EXAMPLE = 60  # characters of a text in the table
MAX_TITLE_TEXT = 40
# Where the values of each line stand beside their markers, in points, so that those of two lines do not collide.
LABEL_CORNERS = ((6, 5, "left"), (-6, -12, "right"), (-6, 5, "right"), (6, -12, "left"))


@dataclass(frozen=True)
class TradeoffPoint:
    """One sampler setting, with the quality and diversity of its texts."""

    parameter: str  # "temperature"
    value: float
    quality: float  # nats per token or bits per byte: lower is more likely
    distinct_1: float
    distinct_2: float
    repetition: float
    self_bleu: float
    n_tokens: int
    texts: list[str]

    @property
    def name(self) -> str:
        return f"{self.parameter}={self.value:g}"


@dataclass(frozen=True)
class Tradeoff:
    """Sampler settings compared on one prompt."""

    prompt: str
    points: list[TradeoffPoint]
    unit: str  # of quality: "nats per token" or "bits per byte"
    judge: str | None  # the model that judged; None if it is the model itself
    seed: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure_tradeoff(
    model: AnyLanguageModel,
    prompt: str,
    settings: Mapping[str, Sequence[float]] | None = None,
    *,
    n: int = 20,
    max_new_tokens: int = 40,
    judge: AnyLanguageModel | None = None,
    judge_name: str = "the judge",
    seed: int = 0,
    on_point: Callable[[TradeoffPoint], None] = lambda point: None,
) -> Tradeoff:
    """Sample `n` texts with each setting, and measure quality and diversity.

        tradeoff = measure_tradeoff(model, "The", {"temperature": [0.5, 1.0, 1.5], "top_p": [0.5, 0.9]})
        print(render_text(tradeoff))

    `settings` maps a sampler parameter to its values, by default the temperature to `DEFAULT_TEMPERATURES`. One
    parameter varies at a time; the others are off, and the temperature is then 1. Text i draws from `seed + i`, with
    every setting.

    Quality, where lower is more likely:

    - without a judge, the mean of −ln p over all tokens drawn, EOS included: p is the model's own, before samplers;
    - with a judge of the same tokenizer, the same mean with the judge's p: nats per token;
    - with a judge of another tokenizer, −log2 p(texts | prompt) / UTF-8 bytes of the texts: bits per byte. The tokens
      of prompt + text that cover a character of the text are charged, and bytes lost in <unk> 8 bits each.

    Diversity is that of the continuations, without the prompt: `distinct`, `repetition` and `self_bleu` of
    evaluation/diversity.py.
    """
    settings = settings or {"temperature": DEFAULT_TEMPERATURES}
    if n < 2:
        raise ConfigError(f"n={n}: diversity compares texts, so sample at least 2")
    for name, values in settings.items():
        if not values:
            raise ConfigError(f"{name} has no values to compare: give at least one")
    _, tokenizer = require_tokenizer(model)
    scorer = _own_quality if judge is None else _Judge.of(judge, tokenizer)
    points = []
    for name, values in settings.items():
        for value in values:
            options: dict[str, Any] = {"temperature": 1.0, name: int(value) if float(value).is_integer() else value}
            texts = complete(model, prompt, n=n, max_new_tokens=max_new_tokens, seed=seed, **options)
            points.append(_measure(name, value, texts, scorer(prompt, texts)))
            on_point(points[-1])
    unit = scorer.unit if isinstance(scorer, _Judge) else "nats per token"
    return Tradeoff(prompt, points, unit, None if judge is None else judge_name, seed)


def _measure(parameter: str, value: float, completions: Sequence[Completion], quality: float) -> TradeoffPoint:
    texts = [completion.text for completion in completions]
    return TradeoffPoint(
        parameter=parameter,
        value=value,
        quality=quality,
        distinct_1=distinct(texts, 1),
        distinct_2=distinct(texts, 2),
        repetition=repetition(texts),
        self_bleu=self_bleu(texts),
        n_tokens=sum(len(completion.tokens) for completion in completions),
        texts=texts,
    )


def _own_quality(prompt: str, completions: Sequence[Completion]) -> float:
    """Nats per token under the model that wrote the texts."""
    log_probs = [log_prob for completion in completions for log_prob in completion.logprobs]
    return -sum(log_probs) / len(log_probs)


@dataclass(frozen=True)
class _Judge:
    """Another model that says how likely the texts are."""

    model: LanguageModel
    tokenizer: Tokenizer
    shares_tokenizer: bool

    @classmethod
    def of(cls, judge: AnyLanguageModel, tokenizer: Tokenizer) -> "_Judge":
        lm = language_model(judge)
        _, own_tokenizer = require_tokenizer(judge)
        return cls(lm, own_tokenizer, own_tokenizer.fingerprint() == tokenizer.fingerprint())

    @property
    def unit(self) -> str:
        return "nats per token" if self.shares_tokenizer else "bits per byte"

    def __call__(self, prompt: str, completions: Sequence[Completion]) -> float:
        if self.shares_tokenizer:
            nats = sum(self._nats([*c.prompt_tokens, *c.tokens], len(c.prompt_tokens)) for c in completions)
            return nats / sum(len(completion.tokens) for completion in completions)
        n_bytes = sum(len(completion.text.encode()) for completion in completions)
        if not n_bytes:
            raise InputError(
                f"every text after {prompt!r} is empty, so there are no bytes to judge: use another prompt"
            )
        bits = sum(self._bits(prompt, completion.text) for completion in completions)
        return bits / n_bytes

    def _bits(self, prompt: str, text: str) -> float:
        """−log2 p(text | prompt), with 8 bits for every lost byte."""
        encoding = self.tokenizer.encode_with_offsets(prompt + text)
        n_given = sum(end <= len(prompt) for _, end in encoding.offsets)
        bos = [] if self.tokenizer.bos_id is None else [self.tokenizer.bos_id]
        nats = 0.0
        if not bos and not n_given and encoding.ids:  # nothing predicts the first token: a uniform guess
            nats, n_given = math.log(self.model.config.vocab_size), 1
        nats += self._nats([*bos, *encoding.ids], len(bos) + n_given)
        return nats / math.log(2) + 8 * self.tokenizer.lost_bytes(text)

    @torch.no_grad()
    def _nats(self, ids: Sequence[int], n_given: int) -> float:
        """−ln p of the tokens after the first `n_given`, in the windows of `headway.evaluate`."""
        stream, is_given = torch.tensor(ids), torch.arange(len(ids)) < n_given
        size = self.model.config.context or max(1, len(ids))
        nats = 0.0
        batches = zip(*(consecutive_windows(x, size, JUDGE_BATCH_WINDOWS) for x in (stream, is_given)), strict=True)
        with eval_mode(self.model):
            for (inputs, targets, lengths), (_, target_is_given, _) in batches:
                is_target = padding(lengths, targets.shape[1]) & ~target_is_given
                batch = CausalBatch(inputs, targets.masked_fill(~is_target, IGNORE_INDEX), lengths)
                nats += float(batch_token_nll(self.model, batch).sum(dtype=torch.float64))
        return nats


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def render_text(tradeoff: Tradeoff, *, width: int = 120) -> str:
    """A table with a row per setting, and the first text of each."""
    points = tradeoff.points
    columns = [
        Column("setting", [point.name for point in points], is_text=True),
        Column(tradeoff.unit, [f"{point.quality:.3f}" for point in points]),
        Column("distinct-1", [f"{point.distinct_1:.3f}" for point in points]),
        Column("distinct-2", [f"{point.distinct_2:.3f}" for point in points]),
        Column("repetition", [f"{point.repetition:.3f}" for point in points]),
        Column("self-BLEU", [f"{point.self_bleu:.3f}" for point in points]),
        Column("first text", [shorten(point.texts[0], MAX_EXAMPLE) for point in points], is_text=True, rank=1),
    ]
    return render_table(columns, width)


# ── plot ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def plot(tradeoff: Tradeoff, file: str | Path, *, model: str = "") -> Path:
    """Write a picture of quality against two measures of diversity."""
    with open_figure(file, width=8, height=4.2) as figure:
        draw(figure, tradeoff, model=model)
    return Path(file)


def draw(figure: Any, tradeoff: Tradeoff, *, model: str = "") -> None:
    """Draw a panel per measure into an empty figure: a line per parameter, a labelled marker per setting. Up is more
    likely, right is more diverse."""
    panels = figure.subplots(1, 2, sharey=True)
    measures: dict[str, Callable[[TradeoffPoint], float]] = {
        "distinct-2 (fraction of word pairs)": lambda point: point.distinct_2,
        "1 − self-BLEU": lambda point: 1 - point.self_bleu,
    }
    parameters = list(dict.fromkeys(point.parameter for point in tradeoff.points))
    for axes, (label, measure) in zip(panels, measures.items(), strict=True):
        for i, parameter in enumerate(parameters):
            points = sorted((p for p in tradeoff.points if p.parameter == parameter), key=lambda p: p.value)
            x, y = [measure(point) for point in points], [point.quality for point in points]
            axes.plot(x, y, color=theme().colour(i), marker=MARKERS[i % len(MARKERS)], markersize=6)
            *offset, side = LABEL_CORNERS[i % len(LABEL_CORNERS)]
            for point, x_value in zip(points, x, strict=True):
                axes.annotate(f"{point.value:g}", (x_value, point.quality), offset, textcoords="offset points",
                              fontsize=8, horizontalalignment=side, color=theme().colour(i))  # fmt: skip
        axes.set_xlabel(f"{label}: more diverse →")
        axes.margins(x=0.12, y=0.12)
        axes.grid()
    panels[0].invert_yaxis()
    panels[0].set_ylabel(f"{tradeoff.unit}: more likely ↑")
    entries = [
        legend_entry("line", color=theme().colour(i), marker=MARKERS[i % len(MARKERS)], markersize=6, label=parameter)
        for i, parameter in enumerate(parameters)
    ]
    figure.legend(handles=entries, loc="outside lower right", ncols=len(entries))
    subject = f"{model}: quality" if model else "Quality"
    judge = "" if tradeoff.judge is None else f", judged by {tradeoff.judge}"
    set_title(figure, f"{subject} against diversity after “{shorten(tradeoff.prompt, MAX_TITLE_TEXT)}”{judge}")

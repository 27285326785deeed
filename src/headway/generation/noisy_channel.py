"""Noisy-channel reranking: of several translations, prefer the one that best explains the source.

Shannon 1948 and Brown et al. 1993 choose y, given x, by Bayes' rule,

    p(y | x) ∝ p(x | y) · p(y)

from a channel model, which translates back, and a language model, which can be trained on far more text. Here, as in
Yee et al. 2019, both are combined with the direct model that proposed the candidates:

    score(y) = w_direct · ln p(y|x) / |y|  +  (w_channel · ln p(x|y) + w_lm · ln p(y)) / |x|  +  w_length · |y| / |x|

|x| and |y| are in tokens. The last term lets tuned weights undo a bias towards short or long sentences.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from headway.config import load_recipe
from headway.errors import ConfigError, InputError, suggest
from headway.generation.source import (
    decoder_start_id,
    encode_sources,
    require_translator,
    required_eos_id,
    start_from_sources,
)
from headway.models import NGram, load
from headway.models.adapter import language_model
from headway.models.base import LanguageModel, Model, Seq2SeqLM, eval_mode, tokenizer_of
from headway.nn.kernels.cpu_linear import CPUKernels
from headway.nn.masks import padding
from headway.nn.padding import pad_ids
from headway.runs import Run

MAX_LOGITS_PER_BATCH = 2**24  # numbers held at once: 64 MiB in float32
TUNING_GRID = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
MAX_TUNING_ROUNDS = 3


class ChannelScores(NamedTuple):
    """The terms of a candidate's score, before weights."""

    direct: float  # ln p(y|x) / |y|
    channel: float  # ln p(x|y) / |x|
    lm: float  # ln p(y) / |x|
    length: float  # |y| / |x|


@dataclass(frozen=True)
class ChannelWeights:
    """The weight of each term. With all but `direct` at 0, the order is that of beam search with length penalty 1."""

    direct: float = 1.0
    channel: float = 0.5
    lm: float = 0.2
    length: float = 0.0

    def score(self, terms: ChannelScores) -> float:
        """The weighted sum. A weight of 0 drops its term, even an infinite one."""
        return sum(getattr(self, name) * value for name, value in terms._asdict().items() if getattr(self, name))

    def best(self, candidates: Sequence[ChannelScores]) -> int:
        """The index of the candidate with the highest score; the first of equals."""
        return max(range(len(candidates)), key=lambda i: (self.score(candidates[i]), -i))

    def __str__(self) -> str:
        return ",".join(f"{field.name}={getattr(self, field.name):g}" for field in fields(self))

    @classmethod
    def parse(cls, text: str) -> "ChannelWeights":
        """From "channel=0.5,lm=0.2"; weights that are not named keep their defaults."""
        values: dict[str, float] = {}
        names = [field.name for field in fields(cls)]
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = (piece.strip() for piece in part.partition("="))
            if name not in names:
                raise ConfigError(
                    f"weights: no term {name!r}." + suggest(name, names, otherwise=f" There are: {', '.join(names)}")
                )
            if name in values:
                raise ConfigError(f"weights: {name} is named twice in {text!r}")
            try:
                values[name] = float(value)
            except ValueError:
                values[name] = math.nan
            if not math.isfinite(values[name]):
                raise ConfigError(f"weights: {part!r} is not of the form {name}=0.5")
        return cls(**values)


def tune_weights(
    candidates: Sequence[Sequence[ChannelScores]],
    judge: Callable[[list[int]], float],
    *,
    terms: Sequence[str] = ("channel", "lm", "length"),
) -> tuple[ChannelWeights, float]:
    """Find the weights whose choices `judge` rates highest; also return that rating.

    Coordinate ascent from the direct model alone: each weight in turn takes the best value of `TUNING_GRID` (for length
    also the negative ones), until a round changes nothing. `judge` gets the index of the chosen candidate of each
    sentence; higher is better.
    """
    weights = ChannelWeights(direct=1.0, channel=0.0, lm=0.0, length=0.0)
    best_rating = judge([weights.best(sentence) for sentence in candidates])
    for _ in range(MAX_TUNING_ROUNDS):
        previous = weights
        for name in terms:
            signs = (1, -1) if name == "length" else (1,)
            for value in [sign * step for step in TUNING_GRID for sign in (signs if step else (1,))]:
                trial = replace(weights, **{name: value})
                if trial == weights:
                    continue
                rating = judge([trial.best(sentence) for sentence in candidates])
                if rating > best_rating:
                    best_rating, weights = rating, trial
        if weights == previous:
            break
    return weights, best_rating


@dataclass(frozen=True)
class NoisyChannelReranker:
    """Reranks translations by a model that translates back, a language model of the target side, or both."""

    reverse: Model | None = None
    lm: Model | None = None
    weights: ChannelWeights = ChannelWeights()

    def __post_init__(self) -> None:
        if self.reverse is None and self.lm is None:
            raise ConfigError("a noisy channel needs a reverse model, a language model, or both: give at least one")

    def terms(
        self,
        sources: Sequence[str],
        candidates: Sequence[Sequence[tuple[str, float, int]]],
        n_source: Sequence[int],
    ) -> list[list[ChannelScores]]:
        """The terms of every candidate of every source. A candidate is its text, ln p(y|x) and |y| under the direct
        model; `n_source` are the |x|."""
        texts = [text for row in candidates for text, _, _ in row]
        repeated_sources = [source for source, row in zip(sources, candidates, strict=True) for _ in row]
        zeros = [0.0] * len(texts)
        channel = iter(zeros if self.reverse is None else pair_log_probs(self.reverse, texts, repeated_sources))
        lm = iter(zeros if self.lm is None else text_log_probs(self.lm, texts))
        return [
            [ChannelScores(log_prob / max(n_y, 1), next(channel) / n_x, next(lm) / n_x, n_y / n_x)
             for _, log_prob, n_y in row]
            for row, n_x in zip(candidates, n_source, strict=True)
        ]  # fmt: skip


def pair_log_probs(model: Model, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
    """ln p(target | source) of each pair; −∞ for an empty source. Texts that exceed the model's context are cut off."""
    translator, tokenizer = require_translator(model)
    source_ids = encode_sources(translator, tokenizer, sources, truncate=True)
    start_id, eos_id = decoder_start_id(translator), required_eos_id(translator, tokenizer)
    target_ids = [
        [start_id, *ids, eos_id][: translator.config.context + 1]
        for ids in tokenizer.encode_batch([text.strip() for text in targets])
    ]
    log_probs = [-torch.inf] * len(target_ids)
    rows = [i for i, ids in enumerate(source_ids) if ids]
    rows.sort(key=lambda i: (len(source_ids[i]), len(target_ids[i])))
    with eval_mode(translator), CPUKernels(translator, pack=False), torch.inference_mode():
        for batch in _batches(rows, target_ids, translator.config.vocab_size):
            capacity = max(len(target_ids[i]) for i in batch)
            state = start_from_sources(translator, [source_ids[i] for i in batch], capacity)
            for i, value in zip(batch, _sum_log_probs(translator, [target_ids[i] for i in batch], state), strict=True):
                log_probs[i] = value
    return log_probs


def text_log_probs(model: Model, texts: Sequence[str]) -> list[float]:
    """ln p of each text on its own under a language model (tokenizers/base.py, rules 3 and 4). Texts that exceed its
    context are scored in consecutive windows."""
    lm = language_model(model)
    tokenizer = tokenizer_of(lm)
    if tokenizer is None:
        raise InputError("the language model has no tokenizer: set lm.tokenizer = headway.load_tokenizer(PATH)")
    bos = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    eos = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    rows = [[*bos, *ids, *eos] for ids in tokenizer.encode_batch([text.strip() for text in texts])]
    first = 0.0 if bos else -math.log(lm.config.vocab_size)  # without BOS, the first token is charged ln V
    log_probs = [first if row else 0.0 for row in rows]
    if isinstance(lm, NGram):
        for i, row in enumerate(rows):
            log_probs[i] += float(lm.log_probability(torch.tensor(row, dtype=torch.long))[1:].sum(dtype="float64"))
        return log_probs
    size = lm.config.context or max([1, *map(len, rows)])
    windows = [(i, row[t : t + size + 1]) for i, row in enumerate(rows) for t in range(0, len(row) - 1, size)]
    ids = [window for _, window in windows]
    with eval_mode(lm), CPUKernels(lm, pack=False), torch.inference_mode():
        for batch in _batches(sorted(range(len(ids)), key=lambda j: len(ids[j])), ids, lm.config.vocab_size):
            state = lm.start(batch_size=len(batch), capacity=max(len(ids[j]) - 1 for j in batch))
            for j, value in zip(batch, _sum_log_probs(lm, [ids[j] for j in batch], state), strict=True):
                log_probs[windows[j][0]] += value
    return log_probs


def _batches(order: Sequence[int], rows: Sequence[Sequence[int]], vocab_size: int) -> list[list[int]]:
    """Split the row indices into batches whose logits hold at most `MAX_LOGITS_PER_BATCH` numbers."""
    batches: list[list[int]] = []
    for i in order:
        longest = max([len(rows[i]), *(len(rows[j]) for j in batches[-1])]) if batches else 0
        if batches and (len(batches[-1]) + 1) * longest * vocab_size <= MAX_LOGITS_PER_BATCH:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def _sum_log_probs(model: LanguageModel | Seq2SeqLM, rows: Sequence[Sequence[int]], state: object) -> list[float]:
    """The summed ln p of all tokens of each row but the first."""
    ids, lengths = pad_ids(rows, model.device)
    if ids.shape[1] < 2:
        return [0.0] * len(rows)
    n_targets = (lengths - 1).clamp(min=0).to(model.device)
    logits, _ = model.step(ids[:, :-1], state, n_targets)
    log_p: Tensor = logits.float().log_softmax(dim=-1).gather(-1, ids[:, 1:, None]).squeeze(-1)  # (B, T)
    is_target = padding(n_targets, log_p.shape[1])
    return [float(value) for value in log_p.double().masked_fill(~is_target, 0.0).sum(dim=1)]


# ── loading ───────────────────────────────────────────────────────────────────────────────────────────────────────


def load_reranker(
    model: str | Path,
    *,
    reverse_model: str | Path | None = None,
    lm: str | Path | None = None,
    weights: ChannelWeights | str = ChannelWeights(),  # noqa: B008 (frozen)
    device: str = "auto",
    dtype: str = "auto",
) -> NoisyChannelReranker:
    """Load the reranker for the translations of `model`: a reverse model, a language model or both, by their paths.

    `weights` are `ChannelWeights` or their text ("channel=0.3,lm=0.1"). A reverse model that translates in the same
    direction as `model` is refused, if the file names of their training data show the direction.
    """
    weights = ChannelWeights.parse(weights) if isinstance(weights, str) else weights
    if reverse_model is not None:
        direction, reverse_direction = translation_direction(model), translation_direction(reverse_model)
        if direction is not None and direction == reverse_direction:
            raise ConfigError(
                f"{reverse_model} translates .{direction[0]} to .{direction[1]}, as {model} does: the reverse model "
                f"must translate back"
            )
    reverse = None if reverse_model is None else load(reverse_model, device=device, dtype=dtype)
    if reverse is not None and not isinstance(reverse, Seq2SeqLM):
        raise ConfigError(f"{reverse_model} does not translate, so it cannot be the reverse model; it may be the lm")
    target_lm = None if lm is None else load(lm, device=device, dtype=dtype)
    if isinstance(target_lm, Seq2SeqLM):
        raise ConfigError(f"{lm} translates, so it cannot be the lm; it may be the reverse model")
    return NoisyChannelReranker(reverse, target_lm, weights)


def translation_direction(run: str | Path) -> tuple[str, str] | None:
    """The file extensions of the sources and targets that a run was trained on, such as ("en", "de"). None if the path
    is not a run, or if the extensions are equal or missing."""
    if not Run.exists(run):
        return None
    data = load_recipe(run).data
    if braces := re.search(r"\{([^{},]+),([^{},]+)\}", data.path):
        source, target = braces.groups()
    else:
        source, target = Path(data.path).suffix[1:], Path(data.target_path or "").suffix[1:]
    return (source, target) if target and source != target else None

"""Noisy channel: of several translations, the one from which the source would most likely have been written.

Shannon 1948 and Brown et al. 1993 would have y, given x, by Bayes' rule,

    p(y | x) ∝ p(x | y) · p(y)

from a channel, a model that translates back, and a language model, which can learn from far more text. Here, as in Yee
et al. 2019, both have a say beside the direct model that proposed the candidates:

    score(y) = w_direct · ln p(y|x) / |y|  +  (w_channel · ln p(x|y) + w_lm · ln p(y)) / |x|  +  w_length · |y| / |x|

|x| and |y| are in tokens. The last term lets tuned weights undo a liking for short or long sentences.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from headway.errors import ConfigError, InputError, suggest
from headway.generation.source import decoder_start_id, encode_sources, require_translator, start_from_sources
from headway.models import NGram
from headway.models.base import LanguageModel, Model, Seq2SeqLM, eval_mode, language_model
from headway.nn.masks import padding


class ChannelScores(NamedTuple):
    """What is known of a candidate, before weights."""

    direct: float  # ln p(y|x) / |y|
    channel: float  # ln p(x|y) / |x|
    lm: float  # ln p(y) / |x|
    length: float  # |y| / |x|


@dataclass(frozen=True)
class ChannelWeights:
    """How much each has to say. All but `direct` at 0 is the order of beam search with a length penalty of 1."""

    direct: float = 1.0
    channel: float = 0.5
    lm: float = 0.2
    length: float = 0.0

    def score(self, terms: ChannelScores) -> float:
        return sum(getattr(self, name) * value for name, value in terms._asdict().items() if getattr(self, name))

    def best(self, candidates: Sequence[ChannelScores]) -> int:
        """The place of the candidate with the highest score; the first of equals."""
        return max(range(len(candidates)), key=lambda i: (self.score(candidates[i]), -i))

    def __str__(self) -> str:
        return ",".join(f"{field.name}={getattr(self, field.name):g}" for field in fields(self))

    @classmethod
    def parse(cls, text: str) -> "ChannelWeights":
        """From "channel=0.5,lm=0.2"; what is not named keeps its default."""
        found: dict[str, float] = {}
        names = [field.name for field in fields(cls)]
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = (piece.strip() for piece in part.partition("="))
            if name not in names:
                raise ConfigError(
                    f"weights: no term {name!r}." + suggest(name, names, otherwise=f" There are: {', '.join(names)}")
                )
            if name in found:
                raise ConfigError(f"weights: {name} is named twice in {text!r}")
            try:
                found[name] = float(value)
            except ValueError:
                found[name] = math.nan
            if not math.isfinite(found[name]):
                raise ConfigError(f"weights: {part!r} is not of the form {name}=0.5")
        return cls(**found)


MAX_LOGITS = 2**24  # numbers held at once: 64 MiB in float32
STEPS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
ROUNDS = 3


def tune_weights(
    candidates: Sequence[Sequence[ChannelScores]],
    judge: Callable[[list[int]], float],
    *,
    terms: Sequence[str] = ("channel", "lm", "length"),
) -> tuple[ChannelWeights, float]:
    """Weights under which what is chosen is judged best, and that judgement, which grows with quality.

    From the direct model alone, one weight after the other takes the best of `STEPS` (length also below 0), until a
    round changes nothing. `judge` gets the place of the chosen candidate of each sentence.
    """
    weights = ChannelWeights(direct=1.0, channel=0.0, lm=0.0, length=0.0)
    best = judge([weights.best(some) for some in candidates])
    for _ in range(ROUNDS):
        before = weights
        for name in terms:
            values = [sign * step for step in STEPS for sign in ((1, -1) if name == "length" and step else (1,))]
            for value in values:
                other = replace(weights, **{name: value})
                if other == weights:
                    continue
                found = judge([other.best(some) for some in candidates])
                if found > best:
                    best, weights = found, other
        if weights == before:
            break
    return weights, best


@dataclass(frozen=True)
class NoisyChannelReranker:
    """Who reranks: a model that translates back, a language model of what is written, or both."""

    reverse: Model | None = None
    lm: Model | None = None
    weights: ChannelWeights = ChannelWeights()

    def __post_init__(self) -> None:
        if self.reverse is None and self.lm is None:
            raise ConfigError("a noisy channel is a model that translates back, a language model, or both: give one")

    def terms(
        self,
        sources: Sequence[str],
        candidates: Sequence[Sequence[tuple[str, float, int]]],
        n_source: Sequence[int],
    ) -> list[list[ChannelScores]]:
        """Of each candidate of each source: its text, ln p(y|x) and |y|, as the direct model has them; |x| likewise."""
        texts = [text for some in candidates for text, _, _ in some]
        repeated = [source for source, some in zip(sources, candidates, strict=True) for _ in some]
        back = [0.0] * len(texts) if self.reverse is None else pair_log_probs(self.reverse, texts, repeated)
        fluent = [0.0] * len(texts) if self.lm is None else text_log_probs(self.lm, texts)
        found, at = [], 0
        for some, n in zip(candidates, n_source, strict=True):
            found.append([
                ChannelScores(log_prob / max(length, 1), back[at + i] / n, fluent[at + i] / n, length / n)
                for i, (_, log_prob, length) in enumerate(some)
            ])  # fmt: skip
            at += len(some)
        return found


def pair_log_probs(model: Model, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
    """ln p(target | source) of each pair. An empty source explains nothing: −∞. What is longer than the model's context
    is cut."""
    translator, tokenizer = require_translator(model)
    read = encode_sources(translator, tokenizer, sources, truncate=True)
    end = translator.config.eos_id if tokenizer.eos_id is None else tokenizer.eos_id
    rows = [
        [decoder_start_id(translator), *ids, end][: translator.config.context + 1]
        for ids in tokenizer.encode_batch([text.strip() for text in targets])
    ]
    found = [-torch.inf] * len(rows)
    order = sorted((i for i, ids in enumerate(read) if ids), key=lambda i: (len(read[i]), len(rows[i])))
    with eval_mode(translator), torch.inference_mode():
        for some in _batches(order, rows, translator.config.vocab_size):
            state = start_from_sources(translator, [read[i] for i in some], max(len(rows[i]) for i in some))
            for i, value in zip(some, _log_probs(translator, [rows[i] for i in some], state), strict=True):
                found[i] = value
    return found


def text_log_probs(model: Model, texts: Sequence[str]) -> list[float]:
    """ln p of each text on its own under a language model (tokenizers/base.py, rules 3 and 4); what is longer than its
    context in consecutive windows."""
    lm = language_model(model)
    tokenizer = lm.tokenizer
    if tokenizer is None:
        raise InputError("the language model has no tokenizer, so it cannot score text")
    begin, end = tokenizer.bos_id, tokenizer.eos_id
    rows = [
        [*([] if begin is None else [begin]), *ids, *([] if end is None else [end])]
        for ids in tokenizer.encode_batch([text.strip() for text in texts])
    ]
    first = 0.0 if begin is not None else -math.log(lm.config.vocab_size)
    if isinstance(lm, NGram):
        each = (lm.log_probability(torch.tensor(row, dtype=torch.long))[1:].sum(dtype="float64") for row in rows)
        return [float(value) + (first if row else 0.0) for row, value in zip(rows, each, strict=True)]
    limit = lm.config.context or max([1, *map(len, rows)])
    pieces = [(i, row[at : at + limit + 1]) for i, row in enumerate(rows) for at in range(0, len(row) - 1, limit)]
    found = [first if row else 0.0 for row in rows]
    parts = [piece for _, piece in pieces]
    with eval_mode(lm), torch.inference_mode():
        for some in _batches(sorted(range(len(parts)), key=lambda j: len(parts[j])), parts, lm.config.vocab_size):
            state = lm.start(batch_size=len(some), capacity=max(len(parts[j]) - 1 for j in some))
            for j, value in zip(some, _log_probs(lm, [parts[j] for j in some], state), strict=True):
                found[pieces[j][0]] += value
    return found


def _batches(order: Sequence[int], rows: Sequence[Sequence[int]], vocab_size: int) -> list[list[int]]:
    """Rows of like length, as many as leave room for their logits."""
    found: list[list[int]] = []
    for i in order:
        longest = max([len(rows[i]), *(len(rows[j]) for j in found[-1])]) if found else 0
        if found and (len(found[-1]) + 1) * longest * vocab_size <= MAX_LOGITS:
            found[-1].append(i)
        else:
            found.append([i])
    return found


def _log_probs(model: LanguageModel | Seq2SeqLM, rows: Sequence[Sequence[int]], state: object) -> list[float]:
    """The sum of ln p of all tokens but the first of each row."""
    lengths = torch.tensor([max(len(row) - 1, 0) for row in rows])
    ids = pad_sequence([torch.tensor(row, dtype=torch.long) for row in rows], batch_first=True).to(model.device)
    if ids.shape[1] < 2:
        return [0.0] * len(rows)
    logits, _ = model.step(ids[:, :-1], state, lengths.to(model.device))
    log_p: Tensor = logits.float().log_softmax(dim=-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    is_real = padding(lengths.to(model.device), log_p.shape[1])
    return [float(value) for value in log_p.double().masked_fill(~is_real, 0.0).sum(dim=1)]

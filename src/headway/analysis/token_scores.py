"""A text, token by token: the probability and rank of each token, and what the model expected instead.

    p(text) = Π_t p(token_t | the tokens before it),    ln p(text) = Σ_t ln p(token_t | the tokens before it)

The product of many probabilities underflows, the sum of their logarithms does not. Tokens, windows and charges are
those of `headway.evaluate`, so the sum is its score: the text starts with BOS and ends with EOS, a context that is full
starts anew, and without a BOS token the first token is charged ln V. A translation is scored given its source, by
teacher forcing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.analysis.token_labels import token_labels
from headway.data.loader import IGNORE_INDEX, CausalBatch
from headway.errors import ConfigError, InputError, count
from headway.evaluation.perplexity import batch_logits, batch_token_nll, check_not_a_path, validation_text
from headway.evaluation.validation import LossOutput, check_infinite_loss, exp_or_inf
from headway.generation.source import decoder_start_id, encode_sources, require_translator, required_eos_id
from headway.generation.translate import translate
from headway.models.adapter import refuse_path
from headway.models.base import (
    AnyLanguageModel,
    EncoderDecoder,
    LanguageModel,
    Seq2SeqLM,
    described,
    eval_mode,
    tokenizer_of,
)
from headway.nn.cross_entropy import token_losses
from headway.nn.kernels.cpu_linear import CPUKernels
from headway.tables import Column, render_table

BATCH_WINDOWS = 16  # as `headway.evaluate`
MAX_FACTORS = 6  # probabilities that are written out as a product


class ExpectedToken(NamedTuple):
    """One of the most likely tokens at a position."""

    id: int
    token: str
    p: float


@dataclass(frozen=True)
class TokenScore:
    """A token of a text under a model."""

    id: int
    token: str  # with visible spaces; special tokens by name
    log_prob: float  # given the tokens before it
    sum: float  # of ln p up to here
    rank: int | None  # 1 is the most likely token; None for a first token that nothing predicts
    expected: list[ExpectedToken]  # the most likely tokens at this position, best first
    window: int  # windows share no context

    @property
    def p(self) -> float:
        return math.exp(self.log_prob)

    @property
    def bits(self) -> float:
        """The surprisal −log2 p."""
        return -self.log_prob / math.log(2)

    def to_dict(self) -> dict[str, Any]:
        expected = [token._asdict() for token in self.expected]
        return {**self.__dict__, "p": self.p, "bits": self.bits, "expected": expected}


@dataclass(frozen=True)
class TextScore:
    """The scores of the tokens of a text; for a translation, given its source."""

    tokens: list[TokenScore]
    n_bytes: int
    context: int  # tokens in a window
    lost_bytes: int = 0  # in <unk> or in no token: 8 bits each in bits per byte, not part of the sum
    source: str | None = None
    target: str | None = None

    def __repr__(self) -> str:
        return f"TextScore({count(len(self.tokens), 'token')}, ln p {self.log_prob:.4f})"

    @property
    def log_prob(self) -> float:
        """ln p of the text."""
        return self.tokens[-1].sum

    @property
    def p(self) -> float:
        """The product of the probabilities: 0.0 for a long text, where only `log_prob` is of use."""
        return math.exp(self.log_prob)

    @property
    def nats_per_token(self) -> float:
        return -self.log_prob / len(self.tokens)

    @property
    def perplexity(self) -> float:
        return exp_or_inf(self.nats_per_token)

    @property
    def bits_per_byte(self) -> float | None:
        """As `headway.evaluate` has it; None for a translation."""
        if self.source is not None:
            return None
        return (-self.log_prob / math.log(2) + 8 * self.lost_bytes) / self.n_bytes

    def to_dict(self) -> dict[str, Any]:
        pair = {} if self.source is None else {"source": self.source, "target": self.target}
        return {
            **pair,
            "log_prob": self.log_prob,
            "p": self.p,
            "n_tokens": len(self.tokens),
            "nats_per_token": self.nats_per_token,
            "perplexity": self.perplexity,
            "bits_per_byte": self.bits_per_byte,
            "n_bytes": self.n_bytes,
            "lost_bytes": self.lost_bytes,
            "context": self.context,
            "tokens": [token.to_dict() for token in self.tokens],
        }


@torch.no_grad()
def score(
    model: AnyLanguageModel | Seq2SeqLM,
    text: str | Sequence[str],
    *,
    target: str | None = None,
    top: int = 3,
    context: int | None = None,
) -> TextScore:
    """Score a text token by token, with the `top` most likely tokens at each position.

        result = headway.score(model, "Learning deep learning is fun")
        for token in result.tokens:
            print(token.token, token.p, token.rank, token.expected[0].token)
        result.log_prob, result.p                       # the sum of ln p, and the product of p

    `text` is one text or several documents, and `context` the length of a window in tokens, by default the model's: as
    for `headway.evaluate`, whose score the sum is. For a translation model, `text` is the source and `target` its
    translation, by default the model's own.
    """
    check_not_a_path(text)
    refuse_path(model)
    if top < 0:
        raise ConfigError(f"top={top} must be at least 0")
    if isinstance(model, Seq2SeqLM):
        if not isinstance(text, str):
            raise InputError("a translation model scores one source with its translation: pass one text")
        if context is not None:
            raise ConfigError(f"context={context} is for language models: a pair is scored whole, leave it out")
        return _score_pair(model, text, target, top)
    if target is not None:
        raise InputError(f"{described(model)} has no source, so it scores one text: leave target out")
    return _score_text(model, text, top, context)


# ── language models ───────────────────────────────────────────────────────────────────────────────────────────────


def _score_text(model: AnyLanguageModel, text: str | Sequence[str], top: int, context: int | None) -> TextScore:
    documents = [text] if isinstance(text, str) else list(text)
    lm, validation = validation_text(model, documents, context=context, batch_size=BATCH_WINDOWS)
    tokenizer: Any = tokenizer_of(lm)
    windows: list[_ScoredTokens] = []

    def collect(batch: CausalBatch) -> LossOutput:
        nll = batch_token_nll(lm, batch)
        windows.extend(_score_windows(lm, batch, nll, top))
        return nll.sum(dtype=torch.float64), None

    with eval_mode(lm), CPUKernels(lm, pack=False):
        lm_score = validation.score(collect)
    check_infinite_loss(lm_score.nats_per_token, lm)
    first_ids = validation.stream[:1].tolist() if validation.first_token_nats else []
    ids = [*first_ids, *(id for window in windows for id in window.ids)]
    labels = token_labels(tokenizer, ids, documents[0] if len(documents) == 1 else "")
    first_log_prob = -validation.first_token_nats
    tokens = [TokenScore(id, labels[0], first_log_prob, first_log_prob, None, [], 1) for id in first_ids]
    names = _expected_names(tokenizer, windows)
    for number, window in enumerate(windows, start=1):
        log_prob = tokens[-1].sum if tokens else 0.0
        window_labels = labels[len(tokens) : len(tokens) + len(window.ids)]
        tokens += _token_scores(window, window_labels, names, number, log_prob)
    return TextScore(tokens, lm_score.n_bytes, lm_score.context, lm_score.lost_bytes)


class _ScoredTokens(NamedTuple):
    """The targets of a window."""

    ids: list[int]
    log_probs: list[float]
    ranks: list[int]
    expected: list[list[tuple[int, float]]]  # ids and probabilities, best first


def _score_windows(model: LanguageModel, batch: CausalBatch, nll: Tensor, top: int) -> list[_ScoredTokens]:
    """Each window of a batch: `nll` (B, T) has the log-probabilities, and the logits tell the ranks."""
    windows = [_ScoredTokens([], [], [], []) for _ in batch.targets]
    log_probs, start = -nll.double(), 0
    for logits, targets in batch_logits(model, batch):
        for row, window in enumerate(windows):
            is_target = targets[row] != IGNORE_INDEX
            ids = targets[row][is_target]
            ranks, expected = _ranks(logits[row][is_target], ids, top)
            window.ids.extend(ids.tolist())
            window.log_probs.extend(log_probs[row, start : start + len(is_target)][is_target].tolist())
            window.ranks.extend(ranks)
            window.expected.extend(expected)
        start += targets.shape[1]
    return windows


def _ranks(logits: Tensor, targets: Tensor, top: int) -> tuple[list[int], list[list[tuple[int, float]]]]:
    """From logits (N, V): the rank of each target (N,), and the `top` most likely tokens with their probabilities."""
    target_logits = logits.gather(1, targets[:, None])
    ranks: list[int] = (1 + (logits > target_logits).sum(dim=1)).tolist()
    best = logits.topk(min(top, logits.shape[1]), dim=-1)
    p = (best.values.double() - logits.logsumexp(dim=-1, keepdim=True).double()).exp()
    pairs = zip(best.indices.tolist(), p.tolist(), strict=True)
    return ranks, [list(zip(ids, p, strict=True)) for ids, p in pairs]


def _expected_names(tokenizer: Any, windows: Sequence[_ScoredTokens]) -> dict[int, str]:
    """The labels of all tokens that were expected somewhere, by id."""
    ids = sorted({id for window in windows for expected in window.expected for id, _ in expected})
    return dict(zip(ids, token_labels(tokenizer, ids), strict=True))


def _token_scores(
    scored: _ScoredTokens, labels: Sequence[str], names: Mapping[int, str], window: int, log_prob: float
) -> list[TokenScore]:
    """The tokens of a window; `log_prob` is the sum of those before it."""
    tokens = []
    columns = zip(scored.ids, labels, scored.log_probs, scored.ranks, scored.expected, strict=True)
    for id, label, token_log_prob, rank, expected in columns:
        log_prob += token_log_prob
        best = [ExpectedToken(expected_id, names[expected_id], p) for expected_id, p in expected]
        tokens.append(TokenScore(id, label, token_log_prob, log_prob, rank, best, window))
    return tokens


# ── translations ──────────────────────────────────────────────────────────────────────────────────────────────────


def _score_pair(model: Seq2SeqLM, source: str, target: str | None, top: int) -> TextScore:
    """ln p(target | source), of every token of the target and of EOS, as validation computes it."""
    translator, tokenizer = require_translator(model)
    (source_ids,) = encode_sources(translator, tokenizer, [source])
    if not source_ids:
        raise InputError("an empty source has nothing to translate: give some text")
    if target is None:
        best = translate(translator, source)[0]
        target, ids = best.text, best.tokens
    else:
        ids = [*tokenizer.encode(target.strip()), required_eos_id(translator, tokenizer)]
    if len(ids) > translator.config.context:
        raise InputError(
            f"the translation has {len(ids)} tokens with EOS, and this model writes at most "
            f"{translator.config.context}: shorten it"
        )
    device = translator.device
    inputs, targets = torch.tensor([[decoder_start_id(translator), *ids[:-1]]], device=device), torch.tensor([ids])
    source_tensor = torch.tensor([source_ids], device=device)
    sources: dict[str, Any] = {"source": source_tensor, "source_mask": torch.ones_like(source_tensor).bool()}
    with eval_mode(translator), CPUKernels(translator, pack=False):
        if isinstance(translator, EncoderDecoder):
            hidden = translator.hidden_states(inputs, **sources)
            logits = translator.unembed(hidden)[0].float()
            nll = token_losses(hidden, translator.output_layer, targets.to(device))[0]
        else:
            logits = translator(inputs, **sources)[0].float()
            nll = -logits.log_softmax(dim=-1).gather(1, targets[0].to(device)[:, None]).squeeze(1)
    ranks, expected = _ranks(logits, targets[0].to(device), top)
    scored = _ScoredTokens(ids, (-nll.double()).tolist(), ranks, expected)
    labels = token_labels(tokenizer, ids, target.strip())
    tokens = _token_scores(scored, labels, _expected_names(tokenizer, [scored]), 1, 0.0)
    n_bytes = len(target.strip().encode())
    return TextScore(tokens, n_bytes, translator.config.context, source=source.strip(), target=target.strip())


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def render_text(result: TextScore, *, width: int = 80) -> str:
    """A table with a row per token, and the product and the sum below it."""
    tokens = result.tokens
    has_windows = tokens[-1].window > 1
    columns = [
        Column("#", [str(i) for i in range(1, len(tokens) + 1)]),
        *([Column("window", [str(token.window) for token in tokens])] if has_windows else []),
        Column("token", [token.token for token in tokens], is_text=True),
        Column("p", [format_p(token.p) for token in tokens]),
        Column("ln p", [f"{token.log_prob:.4f}" for token in tokens]),
        Column("sum", [f"{token.sum:.4f}" for token in tokens]),
        Column("rank", ["" if token.rank is None else f"{token.rank:,}" for token in tokens]),
    ]
    if any(token.expected for token in tokens):
        columns.append(Column("most likely", [_spell_expected(token) for token in tokens], is_text=True))
    return "\n".join([render_table(columns, width), "", *_summary(result)])


def _spell_expected(token: TokenScore) -> str:
    if token.rank is None:
        return "nothing predicts the first token: uniform"
    return "  ".join(f"{expected.token} {format_p(expected.p)}" for expected in token.expected)


def _summary(result: TextScore) -> list[str]:
    tokens = result.tokens
    name = "text" if result.source is None else "target | source"
    factors = [format_p(token.p) for token in tokens]
    shown = factors if len(factors) <= MAX_FACTORS else [*factors[: MAX_FACTORS // 2], "…", factors[-1]]
    lines = [(f"p({name})", f"{' × '.join(shown)} = {format_log_p(result.log_prob)}")]
    if result.p == 0.0 and result.log_prob > -math.inf:
        lines.append(("", "the product underflows to 0 in floating point: use the sum"))
    lines.append((f"ln p({name})", f"{result.log_prob:.4f}, the sum of ln p of {count(len(tokens), 'token')}"))
    lines.append(("nats per token", f"{result.nats_per_token:.4f}   (perplexity {result.perplexity:,.2f})"))
    if result.bits_per_byte is not None:
        lines.append(("bits per byte", f"{result.bits_per_byte:.4f}"))
    if result.lost_bytes:
        lost = f"{count(result.lost_bytes, 'byte')} lost in <unk> or between words"
        lines.append(("unknown", f"{lost}: {8 * result.lost_bytes} bits more, 8 each, in bits per byte"))
    width = max(len(label) for label, _ in lines) + 2
    return [f"{label:<{width}}{value}" for label, value in lines]


def format_p(p: float) -> str:
    """A probability in at most seven characters, also a small one: 0.2500, 3.1e-05."""
    return f"{p:.4f}" if p >= 0.001 or p == 0 else f"{p:.1e}"


def format_log_p(log_prob: float) -> str:
    """p of any size, from ln p.

    >>> format_log_p(-2000.0)
    '2.58e-869'
    """
    if log_prob == -math.inf:
        return "0"
    if log_prob > math.log(0.001):
        return f"{math.exp(log_prob):.3g}"
    exponent = math.floor(log_prob / math.log(10))
    return f"{math.exp(log_prob - exponent * math.log(10)):.2f}e{exponent:03d}"

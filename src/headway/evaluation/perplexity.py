"""Perplexity and bits per byte of language models on held-out text.

    bits per byte = −log2 p(text) / UTF-8 bytes of the text

Bits per byte compare across families and tokenizers. The text is cut into consecutive windows without overlap, as long
as the model's context unless you give another length; to compare families, give all of them the same one. A model
without a context, such as an n-gram, reads the whole text as one window. Every token is charged, the first included
(tokenizers/base.py, rules 3 and 4), and bytes lost in <unk> cost 8 bits each.
"""

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.data.datasets.causal import consecutive_windows
from headway.data.loader import IGNORE_INDEX, CausalBatch
from headway.display import BytesDisplay
from headway.errors import ConfigError, DataError, InputError, count
from headway.evaluation.validation import (
    LossFn,
    LossOutput,
    Ranks,
    SingleProcess,
    check_infinite_loss,
    exp_or_inf,
    mean_loss,
    sum_losses,
)
from headway.models import GPT, NGram
from headway.models.adapter import language_model
from headway.models.base import AnyLanguageModel, LanguageModel, eval_mode, tokenizer_of
from headway.nn.cross_entropy import token_losses
from headway.nn.kernels.cpu_linear import CPUKernels
from headway.nn.masks import padding
from headway.tokenizers import Tokenizer
from headway.tokenizers.base import check_texts

MAX_LOGITS_PER_BATCH = 2**25  # numbers held at once: 128 MiB in float32


@dataclass(frozen=True, repr=False)
class LMScore:
    """The score of a language model on a text."""

    nats_per_token: float
    bits_per_byte: float
    n_tokens: int  # predicted ones
    n_bytes: int
    context: int  # tokens in a window
    lost_bytes: int = 0  # charged 8 bits each

    def __repr__(self) -> str:
        return f"LMScore({self.summary})"

    @property
    def perplexity(self) -> float:
        return exp_or_inf(self.nats_per_token)

    @property
    def selection_loss(self) -> float:
        return self.bits_per_byte

    @property
    def summary(self) -> str:
        return (
            f"{self.bits_per_byte:.4f} bits per byte, {self.nats_per_token:.4f} nats per token, "
            f"perplexity {self.perplexity:,.2f}"
        )

    def to_dict(self) -> dict[str, float]:
        return {**self.__dict__, "perplexity": self.perplexity}


class ValidationText:
    """Documents as one stream of tokens, in consecutive windows."""

    def __init__(
        self, documents: Sequence[str], tokenizer: Tokenizer, *, vocab_size: int, context: int | None, batch_size: int
    ):
        check_texts(documents)
        self.n_bytes = sum(len(document.encode()) for document in documents)
        if not self.n_bytes:
            raise DataError("there is no text to score: it is empty")
        self.lost_bytes = sum(map(tokenizer.lost_bytes, documents))
        ids, bos_positions = tokenizer.encode_stream_with_bos_positions(documents)
        self.stream, self.is_bos = torch.tensor(ids), torch.zeros(len(ids), dtype=torch.bool)
        self.is_bos[bos_positions] = True
        # Without a BOS token to predict it from, the first token is charged ln V, a uniform guess.
        self.first_token_nats = math.log(vocab_size) if tokenizer.bos_id is None else 0.0
        self.context = context or max(1, len(ids))
        self.batch_rows = max(1, min(batch_size, MAX_LOGITS_PER_BATCH // (self.context * vocab_size)))

    def batches(self) -> Iterator[CausalBatch]:
        """The windows. BOS tokens are given, not predicted, so they are no targets."""
        windows = consecutive_windows(self.stream, self.context, self.batch_rows)
        bos_windows = consecutive_windows(self.is_bos, self.context, self.batch_rows)
        for (inputs, targets, lengths), (_, target_is_bos, _) in zip(windows, bos_windows, strict=True):
            is_counted = padding(lengths, targets.shape[1]) & ~target_is_bos
            yield CausalBatch(inputs, targets.masked_fill(~is_counted, IGNORE_INDEX), lengths)

    def score(self, loss_fn: LossFn, ranks: Ranks = SingleProcess()) -> LMScore:  # noqa: B008 (frozen)
        nats, n_tokens, _ = sum_losses(loss_fn, self.batches(), ranks)
        mean_loss(
            nats,
            n_tokens,
            no_targets=f"nothing to predict in a text of {count(self.n_bytes, 'byte')} and "
            f"{count(len(self.stream), 'token')}: a token is predicted from those before it; give a longer text",
        )
        nats, n_tokens = nats + self.first_token_nats, n_tokens + bool(self.first_token_nats)
        return LMScore(
            nats_per_token=nats / n_tokens,
            bits_per_byte=(nats / math.log(2) + 8 * self.lost_bytes) / self.n_bytes,
            n_tokens=n_tokens,
            n_bytes=self.n_bytes,
            context=self.context,
            lost_bytes=self.lost_bytes,
        )


@torch.no_grad()
def evaluate(
    model: AnyLanguageModel,
    documents: str | Sequence[str],
    *,
    context: int | None = None,
    batch_size: int = 16,
    quiet: bool = False,
) -> LMScore:
    """Score a language model on one text or several.

        score = headway.evaluate(model, text)
        print(score.bits_per_byte, score.perplexity)

    `context` is the length of a window in tokens, by default the model's own context. To compare models, give all the
    same. `batch_size` is the number of windows scored at a time; it changes speed and memory, not the score.
    A long text shows its progress on stderr, unless `quiet`.
    """
    check_not_a_path(documents)
    model, text = validation_text(model, documents, context=context, batch_size=batch_size)
    with eval_mode(model), CPUKernels(model, pack=False), BytesDisplay("scoring", text.n_bytes) as display:

        def score_batch(batch: CausalBatch) -> LossOutput:
            loss = batch_nll(model, batch)
            if not quiet:
                display.add(text.n_bytes * batch.n_targets // len(text.stream))
            return loss

        score = text.score(score_batch)
    check_infinite_loss(score.nats_per_token, model)
    return score


def validation_text(
    model: AnyLanguageModel, documents: str | Sequence[str], *, context: int | None, batch_size: int
) -> tuple[LanguageModel, ValidationText]:
    """The model as a `LanguageModel`, and the text in its windows; the arguments are those of `evaluate`."""
    for name, value in (("context", context), ("batch_size", batch_size)):
        if value is not None and value < 1:
            raise ConfigError(f"{name}={value} must be at least 1")
    lm = language_model(model)
    documents = [documents] if isinstance(documents, str) else list(documents)
    tokenizer = tokenizer_of(lm)
    if tokenizer is None:
        check_texts(documents)
        raise InputError(
            "this model has no tokenizer, so it cannot score text: set model.tokenizer = headway.load_tokenizer(PATH)"
        )
    vocab_size, context = lm.config.vocab_size, context or lm.config.context
    return lm, ValidationText(documents, tokenizer, vocab_size=vocab_size, context=context, batch_size=batch_size)


def check_not_a_path(documents: object) -> None:
    """Scores are those of a text, not of the file that it names: refuse a `Path`, and warn if a text is a file's
    name."""
    if isinstance(documents, Path):
        raise InputError(f"{str(documents)!r} is a path: to score the file, pass Path({str(documents)!r}).read_text()")
    if isinstance(documents, str) and "\n" not in documents and os.path.isfile(documents):
        warnings.warn(
            f"scoring the text {documents!r} itself; to score the file: Path({documents!r}).read_text()", stacklevel=4
        )


def batch_nll(model: LanguageModel, batch: CausalBatch) -> LossOutput:
    """The summed negative log-likelihood of a batch in nats."""
    return batch_token_nll(model, batch).sum(dtype=torch.float64), None


def batch_token_nll(model: LanguageModel, batch: CausalBatch) -> Tensor:
    """(B, T) the negative log-likelihood of each target in nats, by the fastest way the model offers; 0 where a token
    is no target."""
    inputs, targets = batch.inputs.to(model.device), batch.targets.to(model.device)
    if isinstance(model, GPT):
        return token_losses(model.hidden_states(inputs, batch.lengths), model.output_layer, targets)
    if isinstance(model, NGram) and model.is_normalized:
        return _ngram_nll(model, inputs, targets)
    losses = [
        F.cross_entropy(logits.transpose(1, 2), chunk_targets, ignore_index=IGNORE_INDEX, reduction="none")
        for logits, chunk_targets in batch_logits(model, CausalBatch(inputs, targets, batch.lengths))
    ]
    return torch.cat(losses, dim=1)


def batch_logits(model: LanguageModel, batch: CausalBatch) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits (B, t, V) in float32 and targets (B, t), a chunk of positions at a time."""
    inputs, targets = batch.inputs.to(model.device), batch.targets.to(model.device)
    B, T = inputs.shape
    lengths = torch.full((B,), T) if batch.lengths is None else batch.lengths
    state = model.start(batch_size=B)
    chunk = max(1, MAX_LOGITS_PER_BATCH // (B * model.config.vocab_size))
    for start in range(0, T, chunk):  # chunks bound the memory of the logits; the state connects them
        ids = inputs[:, start : start + chunk]
        logits, state = model.step(ids, state, (lengths - start).clamp(0, ids.shape[1]))
        yield logits.float(), targets[:, start : start + chunk]


def _ngram_nll(model: NGram, inputs: Tensor, targets: Tensor) -> Tensor:
    """Look up the probabilities of the targets alone, not of the whole vocabulary."""
    is_target = targets != IGNORE_INDEX
    rows = torch.cat((inputs[:, :1], torch.where(is_target, targets, inputs.roll(-1, dims=1))), dim=1)
    log_probs = [torch.from_numpy(model.log_probability(row)[1:].astype("float64")) for row in rows]
    return -torch.stack(log_probs).masked_fill(~is_target, 0.0)

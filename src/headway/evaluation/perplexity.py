"""How well a model does on held-out text: bits per byte for language models, nats per target for everything else.

    bits per byte = −log2 p(text) / UTF-8 bytes of the text

which families and tokenizers share. The text is cut into consecutive windows without overlap: of the model's context
unless one is given, and to compare families the same one must be given. A model without a context, such as an n-gram,
reads the whole text as one. Every token is paid for: the first one too
(tokenizers/base.py, rules 3 and 4), and bytes lost in <unk> are spelled out at 8 bits each.

Each score has a `merit`, smaller being better: what training compares checkpoints by.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.data.datasets.causal import consecutive_windows
from headway.data.loader import IGNORE, CausalBatch
from headway.errors import ConfigError, DataError, InputError
from headway.evaluation.validation import LossFn, LossOutput, Ranks, SingleProcess, exp_or_inf, sum_losses
from headway.models import GPT, NGram
from headway.models.base import LanguageModel, Model, eval_mode, language_model
from headway.nn.cross_entropy import token_nll
from headway.nn.masks import padding
from headway.tokenizers import Tokenizer
from headway.tokenizers.base import check_texts

MAX_LOGITS = 2**25  # numbers held at once: 128 MiB in float32


@dataclass(frozen=True)
class LMScore:
    """Of a language model on a text."""

    nats_per_token: float
    bits_per_byte: float
    n_tokens: int  # that were predicted
    n_bytes: int
    context: int  # tokens in a window
    lost_bytes: int = 0  # charged at 8 bits each

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
        self.n_documents = len(documents)
        self.lost = sum(map(tokenizer.lost_bytes, documents))
        ids, begins = tokenizer.stream_with_begins(documents)
        self.stream, self.is_given = torch.tensor(ids), torch.zeros(len(ids), dtype=torch.bool)
        self.is_given[begins] = True
        # With no token to begin from, the first is paid for as one out of the vocabulary.
        self.first = math.log(vocab_size) if tokenizer.bos_id is None else 0.0
        self.context = context or max(1, len(ids))
        self.rows = max(1, min(batch_size, MAX_LOGITS // (self.context * vocab_size)))

    def batches(self) -> Iterator[CausalBatch]:
        windows = consecutive_windows(self.stream, self.context, self.rows)
        given = consecutive_windows(self.is_given, self.context, self.rows)
        for (inputs, targets, lengths), (_, skipped, _) in zip(windows, given, strict=True):
            counted = padding(lengths, targets.shape[1]) & ~skipped
            yield CausalBatch(inputs, targets.masked_fill(~counted, IGNORE), lengths)

    def score(self, ask: LossFn, world: Ranks = SingleProcess()) -> LMScore:  # noqa: B008 (frozen)
        nats, n_tokens, _ = sum_losses(ask, self.batches(), world)
        nats, n_tokens = nats + self.first, n_tokens + bool(self.first)
        return LMScore(
            nats_per_token=nats / max(n_tokens, 1),
            bits_per_byte=(nats / math.log(2) + 8 * self.lost) / self.n_bytes,
            n_tokens=n_tokens,
            n_bytes=self.n_bytes,
            context=self.context,
            lost_bytes=self.lost,
        )


@torch.no_grad()
def evaluate(
    model: Model | LanguageModel,
    documents: str | Sequence[str],
    *,
    context: int | None = None,
    batch_size: int = 16,
) -> LMScore:
    """Score a model on one text or several. `context` is the window, by default the model's own."""
    for name, value in (("context", context), ("batch_size", batch_size)):
        if value is not None and value < 1:
            raise ConfigError(f"{name}={value} must be at least 1")
    documents = [documents] if isinstance(documents, str) else list(documents)
    model = language_model(model)
    if model.tokenizer is None:
        check_texts(documents)
        raise InputError("this model has no tokenizer, so no text can be scored")
    held_out = ValidationText(
        documents,
        model.tokenizer,
        vocab_size=model.config.vocab_size,
        context=context or model.config.context,
        batch_size=batch_size,
    )
    with eval_mode(model):
        return held_out.score(lambda batch: batch_nll(model, batch))


def batch_nll(model: LanguageModel, batch: CausalBatch) -> LossOutput:
    """The nats of the targets of a batch, by whatever way the model has."""
    batch = CausalBatch(batch.inputs.to(model.device), batch.targets.to(model.device), batch.lengths)
    if isinstance(model, GPT):
        return token_nll(model.hidden_states(batch.inputs, batch.lengths), model.output, batch.targets), None
    if isinstance(model, NGram) and model.is_normalized:
        return _ngram_nll(model, batch), None
    B, T = batch.inputs.shape
    lengths = torch.full((B,), T) if batch.lengths is None else batch.lengths
    nats, state = torch.zeros((), dtype=torch.float64, device=model.device), model.start(batch_size=B)
    piece = max(1, MAX_LOGITS // (B * model.config.vocab_size))
    for at in range(0, T, piece):  # a long text in pieces, which is the same
        ids, targets = batch.inputs[:, at : at + piece], batch.targets[:, at : at + piece].flatten()
        logits, state = model.step(ids, state, (lengths - at).clamp(0, ids.shape[1]))
        nats += F.cross_entropy(logits.flatten(0, 1).float(), targets, ignore_index=IGNORE, reduction="sum")
    return nats, None


def _ngram_nll(model: NGram, batch: CausalBatch) -> Tensor:
    """Without the probabilities of everything else."""
    nats = 0.0
    for inputs, targets in zip(batch.inputs, batch.targets, strict=True):
        is_asked = targets != IGNORE
        row = torch.cat((inputs[:1], torch.where(is_asked, targets, inputs.roll(-1))))
        nats -= float(model.log_probability(row)[1:][is_asked.numpy()].sum(dtype="float64"))
    return torch.tensor(nats, dtype=torch.float64)

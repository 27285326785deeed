"""How well a model predicts a text: nats per token, and bits per byte, which families and tokenizers share.

    bits per byte = −log2 p(text) / UTF-8 bytes of the text

The text is cut into consecutive windows without overlap: of the model's context unless one is given, and to compare
families the same one must be given. Every token is paid for: the first one too (tokenizers/base.py, rules 3 and 4),
and bytes lost in <unk> are spelled out at 8 bits each.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.data.windows import consecutive_windows
from headway.errors import ConfigError, DataError, InputError
from headway.models.base import LanguageModel, Model, evaluating, language_model
from headway.nn.masks import padding
from headway.tokenizers.base import check_texts

MAX_LOGITS = 2**25  # numbers held at once: 128 MiB in float32


@dataclass(frozen=True)
class Score:
    nats_per_token: float
    bits_per_byte: float
    n_tokens: int  # that were predicted
    n_bytes: int
    context: int  # tokens in a window
    lost_bytes: int = 0  # charged at 8 bits each

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats_per_token) if self.nats_per_token < 700 else math.inf

    def to_dict(self) -> dict[str, float]:
        return {**self.__dict__, "perplexity": self.perplexity}


@torch.no_grad()
def evaluate(
    model: Model | LanguageModel,
    documents: str | Sequence[str],
    *,
    context: int | None = None,
    batch_size: int = 16,
) -> Score:
    """Score a model on one text or several. `context` is the window, by default the model's own."""
    for name, value in (("context", context), ("batch_size", batch_size)):
        if value is not None and value < 1:
            raise ConfigError(f"{name}={value} must be at least 1")
    documents = [documents] if isinstance(documents, str) else list(documents)
    check_texts(documents)
    model = language_model(model)
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise InputError("this model has no tokenizer, so no text can be scored")
    n_bytes = sum(len(document.encode()) for document in documents)
    if not n_bytes:
        raise DataError("there is no text to score: it is empty")
    ids, begins = tokenizer.stream_with_begins(documents)
    stream, is_given = torch.tensor(ids), torch.zeros(len(ids), dtype=torch.bool)
    is_given[begins] = True
    window = context or int(getattr(model.config, "context", 1024))
    nats, n_tokens = stream_nats(model, stream, window, batch_size, is_given)
    if tokenizer.bos_id is None:
        nats, n_tokens = nats + math.log(model.config.vocab_size), n_tokens + 1
    lost = sum(map(tokenizer.lost_bytes, documents))
    return Score(
        nats_per_token=nats / max(n_tokens, 1),
        bits_per_byte=(nats / math.log(2) + 8 * lost) / n_bytes,
        n_tokens=n_tokens,
        n_bytes=n_bytes,
        context=window,
        lost_bytes=lost,
    )


def stream_nats(
    model: LanguageModel, stream: Tensor, context: int, batch_size: int, is_given: Tensor
) -> tuple[float, int]:
    """Summed −ln p of every token of a stream (N,) but the first and those that are given (N,); and how many."""
    rows = max(1, min(batch_size, MAX_LOGITS // (context * model.config.vocab_size)))
    total, count = torch.zeros((), dtype=torch.float64, device=model.device), 0
    windows = consecutive_windows(stream, context, rows)
    given = consecutive_windows(is_given, context, rows)
    with evaluating(model):
        for (inputs, targets, lengths), (_, skipped, _) in zip(windows, given, strict=True):
            counted = padding(lengths, targets.shape[1]) & ~skipped
            targets = targets.masked_fill(~counted, -100).to(model.device)
            logits = model(inputs.to(model.device), lengths).flatten(0, 1).float()
            total += F.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="sum").double()
            count += int(counted.sum())
    return float(total), count

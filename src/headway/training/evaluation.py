"""How well a model predicts a text: nats per token, and bits per byte, which families and tokenizers share.

    bits per byte = −log2 p(text) / UTF-8 bytes of the text

The text is cut into consecutive windows without overlap, the same for every family. Every token is paid for: the
first one too (tokenizers/base.py, rules 3 and 4), and bytes lost in <unk> are spelled out at 8 bits each.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.data.windows import consecutive_windows
from headway.errors import DataError, InputError
from headway.models.base import LanguageModel, Model, language_model
from headway.nn.masks import padding

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
    documents = [documents] if isinstance(documents, str) else list(documents)
    model = language_model(model)
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise InputError("this model has no tokenizer, so no text can be scored")
    n_bytes = sum(len(document.encode()) for document in documents)
    if not n_bytes:
        raise DataError("there is no text to score: it is empty")
    stream = torch.tensor(tokenizer.stream(documents))
    window = context or int(getattr(model.config, "context", 1024))
    given = tokenizer.bos_id if tokenizer.bos_id != tokenizer.eos_id else None  # begin tokens are never predicted
    nats, n_tokens = stream_nats(model, stream, window, batch_size, given)
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
    model: LanguageModel, stream: Tensor, context: int, batch_size: int, given: int | None = None
) -> tuple[float, int]:
    """Summed −ln p of every token of a stream (N,) but the first and those that are `given`; and how many."""
    rows = max(1, min(batch_size, MAX_LOGITS // (context * model.config.vocab_size)))
    was_training = isinstance(model, nn.Module) and model.training
    if isinstance(model, nn.Module):
        model.eval()
    total, count = torch.zeros((), dtype=torch.float64, device=model.device), 0
    for inputs, targets, lengths in consecutive_windows(stream, context, rows):
        counted = padding(lengths, targets.shape[1]) & (targets != (-1 if given is None else given))
        targets = targets.masked_fill(~counted, -100).to(model.device)
        logits = model(inputs.to(model.device), lengths)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-100, reduction="sum")
        total += loss.double()
        count += int(counted.sum())
    if isinstance(model, nn.Module):
        model.train(was_training)
    return float(total), count

"""Embeddings: one vector per text, out of the hidden states of an encoder, so that similar texts have similar vectors.

    mean      the mean over all tokens, [CLS] and [SEP] too       Reimers & Gurevych 2019, §3
    cls       the hidden state of the first token, [CLS]
    pooler    tanh(W h_[CLS] + b)                                 BERT's pooler, Devlin et al. 2019

headway.embed(headway.load("minilm"), ["A cat sat.", "Eine Katze saß."])      # (2, 384)
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.data.padding import text_capacity
from headway.errors import InputError, count, suggest
from headway.models.adapter import refuse_path
from headway.models.base import Model, described
from headway.models.bert import BERT, MaskedLM
from headway.models.embedding_defaults import EmbeddingDefaults
from headway.models.heads import Head, TextEncoder
from headway.nn.pooling import mean_pool
from headway.prediction.batching import DEFAULT_BATCH_SIZE, EncoderInput, OnProgress, as_texts, run_encoder
from headway.tokenizers import Tokenizer

# encoder, hidden states (B, T, D), mask (B, T) or None if nothing is padded → (B, D)
PoolingFn = Callable[[TextEncoder, Tensor, Tensor | None], Tensor]


def pool_mean(encoder: TextEncoder, hidden: Tensor, mask: Tensor | None) -> Tensor:
    return mean_pool(hidden, mask)


def pool_cls(encoder: TextEncoder, hidden: Tensor, mask: Tensor | None) -> Tensor:
    return hidden[:, 0]


def pool_by_encoder(encoder: TextEncoder, hidden: Tensor, mask: Tensor | None) -> Tensor:
    """As a classification head gets it."""
    if isinstance(encoder, BERT) and not bool(encoder.pooler.weight.any()):
        raise InputError(
            "this model has no pooler: the checkpoint that it was loaded from has none; use pooling='mean' or 'cls'"
        )
    return encoder.pool(hidden, mask)


POOLINGS: dict[str, PoolingFn] = {"mean": pool_mean, "cls": pool_cls, "pooler": pool_by_encoder}


def embed(
    model: Model,
    texts: Sequence[str],
    *,
    pooling: str | None = None,
    normalize: bool | None = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
    on_progress: OnProgress = lambda n_done: None,
    on_message: Callable[[str], None] | None = None,
) -> Tensor:
    """One vector per text: (N, D) in float32 on the CPU.

    `model` is an encoder, with or without a head. `pooling` is "mean", "cls" or "pooler"; with `normalize` each vector
    has length 1, so that a dot product is a cosine. The defaults are those of the model's directory if it has the files
    of sentence-transformers (minilm: mean, normalised), else the mean, not normalised.

    Longer texts than the model reads are cut off; `on_message` says how many (default: a warning).
    """
    encoder = require_encoder(model)
    texts = as_texts(texts, lambda text: isinstance(text, str), "embed")
    settings = embedding_settings(encoder, pooling=pooling, normalize=normalize)
    pool = POOLINGS[settings.pooling]

    def forward(ids: Tensor, mask: Tensor | None, segments: Tensor | None) -> Tensor:
        return pool(encoder, encoder(ids, mask), mask)

    vectors = torch.empty(len(texts), encoder.width)
    longest = min(settings.max_tokens or encoder.config.context, encoder.config.context)
    inputs = _encode(model.tokenizer, texts, longest, on_message or _warn)
    for number, vector in run_encoder(encoder, inputs, forward, batch_size=batch_size, on_progress=on_progress):
        vectors[number] = vector
    return F.normalize(vectors, dim=-1) if settings.normalize else vectors


def embedding_settings(model: Model, *, pooling: str | None = None, normalize: bool | None = None) -> EmbeddingDefaults:
    """The settings that `embed` uses for a model: those given, else the model's own."""
    defaults = getattr(require_encoder(model), "embedding_defaults", None) or EmbeddingDefaults()
    if pooling is None and (defaults.unknown or defaults.pooling not in POOLINGS):
        step = defaults.unknown[0] if defaults.unknown else f"{defaults.pooling} pooling"
        raise InputError(
            f"the embeddings of this model need {step} (modules.json), which Headway does not have: for others, name "
            f"the pooling, {_listed()}"
        )
    if pooling is not None and pooling not in POOLINGS:
        raise InputError(f"no pooling named {pooling!r}; choose from {_listed()}.{suggest(pooling, POOLINGS)}")
    return replace(
        defaults,
        pooling=pooling or defaults.pooling,
        normalize=defaults.normalize if normalize is None else normalize,
    )


def require_encoder(model: object) -> TextEncoder:
    """The encoder of a model: itself, or the one under its head."""
    refuse_path(model)
    encoder = model.encoder if isinstance(model, Head | MaskedLM) else model
    if not isinstance(encoder, TextEncoder):
        raise InputError(
            f"embed needs an encoder (a bert or bilstm, with or without a head), and this is {described(model)}: use "
            f"one, such as minilm"
        )
    return encoder


class Neighbour(NamedTuple):
    number: int  # of the text, from 0
    similarity: float  # the cosine of the angle to the query, −1 to 1


def most_similar(query: Tensor, vectors: Tensor, n: int = 10) -> list[Neighbour]:
    """The rows of `vectors` (N, D) nearest to `query` (D,) by cosine similarity, best first."""
    similarities = F.normalize(vectors, dim=-1) @ F.normalize(query, dim=-1)  # (N,)
    best = similarities.argsort(descending=True, stable=True)[:n]
    return [Neighbour(int(number), float(similarities[number])) for number in best]


def _encode(
    tokenizer: Tokenizer, texts: Sequence[str], max_tokens: int, on_message: Callable[[str], None]
) -> list[EncoderInput]:
    """The texts as token ids with their special tokens, cut off after `max_tokens`."""
    capacity, _ = text_capacity(tokenizer, max_tokens)
    encoded = tokenizer.encode_batch(list(texts))
    if n_long := sum(len(ids) > capacity for ids in encoded):
        on_message(
            f"{n_long:,} of {count(len(texts), 'text')} exceed{'s' * (n_long == 1)} {max_tokens} tokens, which is as "
            f"much as this model reads: the rest is cut off"
        )
    inputs = [EncoderInput(tokenizer.build_inputs(ids[:capacity])[0]) for ids in encoded]
    for number, (text, row) in enumerate(zip(texts, inputs, strict=True), 1):
        if not row.ids:
            raise InputError(
                f"text {number}, {text!r:.40}, has no tokens, so it has no embedding: leave it out, or use a model "
                f"whose tokenizer adds special tokens"
            )
    return inputs


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=4)


def _listed() -> str:
    return ", ".join(POOLINGS)

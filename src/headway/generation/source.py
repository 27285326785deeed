"""Sources of an encoder-decoder: text to ids, and ids to a state that is ready to decode."""

from collections.abc import Sequence
from typing import Any

import torch

from headway.devices import without_cudnn_attention
from headway.errors import InputError
from headway.models.adapter import refuse_path
from headway.models.base import Seq2SeqLM, described, tokenizer_of
from headway.nn.masks import padding
from headway.nn.padding import pad_ids
from headway.tokenizers import Tokenizer


def require_translator(model: object) -> tuple[Seq2SeqLM, Tokenizer]:
    """The model, if it translates, and its tokenizer."""
    refuse_path(model)
    if not isinstance(model, Seq2SeqLM):
        raise InputError(
            f"{described(model)} has no source to translate from; train a model that has one: headway train reverse (a "
            f"minute), or multi30k-en-de"
        )
    tokenizer = tokenizer_of(model)
    if tokenizer is None:
        raise InputError(
            "this model has no tokenizer, so it only takes token ids: use headway.generation.beam_search.beam_search"
        )
    return model, tokenizer


def encode_sources(
    model: Seq2SeqLM, tokenizer: Tokenizer, texts: Sequence[str], *, truncate: bool = False
) -> list[list[int]]:
    """The token ids of each source, EOS included; [] for an empty text. With `truncate`, a source that exceeds the
    context loses its end; without, it is an error."""
    eos_id, context = required_eos_id(model, tokenizer), model.config.context
    sources = []
    for number, ids in enumerate(tokenizer.encode_batch([text.strip() for text in texts]), 1):
        if len(ids) >= context and not truncate:
            raise InputError(
                f"text {number} has {len(ids)} tokens, and this model reads at most {context - 1}: shorten it, or cut "
                f"it off with truncate=True (headway translate --truncate)"
            )
        sources.append([*ids[: context - 1], eos_id] if ids else [])
    return sources


def truncated_sources(model: object, texts: Sequence[str]) -> list[int]:
    """The indices of the texts that exceed the model's context, so that `truncate` would cut them."""
    model, tokenizer = require_translator(model)
    encoded = tokenizer.encode_batch([text.strip() for text in texts])
    return [row for row, ids in enumerate(encoded) if len(ids) >= model.config.context]


def start_from_sources(model: Seq2SeqLM, sources: Sequence[Sequence[int]], capacity: int) -> Any:
    """Encode the sources: the state from which their targets are decoded."""
    ids, lengths = pad_ids(sources, model.device)
    mask = None if int(lengths.min()) == ids.shape[1] else padding(lengths, ids.shape[1]).to(model.device)
    with torch.inference_mode(), without_cudnn_attention(model.device):
        return model.start(source=ids, source_mask=mask, capacity=capacity)


def required_eos_id(model: Seq2SeqLM, tokenizer: Tokenizer) -> int:
    """The EOS token that ends sources and targets."""
    eos_id = model.config.eos_id if tokenizer.eos_id is None else tokenizer.eos_id
    if eos_id is None:
        raise InputError("no EOS token: neither config.json nor the tokenizer has an eos_id to end a source with")
    return eos_id


def decoder_start_id(model: Seq2SeqLM) -> int:
    """The token a target starts with (the decoder start token)."""
    start_id, tokenizer = model.config.bos_id, tokenizer_of(model)
    if start_id is None and tokenizer is not None:
        start_id = tokenizer.bos_id
    if start_id is None:
        raise InputError("no decoder start token: neither config.json nor the tokenizer has a bos_id")
    return start_id

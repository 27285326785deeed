"""Sources as a translator reads them: text to ids, ids to a state that is ready to write."""

from collections.abc import Sequence
from typing import Any

import torch

from headway.devices import varying_shapes
from headway.errors import InputError
from headway.models.base import Seq2SeqLM
from headway.tokenizers import Tokenizer


def require_translator(model: object) -> tuple[Seq2SeqLM, Tokenizer]:
    """The model if it translates, and its tokenizer."""
    if not isinstance(model, Seq2SeqLM):
        raise InputError(
            f"a {type(model).__name__} has no source to translate from; a transformer has: headway train multi30k-en-de"
        )
    if model.tokenizer is None:
        raise InputError("this model has no tokenizer, so it can only be used with ids: headway.generation.beam_search")
    return model, model.tokenizer


def encode_sources(
    model: Seq2SeqLM, tokenizer: Tokenizer, texts: Sequence[str], *, truncate: bool = False
) -> list[list[int]]:
    """Each text as the encoder reads it: its tokens and the end; [] for one that is empty. Too long ones are cut at
    their end with `truncate`."""
    end = model.config.eos_id if tokenizer.eos_id is None else tokenizer.eos_id
    if end is None:
        raise InputError("neither config.json nor the tokenizer say which token ends a source (eos_id)")
    limit = model.config.context
    found = []
    for number, ids in enumerate(tokenizer.encode_batch([text.strip() for text in texts]), 1):
        if len(ids) >= limit and not truncate:
            raise InputError(
                f"text {number} has {len(ids)} tokens, and this model reads at most {limit - 1}: shorten it, or have it"
                f" cut where it is translated: truncate=True, headway translate --truncate"
            )
        found.append([*ids[: limit - 1], end] if ids else [])
    return found


def truncated_sources(model: object, texts: Sequence[str]) -> list[int]:
    """Which texts are longer than the model reads, and would be cut."""
    model, tokenizer = require_translator(model)
    ids = tokenizer.encode_batch([text.strip() for text in texts])
    return [row for row, own in enumerate(ids) if len(own) >= model.config.context]


def start_from_sources(model: Seq2SeqLM, sources: Sequence[Sequence[int]], capacity: int) -> Any:
    """The state of a model that has read these sources."""
    lengths = torch.tensor([len(source) for source in sources])
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(source) for source in sources], batch_first=True)
    is_real = torch.arange(ids.shape[1]) < lengths[:, None]
    mask = None if bool(is_real.all()) else is_real.to(model.device)
    with torch.inference_mode(), varying_shapes():
        return model.start(source=ids.to(model.device), source_mask=mask, capacity=capacity)


def decoder_start_id(model: Seq2SeqLM) -> int:
    """The token a target begins with."""
    begin = model.config.bos_id
    if begin is None and model.tokenizer is not None:
        begin = model.tokenizer.bos_id
    if begin is None:
        raise InputError("neither config.json nor the tokenizer say which token a translation begins with (bos_id)")
    return begin

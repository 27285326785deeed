"""Invariants of the model contract, checked on your model and text: caching changes nothing, nor does batching.

Both functions return the largest absolute difference between log-probabilities computed in two ways, over all positions
and the whole vocabulary.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.errors import InputError
from headway.evaluation.validation import NonFiniteLossError
from headway.generation.generate import encode_prompts
from headway.generation.source import decoder_start_id, encode_sources, require_translator
from headway.generation.translate import translate
from headway.models.adapter import language_model
from headway.models.base import Model, Seq2SeqLM, described, eval_mode
from headway.models.fused_decode import FastStep
from headway.nn.kernels.cpu_linear import CPUKernels
from headway.nn.padding import pad_ids

PROMPT_TOKENS = 8  # prefilled in one step; the other tokens follow one by one
MAX_TEXT_TOKENS = 100  # of a text that is compared


class CheckInputs(NamedTuple):
    ids: list[int]  # for an encoder-decoder, of its own translation
    source: list[int] | None = None  # for an encoder-decoder


def encode_check_text(model: Model, text: str) -> CheckInputs:
    """The token ids to compare a model on: those of the text; for an encoder-decoder, of its greedy translation."""
    if isinstance(model, Seq2SeqLM):
        translator, tokenizer = require_translator(model)
        (source,) = encode_sources(translator, tokenizer, [text])
        _check_not_empty(source)
        target = translate(translator, text, num_beams=1)[0].tokens
        return CheckInputs([decoder_start_id(translator), *target][:MAX_TEXT_TOKENS], source)
    (ids,) = encode_prompts(model, text)
    return CheckInputs(ids[: min(MAX_TEXT_TOKENS, model.config.context or MAX_TEXT_TOKENS)])


@torch.no_grad()
def max_cached_difference(model: Any, ids: Sequence[int], source: Sequence[int] | None = None) -> float:
    """One forward pass over all tokens, against a prefill and then decode steps of one token."""
    _check_not_empty(ids)
    rows, inputs = torch.tensor([list(ids)], device=model.device), _source_inputs(model, source)
    with eval_mode(model):
        with CPUKernels(model, pack=False):
            full = _log_probs(model(rows, None, **inputs))
        step = FastStep(model, n_rows=1)  # the kernels of generation, except for CUDA graphs
        state = model.start(**(inputs or {"batch_size": 1}), capacity=len(ids))
        step_logits = []
        for new_ids in rows.split([min(PROMPT_TOKENS, len(ids)), *[1] * (len(ids) - PROMPT_TOKENS)], dim=1):
            logits, state = step(new_ids, state, last=False)
            step_logits.append(logits)
    return _max_difference(_log_probs(torch.cat(step_logits, dim=1)), full)


@torch.no_grad()
def max_batched_difference(model: Any, texts: Sequence[Sequence[int]], source: Sequence[int] | None = None) -> float:
    """Texts of different lengths in one padded batch, against each text alone."""
    for ids in texts:
        _check_not_empty(ids)
    rows, lengths = pad_ids(texts, model.device)
    difference = 0.0
    with eval_mode(model), CPUKernels(model):
        batched = _log_probs(model(rows, lengths.to(rows.device), **_source_inputs(model, source, len(texts))))
        for i, length in enumerate(lengths.tolist()):
            single = _log_probs(model(rows[i : i + 1, :length], None, **_source_inputs(model, source)))
            difference = max(difference, _max_difference(batched[i : i + 1, :length], single))
    return difference


def _check_not_empty(ids: Sequence[int]) -> None:
    if not ids:
        raise InputError("an empty text: there is nothing to compare")


def _source_inputs(model: Model, source: Sequence[int] | None, n_rows: int = 1) -> dict[str, Any]:
    """Keyword arguments for `start` and `forward`: the source of an encoder-decoder, repeated; none otherwise."""
    if not isinstance(model, Seq2SeqLM):
        language_model(model)
        return {}
    if source is None:
        raise InputError(f"{described(model)} decodes from a source: give one with source=…")
    return {"source": torch.tensor([list(source)] * n_rows, device=model.device)}


def _log_probs(logits: Tensor) -> Tensor:
    log_probs = logits.double().log_softmax(dim=-1)
    if log_probs.isnan().any():
        raise NonFiniteLossError(
            "the model's probabilities are not numbers, so there is nothing to compare: its weights hold NaN or "
            "infinity, or its activations overflow; load another checkpoint"
        )
    return log_probs


def _max_difference(a: Tensor, b: Tensor) -> float:
    """The largest |a − b|; two −inf do not differ."""
    return float(torch.where(a == b, 0.0, (a - b).abs()).max())

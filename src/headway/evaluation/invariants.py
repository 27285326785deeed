"""Promises of the contract, checked on a model and a text: a cache changes nothing, nor does company.

Both give the largest difference between two ways to the same log-probabilities, over all tokens of the vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headway.errors import InputError
from headway.models.base import Model, Seq2SeqLM, eval_mode, language_model

PROMPT = 8  # tokens read at once before the rest comes one by one


@torch.no_grad()
def max_cached_difference(model: Any, ids: Sequence[int], source: Sequence[int] | None = None) -> float:
    """All tokens at once, against a prompt in one step and then token by token."""
    _check(ids)
    rows, around = _rows(model, [ids]), _source(model, source)
    with eval_mode(model):
        whole = _log_p(_forward(model, rows, around))
        state = model.start(**(around or {"batch_size": 1}), capacity=len(ids))
        parts = []
        for piece in rows.split([min(PROMPT, len(ids)), *[1] * (len(ids) - PROMPT)], dim=1):
            logits, state = model.step(piece, state)
            parts.append(logits)
    return _apart(_log_p(torch.cat(parts, dim=1)), whole)


@torch.no_grad()
def max_batched_difference(model: Any, texts: Sequence[Sequence[int]], source: Sequence[int] | None = None) -> float:
    """Rows of different lengths together, padded, against each alone."""
    for ids in texts:
        _check(ids)
    longest = max(map(len, texts))
    lengths = torch.tensor([len(ids) for ids in texts])
    rows = _rows(model, [[*ids, *[0] * (longest - len(ids))] for ids in texts])
    apart = 0.0
    with eval_mode(model):
        together = _log_p(_forward(model, rows, _source(model, source, len(texts)), lengths.to(rows.device)))
        for i, ids in enumerate(texts):
            alone = _log_p(_forward(model, _rows(model, [ids]), _source(model, source)))
            apart = max(apart, _apart(together[i : i + 1, : len(ids)], alone))
    return apart


def _check(ids: Sequence[int]) -> None:
    if not ids:
        raise InputError("an empty text: there is nothing to compare")


def _rows(model: Model, rows: Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor([list(ids) for ids in rows], device=model.device)


def _source(model: Model, source: Sequence[int] | None, n: int = 1) -> dict[str, Any]:
    if not isinstance(model, Seq2SeqLM):
        language_model(model)
        return {}
    if source is None:
        raise InputError(f"a {type(model).__name__} writes from a source: give one")
    return {"source": _rows(model, [source] * n)}


def _forward(model: Any, rows: Tensor, around: dict[str, Any], lengths: Tensor | None = None) -> Tensor:
    return model(rows, lengths, **around)


def _log_p(logits: Tensor) -> Tensor:
    return logits.double().log_softmax(dim=-1)


def _apart(a: Tensor, b: Tensor) -> float:
    """−inf equals −inf."""
    return float(torch.where(a == b, 0.0, (a - b).abs()).max())

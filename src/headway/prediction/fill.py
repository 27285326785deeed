"""Fill masks: which tokens a masked language model expects in the place of [MASK].

    [mask] = headway.fill(model, "The [MASK] statement raises an exception.")
    mask.candidates[0].text                          # the text with the most probable token

Only here does "[MASK]" in a text mean the mask token; elsewhere it is ordinary text. Several masks in one text are
filled independently: the candidates of each are computed while the others stay masked.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.data.padding import text_capacity
from headway.errors import InputError, count
from headway.models.base import Model
from headway.models.bert import MaskedLM
from headway.prediction.batching import DEFAULT_BATCH_SIZE, EncoderInput, OnProgress, run_encoder
from headway.prediction.heads import require_head
from headway.tokenizers import Tokenizer

SUBWORD_PREFIX = "##"  # of a WordPiece token inside a word
QUOTED_CHARS = 60  # of a text, in errors


@dataclass(frozen=True)
class MaskCandidate:
    """A token for a mask."""

    token: str  # as the vocabulary spells it: "raise", "##ing"
    probability: float  # over the whole vocabulary
    text: str  # the text with this token; other masks stay


@dataclass(frozen=True)
class FilledMask:
    """One mask of a text."""

    start: int  # where it stands in the text, in characters
    candidates: list[MaskCandidate]  # the most probable first


def fill(model: Model, text: str, *, top: int = 5) -> list[FilledMask]:
    """The `top` most probable tokens for each mask of a text, in the order of the masks."""
    return dict(fill_texts(model, [text], top=top))[0]


def fill_texts(
    model: Model,
    texts: Sequence[str],
    *,
    top: int = 5,
    batch_size: int = DEFAULT_BATCH_SIZE,
    on_progress: OnProgress = lambda n_done: None,
) -> Iterator[tuple[int, list[FilledMask]]]:
    """The number of each text and its filled masks, as soon as they are ready: the longest texts first."""
    masked_lm = require_head(model, MaskedLM, "fill")
    tokenizer = masked_lm.tokenizer
    if tokenizer.mask_id is None:
        raise InputError("the tokenizer of this model has no mask token: use the tokenizer that it was trained with")
    if top < 1:
        raise InputError(f"top={top} must be at least 1")
    inputs = [_encode(text, number, masked_lm, tokenizer) for number, text in enumerate(texts)]
    allowed = _fillable(tokenizer, masked_lm.config.vocab_size).to(masked_lm.device)
    outputs = run_encoder(masked_lm, inputs, masked_lm.hidden_states, batch_size=batch_size, on_progress=on_progress)
    for number, hidden in outputs:
        is_mask = [id == tokenizer.mask_id for id in inputs[number].ids]
        hidden = hidden[: len(is_mask)][torch.tensor(is_mask)]  # (masks, D)
        probs = F.linear(hidden, masked_lm.table, masked_lm.bias).float().softmax(dim=-1)
        best = probs.masked_fill(~allowed, -1).topk(min(top, int(allowed.sum())))
        yield number, _filled_masks(texts[number], tokenizer, best.indices.tolist(), best.values.tolist())


def _encode(text: str, number: int, model: MaskedLM, tokenizer: Tokenizer) -> EncoderInput:
    ids = tokenizer.encode_with_masks(text)
    mask, quoted = tokenizer.special_tokens["mask"], text if len(text) <= QUOTED_CHARS else f"{text[:QUOTED_CHARS]}…"
    if tokenizer.mask_id not in ids:
        raise InputError(f"text {number + 1}, {quoted!r}, has no {mask}: write {mask} where a token is to be filled in")
    capacity, _ = text_capacity(tokenizer, model.config.context)
    if len(ids) > capacity:
        raise InputError(
            f"text {number + 1}, {quoted!r}, has {count(len(ids), 'token')}, and this model reads at most {capacity}: "
            f"shorten it"
        )
    return EncoderInput(tokenizer.build_inputs(ids)[0])


def _fillable(tokenizer: Tokenizer, vocab_size: int) -> Tensor:
    """Whether an id (V,) is that of an ordinary token: a special token is no text, and an id may have no token."""
    allowed = torch.zeros(vocab_size, dtype=torch.bool)
    allowed[[id for id in tokenizer.vocab.values() if id < vocab_size]] = True
    allowed[[id for id in tokenizer.special_ids.values() if id < vocab_size]] = False
    return allowed


def _filled_masks(text: str, tokenizer: Tokenizer, ids: list[list[int]], probs: list[list[float]]) -> list[FilledMask]:
    """ids and probs (masks, top)"""
    masks = re.finditer(re.escape(str(tokenizer.special_tokens["mask"])), text)
    return [
        FilledMask(
            mask.start(),
            [
                MaskCandidate(tokenizer.token(id), p, _fill_in(text, mask.span(), tokenizer, id))
                for id, p in zip(mask_ids, mask_probs, strict=True)
            ],
        )
        for mask, mask_ids, mask_probs in zip(masks, ids, probs, strict=True)
    ]


def _fill_in(text: str, span: tuple[int, int], tokenizer: Tokenizer, id: int) -> str:
    """The text with the token in place of the mask. A subword joins the word before it; other tokens do not."""
    before, after, token = text[: span[0]], text[span[1] :], tokenizer.token(id)
    if tokenizer.kind == "WordPiece" and token.startswith(SUBWORD_PREFIX):
        return before.rstrip() + token.removeprefix(SUBWORD_PREFIX) + after
    space = " " if before[-1:].isalnum() and token[:1].isalnum() else ""
    return before + space + tokenizer.decode([id]).strip() + after

"""What a model is given so that its attention to a text can be looked at: token ids, and labels of rows and columns.

side        rows (what attends)                      columns (what is attended to)
encoder     the source, or [CLS] text [SEP]          the same
decoder     the text, or start and the target        the same
cross       the target's tokens being written        the source
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from headway.analysis.token_labels import token_labels
from headway.errors import InputError, suggest
from headway.generation.source import (
    decoder_start_id,
    encode_sources,
    require_translator,
    required_eos_id,
    truncated_sources,
)
from headway.generation.translate import translate
from headway.models import BERT, GPT, Bahdanau, Transformer
from headway.models.adapter import refuse_path
from headway.models.base import Model, Seq2SeqLM, described
from headway.nn.attention import CrossAttention, SelfAttention


class TextPiece(NamedTuple):
    """A text among the tokens of a row or column, and the index of its first token."""

    text: str
    first_token: int


@dataclass(frozen=True)
class AttentionInputs:
    ids: list[int]  # of an encoder-decoder, the decoder's input
    side: str  # "encoder", "decoder" or "cross"
    rows: list[str]  # labels of the tokens that attend
    columns: list[str]  # labels of the tokens attended to
    row_texts: Sequence[TextPiece]
    column_texts: Sequence[TextPiece]
    source: list[int] | None = None  # of an encoder-decoder
    segments: list[int] | None = None  # of an encoder that reads a pair
    target: str | None = None
    second_text: str | None = None
    cls_row: int | None = None  # the row of [CLS]


def attention_modules(model: Model | Seq2SeqLM, side: str) -> list[SelfAttention | CrossAttention]:
    """The attention modules of one side of a model, one per layer."""
    core: Any = getattr(model, "encoder", model) if not isinstance(model, Transformer) else model
    sides: dict[str, list[SelfAttention | CrossAttention]] = {}
    if isinstance(core, Transformer):
        sides["encoder"] = [block.attention for block in core.encoder.blocks]
        sides["decoder"] = [block.attention for block in core.decoder.blocks]
        sides["cross"] = [block.cross_attention for block in core.decoder.blocks]
    elif isinstance(core, GPT | BERT):
        sides["decoder" if isinstance(core, GPT) else "encoder"] = [block.attention for block in core.blocks]
    if not sides:
        choices = "transformer or bahdanau" if isinstance(model, Seq2SeqLM) else "gpt, bert or transformer"
        raise InputError(f"{described(model)} has no attention layers: choose a {choices} model")
    if side not in sides:
        has = f"it has: {', '.join(sides)}.{suggest(side, sides)}"
        raise InputError(f"{described(model)} has no {side} attention; {has}")
    return sides[side]


def default_side(model: Any) -> str:
    """Cross-attention if the model has it, else self-attention."""
    if isinstance(model, Transformer | Bahdanau):
        return "cross"
    return "decoder" if isinstance(model, GPT) else "encoder"


def attention_inputs(model: Any, text: str, target: str | None = None, *, side: str | None = None) -> AttentionInputs:
    """Tokenize a text, and for an encoder-decoder its target, by default the model's own translation. For an encoder
    such as BERT, `target` is the second text of a pair."""
    refuse_path(model)
    if isinstance(getattr(model, "encoder", model), BERT):
        return _encoder_inputs(model, text, target, side or "encoder")
    if isinstance(model, Seq2SeqLM):
        return _translation_inputs(model, text, target, side or default_side(model))
    if target is not None:
        raise InputError(f"{described(model)} has no source: pass one text, without a target")
    ids = model.tokenizer.encode_prompt(text)
    labels = token_labels(model.tokenizer, ids, text)
    texts = [TextPiece(text, 0)] if text else []  # the prompt of an empty text is BOS
    return AttentionInputs(ids, side or default_side(model), labels, labels, texts, texts)


def _encoder_inputs(model: Any, text: str, second_text: str | None, side: str) -> AttentionInputs:
    """Of an encoder, or of the encoder below a head, with the special tokens that it was trained with."""
    tokenizer = model.tokenizer
    texts = [text] if second_text is None else [text, second_text]
    ids, segments = tokenizer.build_inputs(*map(tokenizer.encode, texts))
    labels = token_labels(tokenizer, ids, "\n".join(texts))
    layout = tokenizer.build_inputs(*([-1 - i] * len(tokenizer.encode(t)) for i, t in enumerate(texts)))[0]
    pieces = [TextPiece(t, layout.index(-1 - i)) for i, t in enumerate(texts) if -1 - i in layout]
    return AttentionInputs(
        ids,
        side,
        labels,
        labels,
        pieces,
        pieces,
        segments=None if second_text is None else segments,
        second_text=second_text,
        cls_row=0 if tokenizer.special_tokens["cls"] is not None else None,
    )


def _translation_inputs(model: Any, text: str, target: str | None, side: str) -> AttentionInputs:
    """Of an encoder-decoder. It attends to the source while it predicts the next token, so the rows of cross-attention
    are the tokens being written, up to EOS, and not the tokens fed in."""
    require_translator(model)
    tokenizer, text = model.tokenizer, text.strip()
    if not isinstance(model, Bahdanau):
        attention_modules(model, side)  # raises if there are none, before the translation
    if truncated_sources(model, [text]):
        n_tokens, n_most = len(tokenizer.encode(text)), model.config.context - 1
        raise InputError(f"the text has {n_tokens} tokens, and this model reads at most {n_most}: shorten it")
    if target is None:
        target = translate(model, text)[0].text
    (source,) = encode_sources(model, tokenizer, [text])
    if not source:
        raise InputError("an empty text has no tokens to attend to")
    ids = [decoder_start_id(model), *tokenizer.encode(target)]
    source_labels = token_labels(tokenizer, source, text)
    *target_labels, eos_label = token_labels(tokenizer, [*ids[1:], required_eos_id(model, tokenizer)], target)
    labels = {  # of each part: its tokens, and where its text begins
        "source": (source_labels, [TextPiece(text, 0)]),
        "fed in": (["start", *target_labels], [TextPiece(target, 1)] if target_labels else []),
        "written": ([*target_labels, eos_label], [TextPiece(target, 0)] if target_labels else []),
    }
    row_part = {"encoder": "source", "decoder": "fed in", "cross": "written"}.get(side, "written")
    (rows, row_texts), (columns, column_texts) = labels[row_part], labels["fed in" if side == "decoder" else "source"]
    return AttentionInputs(ids, side, rows, columns, row_texts, column_texts, source=source, target=target)

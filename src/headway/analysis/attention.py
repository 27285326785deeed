"""Attention maps: how much each position attends to every other.

The fast kernels never materialise the weights. While a capture is active they still compute the output, and the weights
of the requested layers and heads are computed once more by the definition (nn/attention.py), from the same queries and
keys.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headway.analysis.token_labels import token_labels
from headway.errors import InputError, index_error, suggest
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
from headway.models.base import Model, Seq2SeqLM, described, eval_mode
from headway.nn import masks
from headway.nn.attention import (
    AttentionFn,
    CrossAttention,
    SelfAttention,
    dot_product_attention,
    fast_attention,
    flex_attention,
)

ATTENTIONS_ALIKE = (dot_product_attention, fast_attention, flex_attention)  # different code, equal weights


@dataclass(frozen=True)
class AttentionMap:
    """The weights of one layer: row t holds how much position t attends to each column."""

    side: str  # "encoder" and "decoder": self-attention; "cross": from target to source
    layer: int
    heads: list[int]
    weights: Tensor  # (heads, T, S); rows sum to 1, unless the model has an attention function of its own
    mask: Tensor  # (T, S), True = may be attended to


@dataclass(frozen=True)
class TextAttention:
    """The attention maps of a text, one per layer, with their tokens as labels.

    A decoder attends to the source while it predicts the next token, so the rows of cross-attention are labelled with
    the tokens being written, up to EOS, and not with the tokens fed in. The first token fed in, which stands for no
    text, is labelled "start".

    An encoder such as BERT sees its special tokens too: [CLS] text [SEP], or [CLS] text [SEP] second text [SEP].
    """

    maps: list[AttentionMap]
    rows: list[str]  # the tokens that attend; in cross-attention, the tokens being written
    columns: list[str]  # the tokens attended to
    text: str
    target: str | None = None  # of an encoder-decoder
    second_text: str | None = None  # of an encoder that reads a pair
    cls_row: int | None = None  # the row of [CLS], whose hidden state represents the text

    @property
    def side(self) -> str:
        return self.maps[0].side


class CapturedAttention(NamedTuple):
    """What one call of an attention function computed."""

    weights: Tensor  # (B, heads, T, S)
    mask: Tensor  # (B or 1, T, S), True = may be attended to


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


@contextmanager
def capture_attention(
    modules: Sequence[SelfAttention | CrossAttention], heads: Sequence[int]
) -> Iterator[dict[int, CapturedAttention]]:
    """Capture the weights of these heads during the block: index of the module → weights and mask."""
    captured: dict[int, CapturedAttention] = {}

    def capturing(index: int, attention_fn: AttentionFn) -> AttentionFn:
        def capture(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
            group_size = q.shape[1] // k.shape[1]  # query heads per key/value head
            kv_heads = [head // group_size for head in heads]
            bias = options.get("bias")
            if bias is not None and bias.shape[1] > 1:
                bias = bias[:, heads]
            # The fast forms of dot-product attention materialise no weights; an attention of a plug-in has its own.
            compute = dot_product_attention if attention_fn in ATTENTIONS_ALIKE else attention_fn
            _, weights = compute(
                q[:, heads], k[:, kv_heads], v[:, kv_heads], **{**options, "dropout": 0.0, "bias": bias}
            )
            if weights is None:
                name = getattr(attention_fn, "__name__", "the attention function of this model")
                raise InputError(f"{name} returns no weights to look at: return (output, weights)")
            captured[index] = CapturedAttention(weights, _mask_of(weights, **options))
            return attention_fn(q, k, v, **options)

        return capture

    originals = [module.attention_fn for module in modules]
    for index, module in enumerate(modules):
        module.attention_fn = capturing(index, module.attention_fn)
    try:
        yield captured
    finally:
        for module, attention_fn in zip(modules, originals, strict=True):
            module.attention_fn = attention_fn


def _mask_of(weights: Tensor, *, mask: Tensor | None = None, causal: bool = False, **_: Any) -> Tensor:
    """The mask (B or 1, T, S) behind these weights: a weight of 0 alone may also be a very small one."""
    n_queries, n_keys = weights.shape[2:]
    visible = torch.ones(1, n_queries, n_keys, dtype=torch.bool, device=weights.device)
    if causal:
        visible = visible & masks.causal(n_queries, n_keys, device=weights.device).reshape(1, n_queries, n_keys)
    if mask is not None:
        mask = mask.reshape(*(1 for _ in range(4 - mask.dim())), *mask.shape)  # (B or 1, H or 1, T or 1, S)
        visible = visible & mask.any(dim=1)  # the heads share one mask
    return visible


def attention_maps(
    model: Any,
    ids: Sequence[int],
    *,
    source: Sequence[int] | None = None,
    segments: Sequence[int] | None = None,
    side: str | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> list[AttentionMap]:
    """The attention maps of one sequence, one per layer; for an encoder-decoder, `ids` are the decoder's input.

    `segments` are those of an encoder that reads a pair of texts: 0 or 1 per token.
    `side` is "encoder", "decoder" or "cross"; by default cross-attention if the model has it, else self-attention.
    `layers` and `heads` are indices from 0; by default all.
    """
    if isinstance(model, Transformer | Bahdanau) and source is None:
        raise InputError("an encoder-decoder attends to a source too: attention_maps(model, ids, source=…)")
    if isinstance(model, Bahdanau):
        return [_bahdanau_map(model, ids, source or [], side, layers, heads)]
    if side is None:
        side = "cross" if isinstance(model, Transformer) else "decoder" if isinstance(model, GPT) else "encoder"
    modules = attention_modules(model, side)
    layers = _check_indices("layer", layers, len(modules))
    heads = _check_indices("head", heads, modules[0].n_heads if modules else 0)
    batch = torch.tensor([list(ids)], device=model.device)
    rows = {name: row for name, row in (("source", source), ("segments", segments)) if row is not None}
    kwargs = {name: torch.tensor([list(row)], device=model.device) for name, row in rows.items()}
    with eval_mode(model), torch.inference_mode(), capture_attention([modules[i] for i in layers], heads) as captured:
        nn.Module.__call__(model, batch, **kwargs)
    return [
        AttentionMap(side, layer, heads, captured[i].weights[0].float().cpu(), captured[i].mask[0].cpu())
        for i, layer in enumerate(layers)
    ]


def _bahdanau_map(
    model: Bahdanau,
    ids: Sequence[int],
    source: Sequence[int],
    side: str | None,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
) -> AttentionMap:
    """The alignment weights, which this model computes in any case: one layer, one head."""
    if side not in (None, "cross"):
        raise InputError(f"a Bahdanau has no {side} attention; it has: cross")
    (layer,), (head,) = _check_indices("layer", layers, 1), _check_indices("head", heads, 1)
    target_ids, source_ids = (torch.tensor([list(row)], device=model.device) for row in (ids, source))
    with eval_mode(model), torch.inference_mode():
        weights = model.alignment(target_ids, source=source_ids)
    return AttentionMap("cross", layer, [head], weights.float().cpu(), torch.ones(weights.shape[1:], dtype=torch.bool))


def _check_indices(name: str, indices: Sequence[int] | None, n: int) -> list[int]:
    if indices is None:
        return list(range(n))
    for i in indices:
        if not 0 <= i < n:
            raise index_error(name, i, n)
    return list(indices)


def text_attention(
    model: Any,
    text: str,
    target: str | None = None,
    *,
    side: str | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> TextAttention:
    """Tokenize a text and return its attention maps. For an encoder-decoder, `text` is the source and `target` its
    translation; without one the model translates. For an encoder such as BERT, `target` is the second text of a pair.
    `side`, `layers` and `heads` are those of `attention_maps`."""
    refuse_path(model)
    tokenizer = model.tokenizer
    if isinstance(getattr(model, "encoder", model), BERT):
        return _encoder_attention(model, text, target, side=side, layers=layers, heads=heads)
    if not isinstance(model, Seq2SeqLM):
        if target is not None:
            raise InputError(f"{described(model)} has no source: pass one text, without a target")
        ids = tokenizer.encode_prompt(text)
        labels = token_labels(tokenizer, ids, text)
        maps = attention_maps(model, ids, side=side, layers=layers, heads=heads)
        return TextAttention(maps, labels, labels, text)
    require_translator(model)
    if not isinstance(model, Bahdanau):
        attention_modules(model, side or "cross")  # raises if there are none, before the translation
    if truncated_sources(model, [text]):
        n_tokens = len(tokenizer.encode(text.strip()))
        n_most = model.config.context - 1
        raise InputError(f"the text has {n_tokens} tokens, and this model reads at most {n_most}: shorten it")
    if target is None:
        target = translate(model, text)[0].text
    (source,) = encode_sources(model, tokenizer, [text])
    if not source:
        raise InputError("an empty text has no tokens to attend to")
    ids = [decoder_start_id(model), *tokenizer.encode(target)]
    maps = attention_maps(model, ids, source=source, side=side, layers=layers, heads=heads)
    source_labels = token_labels(tokenizer, source, text.strip())
    *target_labels, eos_label = token_labels(tokenizer, [*ids[1:], required_eos_id(model, tokenizer)], target)
    fed_labels, written_labels = ["start", *target_labels], [*target_labels, eos_label]
    rows = {"encoder": source_labels, "decoder": fed_labels, "cross": written_labels}[maps[0].side]
    columns = fed_labels if maps[0].side == "decoder" else source_labels
    return TextAttention(maps, rows, columns, text, target)


def _encoder_attention(model: Any, text: str, second_text: str | None, **options: Any) -> TextAttention:
    """The maps of an encoder, or of the encoder below a head, with the special tokens that it was trained with."""
    tokenizer = model.tokenizer
    texts = [text] if second_text is None else [text, second_text]
    ids, segments = tokenizer.build_inputs(*map(tokenizer.encode, texts))
    labels = token_labels(tokenizer, ids, "\n".join(texts))
    maps = attention_maps(model, ids, segments=None if second_text is None else segments, **options)
    cls_row = 0 if tokenizer.special_tokens["cls"] is not None else None
    return TextAttention(maps, labels, labels, text, second_text=second_text, cls_row=cls_row)

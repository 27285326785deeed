"""Attention maps: how much each position attends to every other.

The fast kernels never materialise the weights. While a capture is active they still compute the output, and the weights
of the requested layers and heads are computed once more by the definition (nn/attention.py), from the same queries and
keys.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headway.analysis.attention_inputs import attention_inputs, attention_modules, default_side
from headway.errors import InputError, index_error
from headway.models import Bahdanau, Transformer
from headway.models.base import eval_mode
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


@dataclass(frozen=True)
class CapturedAttention:
    """One call of an attention function: what the captured heads were given, and the output of all heads."""

    q: Tensor  # (B, heads, T, K), as the function got them: with positions of kinds that transform q, k and v
    k: Tensor  # (B, heads, S, K), of the key/value head that serves each
    v: Tensor
    output: Tensor  # (B, H, T, K)
    options: dict[str, Any]  # mask, causal and bias, that of the captured heads
    attention_fn: AttentionFn

    @property
    def mask(self) -> Tensor:
        """(B or 1, T, S), True = may be attended to. A weight of 0 alone may also be a very small one."""
        n_queries, n_keys = self.q.shape[2], self.k.shape[2]
        visible = torch.ones(1, n_queries, n_keys, dtype=torch.bool, device=self.q.device)
        if self.options.get("causal"):
            visible = visible & masks.causal(n_queries, n_keys, device=self.q.device)
        mask = self.options.get("mask")
        if mask is not None:
            mask = mask.reshape(*(1 for _ in range(4 - mask.dim())), *mask.shape)  # (B or 1, H or 1, T or 1, S)
            visible = visible & mask.any(dim=1)  # the heads share one mask
        return visible

    def weights(self) -> Tensor:
        """The weights of the captured heads (B, heads, T, S), computed once more, by the definition."""
        # The fast forms of dot-product attention materialise no weights; an attention of a plug-in has its own.
        compute = dot_product_attention if self.attention_fn in ATTENTIONS_ALIKE else self.attention_fn
        _, weights = compute(self.q, self.k, self.v, **self.options)
        if weights is None:
            name = getattr(self.attention_fn, "__name__", "the attention function of this model")
            raise InputError(f"{name} returns no weights to look at: return (output, weights)")
        return weights


@contextmanager
def capture_attention(
    modules: Sequence[SelfAttention | CrossAttention], heads: Sequence[int]
) -> Iterator[dict[int, CapturedAttention]]:
    """Capture these heads during the block: index of the module → what it was given, and computed."""
    captured: dict[int, CapturedAttention] = {}

    def capturing(index: int, attention_fn: AttentionFn) -> AttentionFn:
        def capture(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
            output, weights = attention_fn(q, k, v, **options)
            group_size = q.shape[1] // k.shape[1]  # query heads per key/value head
            kv_heads = [head // group_size for head in heads]
            bias = options.get("bias")
            if bias is not None and bias.shape[1] > 1:
                bias = bias[:, heads]
            head_options = {**options, "dropout": 0.0, "bias": bias}
            captured[index] = CapturedAttention(
                q[:, heads], k[:, kv_heads], v[:, kv_heads], output, head_options, attention_fn
            )
            return output, weights

        return capture

    originals = [module.attention_fn for module in modules]
    for index, module in enumerate(modules):
        module.attention_fn = capturing(index, module.attention_fn)
    try:
        yield captured
    finally:
        for module, attention_fn in zip(modules, originals, strict=True):
            module.attention_fn = attention_fn


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
    side = side or default_side(model)
    modules = attention_modules(model, side)
    layers = check_indices("layer", layers, len(modules))
    heads = check_indices("head", heads, modules[0].n_heads if modules else 0)
    with capture_attention([modules[i] for i in layers], heads) as captured:
        forward(model, ids, source=source, segments=segments)
    return [
        AttentionMap(side, layer, heads, captured[i].weights()[0].float().cpu(), captured[i].mask[0].cpu())
        for i, layer in enumerate(layers)
    ]


def forward(
    model: Any, ids: Sequence[int], *, source: Sequence[int] | None = None, segments: Sequence[int] | None = None
) -> None:
    """One forward pass over a sequence, for what is captured during it."""
    batch = torch.tensor([list(ids)], device=model.device)
    rows = {name: row for name, row in (("source", source), ("segments", segments)) if row is not None}
    kwargs = {name: torch.tensor([list(row)], device=model.device) for name, row in rows.items()}
    with eval_mode(model), torch.inference_mode():
        nn.Module.__call__(model, batch, **kwargs)


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
    (layer,), (head,) = check_indices("layer", layers, 1), check_indices("head", heads, 1)
    target_ids, source_ids = (torch.tensor([list(row)], device=model.device) for row in (ids, source))
    with eval_mode(model), torch.inference_mode():
        weights = model.alignment(target_ids, source=source_ids)
    return AttentionMap("cross", layer, [head], weights.float().cpu(), torch.ones(weights.shape[1:], dtype=torch.bool))


def check_indices(name: str, indices: Sequence[int] | None, n: int) -> list[int]:
    """The layers or heads asked for, by default all `n`."""
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
    inputs = attention_inputs(model, text, target, side=side)
    maps = attention_maps(
        model, inputs.ids, source=inputs.source, segments=inputs.segments, side=inputs.side, layers=layers, heads=heads
    )
    return TextAttention(
        maps, inputs.rows, inputs.columns, text, inputs.target, second_text=inputs.second_text, cls_row=inputs.cls_row
    )

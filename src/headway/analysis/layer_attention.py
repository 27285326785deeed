"""One head of one layer of a model, step by step: X, Q, K, V, scores, mask, weights, output, and concat · W^O.

The model runs as always, on its fast kernels. What the layer was given and returned is captured on the way: X, the
heads' outputs side by side, their projection. Only the matrices of the head asked for are computed once more, by the
definition (worked_attention.py), from the queries and keys that its kernel got; with rotary and per-layer positions
these contain the position already.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from headway.analysis.attention import ATTENTIONS_ALIKE, CapturedAttention, capture_attention, check_indices, forward
from headway.analysis.attention_inputs import attention_inputs, attention_modules, default_side
from headway.analysis.worked_attention import AttentionSteps, dot_product_steps
from headway.errors import InputError
from headway.models import Bahdanau, Transformer
from headway.models.base import described
from headway.nn.attention import CrossAttention, SelfAttention


@dataclass(frozen=True, eq=False)
class TextAttentionSteps:
    """The steps of one head for a text, with its tokens as the names of rows and columns."""

    steps: AttentionSteps
    side: str  # "encoder" and "decoder": self-attention; "cross": from target to source
    layer: int
    head: int
    n_layers: int
    n_heads: int
    positions: str  # the model's kind of positions
    is_normalized: bool  # X is the output of the layer's norm: a pre-norm model
    similarity: str  # "dot", or "cosine": Q and K have rows of length 1
    has_output_bias: bool  # projected = concat · W_O + b_O
    text: str
    target: str | None = None  # of an encoder-decoder
    second_text: str | None = None  # of an encoder that reads a pair

    def to_dict(self) -> dict[str, Any]:
        """Everything as numbers and lists, for JSON."""
        where = {"side": self.side, "layer": self.layer, "head": self.head, "positions": self.positions}
        return {**where, **self.steps.to_dict()}

    def __str__(self) -> str:
        from headway.analysis.attention_tables import render_text_steps

        return render_text_steps(self)


def text_attention_steps(
    model: Any,
    text: str,
    target: str | None = None,
    *,
    side: str | None = None,
    layer: int = 0,
    head: int = 0,
) -> TextAttentionSteps:
    """Every step of one head's attention to a text. The arguments are those of `text_attention`, with one layer and
    one head: an encoder-decoder's `text` is the source, `target` its translation, and `side` "cross", "encoder" or
    "decoder"."""
    inputs = attention_inputs(model, text, target, side=side)
    steps = model_attention_steps(
        model, inputs.ids, source=inputs.source, segments=inputs.segments, side=inputs.side, layer=layer, head=head
    )
    config, modules = model.config, attention_modules(model, inputs.side)
    return TextAttentionSteps(
        replace(steps, rows=tuple(inputs.rows), columns=tuple(inputs.columns)),
        inputs.side,
        layer,
        head,
        n_layers=len(modules),
        n_heads=modules[0].n_heads,
        positions="none" if inputs.side == "cross" else config.positions,
        is_normalized=config.norm_order == "pre" and config.norm != "none",
        similarity=config.similarity,
        has_output_bias=modules[layer].out.bias is not None,
        text=text,
        target=inputs.target,
        second_text=inputs.second_text,
    )


def model_attention_steps(
    model: Any,
    ids: Sequence[int],
    *,
    source: Sequence[int] | None = None,
    segments: Sequence[int] | None = None,
    side: str | None = None,
    layer: int = 0,
    head: int = 0,
) -> AttentionSteps:
    """Every step of one head's attention to token ids; for an encoder-decoder, `ids` are the decoder's input."""
    if isinstance(model, Bahdanau):
        raise InputError(
            "a Bahdanau scores by a small network, without queries, keys and values: it has no such steps. Its weights "
            "are those of attention_maps (headway show attention without --steps)"
        )
    if isinstance(model, Transformer) and source is None:
        raise InputError("an encoder-decoder attends to a source too: model_attention_steps(model, ids, source=…)")
    modules = attention_modules(model, side or default_side(model))
    check_indices("layer", [layer], len(modules))
    check_indices("head", [head], modules[0].n_heads)
    module = modules[layer]
    if module.attention_fn not in ATTENTIONS_ALIKE:
        name = getattr(module.attention_fn, "__name__", "a function of its own").replace("_", " ")
        raise InputError(
            f"{described(model)} computes attention by {name}, and these are the steps of dot-product attention: "
            f"attention_maps (headway show attention without --steps) has its weights"
        )
    with capture_attention([module], [head]) as captured, _capture_layer(module) as tensors:
        forward(model, ids, source=source, segments=segments)
    return _steps(captured[0], tensors, query_factor(module))


def query_factor(module: SelfAttention | CrossAttention) -> float:
    """What the layer multiplies its queries by, because every kernel divides by √d (`scale_queries` in
    nn/attention.py): 1, unless the scale is left out or the similarity is the cosine."""
    if module.similarity == "dot":
        return 1.0 if module.scale == "sqrt" else math.sqrt(module.d_head)
    return float(module.d_head) if module.scale == "sqrt" else math.sqrt(module.d_head)


def _steps(call: CapturedAttention, tensors: dict[str, Tensor], factor: float) -> AttentionSteps:
    """The steps of the captured head, whose queries the layer has multiplied by `factor`."""
    q, k, v = (_copy(x[0, 0]) for x in (call.q, call.k, call.v))
    scale = None if factor == 1 else factor / math.sqrt(q.shape[-1])
    mask, bias = call.mask[0].cpu().clone(), call.options["bias"]
    added = None if bias is None else _copy(bias[0, 0].expand(mask.shape))
    memory = tensors.get("memory")
    return replace(
        dot_product_steps(q / factor, k, v, mask, bias=added, scale=scale),
        X=_copy(tensors["X"][0]),
        memory=None if memory is None else _copy(memory[0]),
        concat=_copy(call.output[0].transpose(0, 1).flatten(1)),  # (T, H · K)
        projected=_copy(tensors["projected"][0]),
    )


def _copy(x: Tensor) -> Tensor:
    """On the CPU, in float32 or float64, and not a tensor of inference mode: autograd could not compute with it."""
    return x.to("cpu", torch.promote_types(x.dtype, torch.float32), copy=True)


@contextmanager
def _capture_layer(module: SelfAttention | CrossAttention) -> Iterator[dict[str, Tensor]]:
    """Capture what the layer is given and what it returns: X, the encoder's output it attends to, and `projected`."""
    tensors: dict[str, Tensor] = {}

    def keep_input(name: str) -> Any:
        return lambda _, inputs: tensors.__setitem__(name, inputs[0])

    handles = [
        module.register_forward_pre_hook(keep_input("X")),
        module.register_forward_hook(lambda _, inputs, output: tensors.__setitem__("projected", output)),
    ]
    if isinstance(module, CrossAttention):
        handles.append(module.kv.register_forward_pre_hook(keep_input("memory")))
    try:
        yield tensors
    finally:
        for handle in handles:
            handle.remove()

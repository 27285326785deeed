"""Attention maps: how much each position attends to every other.

The fast kernels never materialise the weights. While a capture is active they still compute the output, and the weights
of the requested layers and heads are computed once more by the definition (nn/attention.py), from the same queries and
keys.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headway.analysis.plotting import escape_math, pyplot, save_figure
from headway.errors import InputError
from headway.generation.source import decoder_start_id, encode_sources, require_translator
from headway.generation.translate import translate
from headway.models import BERT, GPT, Bahdanau, Transformer
from headway.models.base import Model, Seq2SeqLM, eval_mode
from headway.nn.attention import AttentionFn, CrossAttention, SelfAttention, dot_product_attention
from headway.tokenizers import Tokenizer


@dataclass(frozen=True)
class AttentionMap:
    """The weights of one layer: row t holds how much position t attends to each column."""

    side: str  # "encoder" and "decoder": self-attention; "cross": from target to source
    layer: int
    heads: list[int]
    weights: Tensor  # (heads, T, S), rows sum to 1


@dataclass(frozen=True)
class TextAttention:
    """The attention maps of a text, one per layer, with their tokens as labels."""

    maps: list[AttentionMap]
    rows: list[str]  # the tokens that attend
    columns: list[str]  # the tokens attended to


def attention_modules(model: Model, side: str) -> list[SelfAttention | CrossAttention]:
    """The attention modules of one side of a model, one per layer."""
    core: Any = getattr(model, "encoder", model) if not isinstance(model, Transformer) else model
    sides: dict[str, list[SelfAttention | CrossAttention]] = {}
    if isinstance(core, Transformer):
        sides["encoder"] = [block.attention for block in core.encoder.blocks]
        sides["decoder"] = [block.attention for block in core.decoder.blocks]
        sides["cross"] = [block.cross_attention for block in core.decoder.blocks]
    elif isinstance(core, GPT | BERT):
        sides["decoder" if isinstance(core, GPT) else "encoder"] = [block.attention for block in core.blocks]
    if side not in sides:
        choices = f"it has: {', '.join(sides)}" if sides else "it has no attention layers"
        raise InputError(f"a {type(model).__name__} has no {side} attention; {choices}")
    return sides[side]


@contextmanager
def capture_attention(
    modules: Sequence[SelfAttention | CrossAttention], heads: Sequence[int]
) -> Iterator[dict[int, Tensor]]:
    """Capture the weights of these heads during the block: index of the module → weights (B, heads, T, S)."""
    captured: dict[int, Tensor] = {}

    def capturing(index: int, attention_fn: AttentionFn) -> AttentionFn:
        def capture(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
            group_size = q.shape[1] // k.shape[1]  # query heads per key/value head
            kv_heads = [head // group_size for head in heads]
            bias = options.get("bias")
            if bias is not None and bias.shape[1] > 1:
                bias = bias[:, heads]
            _, captured[index] = dot_product_attention(
                q[:, heads], k[:, kv_heads], v[:, kv_heads], **{**options, "dropout": 0.0, "bias": bias}
            )
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


def attention_maps(
    model: Any,
    ids: Sequence[int],
    *,
    source: Sequence[int] | None = None,
    side: str | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> list[AttentionMap]:
    """The attention maps of one sequence, one per layer; for an encoder-decoder, `ids` are the decoder's input.

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
    kwargs = {} if source is None else {"source": torch.tensor([list(source)], device=model.device)}
    with eval_mode(model), torch.inference_mode(), capture_attention([modules[i] for i in layers], heads) as captured:
        nn.Module.__call__(model, batch, **kwargs)
    return [AttentionMap(side, layer, heads, captured[i][0].float().cpu()) for i, layer in enumerate(layers)]


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
    return AttentionMap("cross", layer, [head], weights.float().cpu())


def _check_indices(name: str, indices: Sequence[int] | None, n: int) -> list[int]:
    if indices is None:
        return list(range(n))
    for i in indices:
        if not 0 <= i < n:
            raise InputError(f"{name} {i} does not exist: choose 0 to {n - 1}")
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
    translation; without one the model translates. `side`, `layers` and `heads` are those of `attention_maps`."""
    tokenizer = model.tokenizer
    if not isinstance(model, Seq2SeqLM):
        if target is not None:
            raise InputError(f"a {type(model).__name__} has no source: pass one text, without a target")
        is_encoder = tokenizer.mask_id is not None
        ids = tokenizer.build_inputs(tokenizer.encode(text))[0] if is_encoder else tokenizer.encode_prompt(text)
        labels = token_labels(tokenizer, ids)
        return TextAttention(attention_maps(model, ids, side=side, layers=layers, heads=heads), labels, labels)
    require_translator(model)
    if target is None:
        target = translate(model, text)[0].text
    (source,) = encode_sources(model, tokenizer, [text])
    if not source:
        raise InputError("an empty text has no tokens to attend to")
    ids = [decoder_start_id(model), *tokenizer.encode(target)]
    maps = attention_maps(model, ids, source=source, side=side, layers=layers, heads=heads)
    source_labels, target_labels = token_labels(tokenizer, source), token_labels(tokenizer, ids)
    rows = source_labels if maps[0].side == "encoder" else target_labels
    columns = target_labels if maps[0].side == "decoder" else source_labels
    return TextAttention(maps, rows, columns)


def token_labels(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Tokens as labels: spaces and line ends made visible, special tokens by name."""
    special_tokens = {id: name for name, id in tokenizer.special_ids.items()}
    texts = [special_tokens.get(id) or tokenizer.decode([id]) for id in ids]
    return [text.replace(" ", "·").replace("\n", "⏎") or "∅" for text in texts]


def render_text(attention: AttentionMap, rows: Sequence[str], columns: Sequence[str], n_best: int = 3) -> str:
    """For each row the columns it attends to most, averaged over the heads."""
    weights = attention.weights.mean(dim=0)
    width = max(5, *(len(label) for label in rows))
    lines = []
    for row, label in zip(weights, rows, strict=True):
        best = row.topk(min(n_best, len(row)))
        cells = (f"{columns[i]} {p:.0%}" for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True))
        lines.append(f"  {label:<{width}}  {'  '.join(f'{cell:<16}' for cell in cells)}".rstrip())
    return "\n".join(lines)


def plot(maps: Sequence[AttentionMap], rows: Sequence[str], columns: Sequence[str], file: str | Path) -> Path:
    """A row of panels per layer, a panel per head; darker is more."""
    n_layers, n_panels = len(maps), max(len(attention.heads) for attention in maps)
    height, width = (0.17 * max(len(labels), 6) + 0.5 for labels in (rows, columns))  # inches, so that labels fit
    figure, panels = pyplot().subplots(
        n_layers,
        n_panels,
        figsize=(1 + n_panels * width, 0.6 + n_layers * height),
        layout="constrained",
        squeeze=False,
    )
    row_labels, column_labels = ([escape_math(label) for label in labels] for labels in (rows, columns))
    for layer_panels, attention in zip(panels, maps, strict=True):
        for axes in layer_panels[len(attention.heads) :]:
            axes.axis("off")
        for axes, head, weights in zip(layer_panels, attention.heads, attention.weights.numpy(), strict=False):
            axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
            axes.set_title(f"layer {attention.layer}, head {head}", fontsize=8)
            axes.set_xticks(range(len(column_labels)), labels=column_labels, rotation=90, fontsize=7)
            axes.set_yticks(range(len(row_labels)), labels=row_labels, fontsize=7)
            axes.tick_params(length=0)
    return save_figure(figure, file)

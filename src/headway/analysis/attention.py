"""Who looks at whom: the attention weights of a model that goes on computing at full speed.

The fast kernels never hold the weights. While a recording runs, they compute as always, and the weights of the layers
and heads asked for are computed once more, by the definition (nn/attention.py), from the same queries and keys.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headway.analysis.plotting import pyplot
from headway.errors import InputError
from headway.models import BERT, GPT, Bahdanau, Transformer
from headway.models.base import Model, eval_mode
from headway.nn.attention import AttentionFn, CrossAttention, SelfAttention, dot_product_attention
from headway.tokenizers import Tokenizer

SIDES = ("encoder", "decoder", "cross")


@dataclass(frozen=True)
class AttentionMap:
    """The weights of one layer: row t says how much position t looks at each of the columns."""

    side: str  # "encoder" and "decoder": a text at itself; "cross": the target at the source
    layer: int
    heads: list[int]
    weights: Tensor  # (heads, T, S), rows sum to 1


def modules_of(model: Model, side: str) -> list[SelfAttention | CrossAttention]:
    """The attentions of a side, layer by layer."""
    core: Any = getattr(model, "encoder", model) if not isinstance(model, Transformer) else model
    sides: dict[str, list[SelfAttention | CrossAttention]] = {}
    if isinstance(core, Transformer):
        sides["encoder"] = [block.attention for block in core.encoder.blocks]
        sides["decoder"] = [block.attention for block in core.decoder.blocks]
        sides["cross"] = [block.cross_attention for block in core.decoder.blocks]
    elif isinstance(core, GPT | BERT):
        sides["decoder" if isinstance(core, GPT) else "encoder"] = [block.attention for block in core.blocks]
    if side not in sides:
        there = f"it has: {', '.join(sides)}" if sides else "nothing in it attends"
        raise InputError(f"a {type(model).__name__} has no {side} attention; {there}")
    return sides[side]


@contextmanager
def recording(modules: Sequence[SelfAttention | CrossAttention], heads: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """Inside the block, what these modules look at: their place in the list → weights (B, heads, T, S)."""
    found: dict[int, Tensor] = {}

    def watched(place: int, attend: AttentionFn) -> AttentionFn:
        def both(q: Tensor, k: Tensor, v: Tensor, **around: Any) -> tuple[Tensor, Tensor | None]:
            group = q.shape[1] // k.shape[1]  # query heads that share a key head
            own = [head // group for head in heads]
            bias = around.get("bias")
            seen = {**around, "dropout": 0.0, "bias": bias if bias is None or bias.shape[1] == 1 else bias[:, heads]}
            _, found[place] = dot_product_attention(q[:, heads], k[:, own], v[:, own], **seen)
            return attend(q, k, v, **around)

        return both

    before = [module.attention_fn for module in modules]
    for place, module in enumerate(modules):
        module.attention_fn = watched(place, module.attention_fn)
    try:
        yield found
    finally:
        for module, attend in zip(modules, before, strict=True):
            module.attention_fn = attend


def record(
    model: Any,
    ids: Sequence[int],
    *,
    source: Sequence[int] | None = None,
    side: str | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> list[AttentionMap]:
    """What a model looks at in one text (of an encoder-decoder: the target's input, with its source), on one side; of
    all layers and heads, or of some, counted from 0."""
    if isinstance(model, Bahdanau):
        return [_alignment(model, ids, source, side, layers, heads)]
    side = side or (
        "cross" if isinstance(model, Transformer) else "encoder" if not isinstance(model, GPT) else "decoder"
    )
    modules = modules_of(model, side)
    n_heads = modules[0].n_heads if modules else 0
    layers, heads = _checked("layer", layers, len(modules)), _checked("head", heads, n_heads)
    rows = torch.tensor([list(ids)], device=model.device)
    inputs = {} if source is None else {"source": torch.tensor([list(source)], device=model.device)}
    if isinstance(model, Transformer) and source is None:
        raise InputError("an encoder-decoder looks at a source too: record(model, ids, source=…)")
    with eval_mode(model), torch.inference_mode(), recording([modules[i] for i in layers], heads) as found:
        nn.Module.__call__(model, rows, **inputs)
    return [AttentionMap(side, layer, heads, found[i][0].float().cpu()) for i, layer in enumerate(layers)]


def _alignment(
    model: Bahdanau,
    ids: Sequence[int],
    source: Sequence[int] | None,
    side: str | None,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
) -> AttentionMap:
    """The one look there is, which is never hidden."""
    if side not in (None, "cross"):
        raise InputError(f"a Bahdanau has no {side} attention; it has: cross")
    if source is None:
        raise InputError("an encoder-decoder looks at a source too: record(model, ids, source=…)")
    (layer,), (head,) = _checked("layer", layers, 1), _checked("head", heads, 1)
    rows, read = (torch.tensor([list(x)], device=model.device) for x in (ids, source))
    with eval_mode(model), torch.inference_mode():
        weights = model.alignment(rows, source=read)
    return AttentionMap("cross", layer, [head], weights.float().cpu())


def _checked(what: str, asked: Sequence[int] | None, n: int) -> list[int]:
    if asked is None:
        return list(range(n))
    for i in asked:
        if not 0 <= i < n:
            raise InputError(f"{what} {i}: there are {n}, counted from 0")
    return list(asked)


def labels(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Tokens as a reader would write them: spaces shown, special ones by name."""
    special = {id: name for name, id in tokenizer.special_ids.items()}
    found = [special.get(id) or tokenizer.decode([id]) for id in ids]
    return [text.replace(" ", "·").replace("\n", "⏎") or "∅" for text in found]


def as_text(seen: AttentionMap, rows: Sequence[str], columns: Sequence[str], n_best: int = 3) -> str:
    """For each row what it looks at most, over the mean of the heads."""
    weights = seen.weights.mean(dim=0)
    width = max(5, *(len(label) for label in rows))
    lines = []
    for row, label in zip(weights, rows, strict=True):
        best = row.topk(min(n_best, len(row)))
        found = (f"{columns[i]} {p:.0%}" for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True))
        lines.append(f"  {label:<{width}}  {'  '.join(f'{text:<16}' for text in found)}".rstrip())
    return "\n".join(lines)


def draw(maps: Sequence[AttentionMap], rows: Sequence[str], columns: Sequence[str], file: str | Path) -> Path:
    """A panel for every head, a line of them for every layer; darker is more."""
    plt = pyplot()
    n_lines, n_across = len(maps), max(len(seen.heads) for seen in maps)
    size = 0.17 * max(len(rows), 6) + 0.5, 0.17 * max(len(columns), 6) + 0.5  # so that a label has room
    figure, panels = plt.subplots(
        n_lines,
        n_across,
        figsize=(1 + n_across * size[1], 0.6 + n_lines * size[0]),
        layout="constrained",
        squeeze=False,
    )
    down, across = ([label.replace("$", r"\$") for label in some] for some in (rows, columns))
    for line, seen in zip(panels, maps, strict=True):
        for axes in line[len(seen.heads) :]:
            axes.axis("off")
        for axes, head, weights in zip(line, seen.heads, seen.weights.numpy(), strict=False):
            axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
            axes.set_title(f"layer {seen.layer}, head {head}", fontsize=8)
            axes.set_xticks(range(len(across)), labels=across, rotation=90, fontsize=7)
            axes.set_yticks(range(len(down)), labels=down, fontsize=7)
            axes.tick_params(length=0)
    figure.savefig(file, dpi=150)
    plt.close(figure)
    return Path(file)

"""Parameters of a model, counted from its config alone: no model is built, so an impossible size is found at once.

The lectures count the large matrices only. Per layer, with h k = d and f = 4 d:

    Q, K, V and output     4 d²         an encoder or GPT layer    12 d²
    feed-forward           8 d²         a decoder layer            16 d²      (it attends to the source too)
    embedding              V d

Biases, norms and positions are what their estimates leave out.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import msgspec

from headway.config import (
    BagOfWordsConfig,
    BahdanauConfig,
    BERTConfig,
    BiLSTMConfig,
    GPTConfig,
    ModelConfig,
    NPLMConfig,
    RNNConfig,
    Seq2SeqConfig,
    StackConfig,
    TransformerConfig,
)
from headway.costs.formula import Formula, symbols
from headway.costs.operations import CELL_MATRICES, sizes_of, widths

V, c_, h, k, r, a, o, w, d = symbols("V c h k r a o w d")
ONE, ZERO = Formula.constant(1), Formula()

SIZES = (  # settings that the number of parameters depends on, in any family
    "d_model",
    "n_layers",
    "n_encoder_layers",
    "n_decoder_layers",
    "n_heads",
    "n_kv_heads",
    "d_head",
    "d_ff",
    "d_hidden",
    "d_attention",
    "d_out",
    "order",
    "context",
    "n_segments",
    "n_buckets",
    "vocab_size",
)
DERIVED_FROM = {  # an unset size follows from another
    "n_encoder_layers": "n_layers",
    "n_decoder_layers": "n_layers",
    "n_kv_heads": "n_heads",
    "d_head": "d_model",
    "d_ff": "d_model",
    "d_hidden": "d_model",
    "d_attention": "d_hidden",
}


@dataclass(frozen=True)
class Component:
    """A group of parameters. The formulas are those of one occurrence; the model has `repeats` of them."""

    name: str  # "feed-forward"
    group: str  # "embedding", "encoder", "decoder", "layers", "output"
    matrices: Formula  # parameters that the lectures count: of matrices and embeddings
    rest: Formula = ZERO  # biases, gains and the parameters of norms
    repeats: int = 1

    @property
    def parameters(self) -> Formula:
        return self.matrices + self.rest


@dataclass(frozen=True)
class Parameters:
    """All components of a model, and the sizes that their formulas name."""

    components: list[Component]
    sizes: dict[str, int]

    @property
    def total(self) -> int:
        return sum(map(self.count, self.components))

    def count(self, component: Component) -> int:
        return component.repeats * component.parameters.evaluate(self.sizes)

    def groups(self) -> dict[str, list[Component]]:
        return {group: list(parts) for group, parts in groupby(self.components, key=lambda part: part.group)}

    def estimate(self, components: list[Component]) -> tuple[str, int]:
        """The large matrices of a group, as the lectures count them: "12 d² × 6", and their number."""
        by_repeats: dict[int, Formula] = {}
        for part in components:
            by_repeats[part.repeats] = by_repeats.get(part.repeats, ZERO) + part.matrices
        terms = [
            f"{f'({formula})' if len(formula.terms) > 1 and repeats > 1 else formula}{f' × {repeats}' * (repeats > 1)}"
            for repeats, formula in by_repeats.items()
            if formula
        ]
        total = sum(repeats * formula.evaluate(self.sizes) for repeats, formula in by_repeats.items())
        return " + ".join(terms), total


def parameter_table(config: ModelConfig) -> Parameters | None:
    """The parameters of a model by component, without a head; None for n-grams and registered families.

    >>> from headway.config import model_config
    >>> parameter_table(model_config("gpt2")).total
    124439808
    """
    c = config.resolved()
    components = _components(c)
    if components is None:
        return None
    return Parameters([part for part in components if part.repeats and part.parameters], sizes_of(c))


def count_parameters(config: ModelConfig) -> int | None:
    """The number of parameters, without a head; None for n-grams and registered families.

    >>> from headway.config import model_config
    >>> count_parameters(model_config("gpt2"))
    124439808
    """
    table = parameter_table(config)
    return None if table is None else table.total


def _components(c: Any) -> list[Component] | None:
    (e,) = symbols("e")  # segments or buckets
    match c:
        case GPTConfig():
            layers = _stack(c, "layers", c.n_layers)
            return [*_tables(c), *_positions(c, "embedding", is_causal=True), *layers, *_unembedding(c, d)]
        case BERTConfig():  # an untied output matrix is part of the head
            embedding = [
                Component("tokens", "embedding", V * d),
                *_positions(c, "embedding", is_causal=False),
                Component("segments", "embedding", e * d),
                Component("norm", "embedding", ZERO, _norm(c)),
            ]
            pooler = Component("pooler", "output", d**2, d)
            return [*embedding, *_stack(c, "layers", c.n_layers), pooler]
        case TransformerConfig():
            encoder = _stack(c, "encoder", c.n_encoder_layers)
            decoder = _stack(c, "decoder", c.n_decoder_layers, has_cross_attention=True)
            return [
                *_tables(c),
                *_positions(c, "encoder", is_causal=False),
                *encoder,
                *_positions(c, "decoder", is_causal=True),
                *decoder,
                *_unembedding(c, d),
            ]
        case NPLMConfig():
            features = r + w * d if c.direct else r
            return [
                Component("tokens", "embedding", V * d),
                Component("padding", "embedding", w * d),
                Component("hidden layer", "layers", w * d * r, r),
                Component("unembedding", "output", features * V, V),
            ]
        case RNNConfig():
            top = d if c.tie_embeddings else r
            if c.n_layers == 1:
                layers = [_recurrent("layer", "layers", c.cell, d, top)]
            else:
                layers = [
                    _recurrent("first layer", "layers", c.cell, d, r),
                    _recurrent("layers between", "layers", c.cell, r, r, c.n_layers - 2),
                    _recurrent("last layer", "layers", c.cell, r, top),
                ]
            return [*_tables(c), *layers, *_unembedding(c, r, has_bias=True)]
        case Seq2SeqConfig():
            sides = [_recurrent("layer", side, c.cell, d, d, c.n_layers) for side in ("encoder", "decoder")]
            return [*_tables(c), *sides, *_unembedding(c, d, has_bias=True)]
        case BahdanauConfig():
            return [
                *_tables(c),
                *_bidirectional("encoder", c.cell, d, r, c.n_encoder_layers),
                Component("alignment", "decoder", r * a + 2 * r * a + a, a),
                Component("first state", "decoder", r**2, r),
                _recurrent("layer", "decoder", c.cell, d + 2 * r, r),
                Component("maxout layer", "output", (d + 3 * r) * 2 * o, 2 * o),
                *_unembedding(c, o, has_bias=True),
            ]
        case BiLSTMConfig():
            layers = _bidirectional("layers", c.cell, d, r, c.n_layers)
            return [*_tables(c), *layers, Component("pooler", "output", 4 * r**2, 2 * r)]
        case BagOfWordsConfig():
            return [*_tables(c), Component("bigrams", "embedding", e * d)]
    return None


def largest_setting(config: ModelConfig) -> str:
    """The setting that makes a model large, as "d_ff=3072": the one whose default in this family would save most."""
    sizes = {name: getattr(config, name) for name in SIZES if name in config.__struct_fields__}
    defaults, smallest, largest = type(config)().resolved(), float("inf"), ""
    for name, size in sizes.items():
        if size is None:
            continue
        smaller = copy(config.resolved())
        for setting in sizes:
            if setting == name or (sizes[setting] is None and DERIVED_FROM.get(setting) == name):
                # Unchecked: the default width need not split into these heads.
                size_or_default = min(getattr(smaller, setting), getattr(defaults, setting))
                msgspec.structs.force_setattr(smaller, setting, size_or_default)
        if (n_params := _count_unchecked(smaller)) < smallest:
            smallest, largest = n_params, f"{name}={size}"
    return largest


def _count_unchecked(c: Any) -> int:
    """Of a resolved config whose settings need not fit together."""
    components = _components(c) or []
    return Parameters([part for part in components if part.repeats > 0], sizes_of(c)).total


# ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _tables(c: Any) -> list[Component]:
    name = "tokens" if not getattr(c, "tie_embeddings", False) else "tokens, and unembedding"
    return [Component(name, "embedding", V * d)]


def _unembedding(c: Any, width: Formula, *, has_bias: bool = False) -> list[Component]:
    """The output matrix, unless it is the embedding, and its bias."""
    return [Component("unembedding", "output", ZERO if c.tie_embeddings else V * width, V if has_bias else ZERO)]


def _positions(c: StackConfig, group: str, *, is_causal: bool) -> list[Component]:
    offsets = c_ if is_causal else 2 * c_ - 1
    tables = {"learned": c_ * d, "per-layer": c_ * k, "relative": h * offsets}
    return [Component("positions", group, tables[c.positions])] if c.positions in tables else []


def _norm(c: StackConfig) -> Formula:
    if c.norm == "none":
        return ZERO
    return 2 * d if c.bias and c.norm == "layer" else d


def _stack(c: StackConfig, group: str, n_layers: int, *, has_cross_attention: bool = False) -> list[Component]:
    """The blocks, and the norm after the last one of a pre-norm stack."""
    heads, kv_heads, hidden = widths(c)
    bias: Callable[[Formula], Formula] = lambda size: size if c.bias else ZERO  # noqa: E731
    n_attentions, prefix = (2, "self- and cross-attention ") if has_cross_attention else (1, "")
    d_hidden = 2 * hidden if c.feed_forward == "swiglu" else hidden
    layer = [
        Component("Q", group, n_attentions * d * heads, n_attentions * bias(heads)),
        Component("K", group, n_attentions * d * kv_heads, n_attentions * bias(kv_heads)),
        Component("V", group, n_attentions * d * kv_heads, n_attentions * bias(kv_heads)),
        Component("O", group, n_attentions * d * heads, n_attentions * bias(d)),
    ]
    layer = [replace(part, name=f"{prefix}{part.name}") for part in layer]
    layer.append(Component("feed-forward", group, d * d_hidden + hidden * d, bias(d_hidden + d)))
    layer.append(Component("norms", group, ZERO, (n_attentions + 1) * _norm(c)))
    final = [Component("final norm", group, ZERO, _norm(c))] if c.norm_order == "pre" else []
    return [*(replace(part, repeats=n_layers) for part in layer), *final]


def _recurrent(name: str, group: str, cell: str, d_in: Formula, d_out: Formula, repeats: int = 1) -> Component:
    """The weights of x and h, a bias for each, and those of the cell state if the gates see it."""
    gates = CELL_MATRICES[cell]
    rest = 2 * gates * d_out + (3 * d_out if cell == "peephole" else ZERO)
    return Component(name, group, gates * d_out * (d_in + d_out), rest, repeats)


def _bidirectional(group: str, cell: str, d_in: Formula, d_out: Formula, n_layers: int) -> list[Component]:
    return [
        _recurrent("first layer, each direction", group, cell, d_in, d_out, 2),
        _recurrent("layers, each direction", group, cell, 2 * d_out, d_out, 2 * (n_layers - 1)),
    ]

"""Parameters of a model, counted from its config alone: no model is built, so an impossible size is found at once."""

from copy import copy
from itertools import pairwise
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
from headway.costs.flops import CELL_MATRICES

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


def count_parameters(config: ModelConfig) -> int | None:
    """The number of parameters, without a head; None for n-grams and registered families.

    >>> from headway.config import model_config
    >>> count_parameters(model_config("gpt2"))
    124439808
    """
    return _count(config.resolved())


def _count(c: Any) -> int | None:
    match c:
        case GPTConfig():
            return _embeddings(c) + _positions(c, is_causal=True) + _stack(c, c.n_layers)
        case BERTConfig():  # an untied output matrix is part of the head
            tables = (c.vocab_size + c.n_segments) * c.d_model + _positions(c, is_causal=False)
            return tables + _norm(c) + _stack(c, c.n_layers) + _linear(c.d_model, c.d_model)
        case TransformerConfig():
            encoder = _positions(c, is_causal=False) + _stack(c, c.n_encoder_layers)
            decoder = _positions(c, is_causal=True) + _stack(c, c.n_decoder_layers, has_cross_attention=True)
            return _embeddings(c) + encoder + decoder
        case NPLMConfig():
            d_window = (c.order - 1) * c.d_model
            d_out = c.d_hidden + (d_window if c.direct else 0)
            return c.vocab_size * c.d_model + d_window + _linear(d_window, c.d_hidden) + _linear(d_out, c.vocab_size)
        case RNNConfig():
            widths = [c.d_model, *[c.d_hidden] * min(c.n_layers - 1, 1), c.d_model if c.tie_embeddings else c.d_hidden]
            layers = sum(_recurrent(c.cell, d_in, d_out) for d_in, d_out in pairwise(widths))
            layers += max(c.n_layers - 2, 0) * _recurrent(c.cell, c.d_hidden, c.d_hidden)
            return layers + _tables(c, 0 if c.tie_embeddings else c.d_hidden)
        case Seq2SeqConfig():
            layers = 2 * c.n_layers * _recurrent(c.cell, c.d_model, c.d_model)
            return layers + _tables(c, 0 if c.tie_embeddings else c.d_model)
        case BahdanauConfig():
            D, width, A = c.d_hidden, 2 * c.d_hidden, c.d_attention
            attention = D * A + _linear(width, A) + A
            decoder = _linear(D, D) + _recurrent(c.cell, c.d_model + width, D)
            maxout = _linear(D + c.d_model + width, 2 * c.d_out)
            encoder = _bidirectional(c.cell, c.d_model, D, c.n_encoder_layers)
            return encoder + attention + decoder + maxout + _tables(c, 0 if c.tie_embeddings else c.d_out)
        case BiLSTMConfig():
            width = 2 * c.d_hidden
            layers = _bidirectional(c.cell, c.d_model, c.d_hidden, c.n_layers)
            return c.vocab_size * c.d_model + layers + _linear(width, width)
        case BagOfWordsConfig():
            return (c.vocab_size + c.n_buckets) * c.d_model
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
        if (n_params := _count(smaller) or 0) < smallest:
            smallest, largest = n_params, f"{name}={size}"
    return largest


def _linear(d_in: int, d_out: int, has_bias: bool = True) -> int:
    return (d_in + has_bias) * d_out


def _embeddings(c: StackConfig) -> int:
    return (1 if c.tie_embeddings else 2) * c.vocab_size * c.d_model


def _positions(c: StackConfig, *, is_causal: bool) -> int:
    n_offsets = c.context if is_causal else 2 * c.context - 1
    tables = {"learned": c.context * c.d_model, "per-layer": c.context * c.d_head, "relative": c.n_heads * n_offsets}
    return tables.get(c.positions, 0)


def _norm(c: StackConfig) -> int:
    return c.d_model * (2 if c.bias and c.norm == "layer" else 1)


def _stack(c: StackConfig, n_layers: int, *, has_cross_attention: bool = False) -> int:
    """The blocks, and the norm after the last one of a pre-norm stack."""
    d_queries, d_keys = c.n_heads * c.d_head, c.n_kv_heads * c.d_head
    attention = _linear(c.d_model, d_queries + 2 * d_keys, c.bias) + _linear(d_queries, c.d_model, c.bias) + _norm(c)
    d_hidden = (2 if c.feed_forward == "swiglu" else 1) * c.d_ff
    feed_forward = _linear(c.d_model, d_hidden, c.bias) + _linear(c.d_ff, c.d_model, c.bias) + _norm(c)
    block = (2 if has_cross_attention else 1) * attention + feed_forward
    return n_layers * block + (_norm(c) if c.norm_order == "pre" else 0)


def _recurrent(cell: str, d_in: int, d_out: int) -> int:
    """The weights of x and h, a bias for each, and those of the cell state if the gates see it."""
    return CELL_MATRICES[cell] * d_out * (d_in + d_out + 2) + (3 * d_out if cell == "peephole" else 0)


def _bidirectional(cell: str, d_in: int, d_out: int, n_layers: int) -> int:
    return 2 * (_recurrent(cell, d_in, d_out) + (n_layers - 1) * _recurrent(cell, 2 * d_out, d_out))


def _tables(c: Any, d_unembedding: int) -> int:
    """The embedding, the unembedding of this width (0: tied) and the bias of the output."""
    return int(c.vocab_size) * (int(c.d_model) + d_unembedding + 1)

"""Floating-point operations of training, and how many a device can make.

A token costs 2 per weight it meets in a matrix product on the way forward and twice that on the way back; attention, as
Chowdhery et al. 2022 (PaLM, appendix B) count it and nanoGPT after them, 12 · layers · width of all heads · tokens
looked at, whether or not causality leaves half of them out. MFU is that over what the device could make.
"""

from itertools import pairwise

from headway.config import (
    BahdanauConfig,
    BERTConfig,
    BiLSTMConfig,
    GPTConfig,
    ModelConfig,
    NGramConfig,
    NPLMConfig,
    RNNConfig,
    Seq2SeqConfig,
    StackConfig,
    TransformerConfig,
)

# Dense, in bfloat16 where the device has it, from the makers' datasheets (without sparsity). A name matches a device's
# where all its words are in it; the longest match counts.
PEAK_FLOPS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "GH200": 989e12,
    "A100": 312e12,
    "A800": 312e12,
    "A40": 149.7e12,
    "A10G": 70e12,
    "A10": 125e12,
    "A30": 165e12,
    "A6000": 154.8e12,
    "RTX 6000 Ada": 364e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "T4": 65e12,
    "V100": 125e12,
    "RTX 3090": 71e12,
    "RTX 4090": 165e12,
    "RTX 5090": 209e12,
    "MI250X": 383e12,
    "MI300X": 1307e12,
}


CELL_MATRICES = {"tanh": 1, "relu": 1, "gru": 3, "lstm": 4, "peephole": 4}  # of a recurrent layer, from x and from h


def peak_flops(name: str) -> float | None:
    """What a GPU of this name can make, if it is known."""
    words = set(name.replace("-", " ").split())
    found = [known for known in PEAK_FLOPS if set(known.split()) <= words]
    return PEAK_FLOPS[max(found, key=len)] if found else None


def matrix_weights(c: ModelConfig) -> int:
    """Weights that every token is multiplied with, the unembedding among them."""
    if isinstance(c, NGramConfig):
        return 0
    if isinstance(c, NPLMConfig):
        window = (c.order - 1) * c.d_model
        return window * c.d_hidden + c.vocab_size * (c.d_hidden + (window if c.direct else 0))
    if isinstance(c, BiLSTMConfig):  # without a head, which has as many more as there are labels
        return _both_ways(c.cell, c.d_model, c.d_hidden, c.n_layers)
    if isinstance(c, Seq2SeqConfig):  # per target token, with a source as long
        return 2 * c.n_layers * CELL_MATRICES[c.cell] * 2 * c.d_model**2 + c.vocab_size * c.d_model
    c = c.resolved()
    if isinstance(c, BahdanauConfig):  # the same; the products of states and places are not of weights
        m, D, gates = c.d_model, c.d_hidden, CELL_MATRICES[c.cell]
        encoder = _both_ways(c.cell, m, D, c.n_encoder_layers) + 2 * D * c.d_attention
        decoder = gates * D * (m + 3 * D) + D * c.d_attention + (3 * D + m) * 2 * c.d_out
        return encoder + decoder + c.vocab_size * c.d_out
    if isinstance(c, RNNConfig):
        widths = [c.d_model, *[c.d_hidden] * (c.n_layers - 1), c.d_model if c.tie_embeddings else c.d_hidden]
        layers = sum(CELL_MATRICES[c.cell] * b * (a + b) for a, b in pairwise(widths))
        return layers + c.vocab_size * widths[-1]
    attention = c.d_model * c.d_head * (2 * c.n_heads + 2 * c.n_kv_heads)
    feed_forward = (3 if c.feed_forward == "swiglu" else 2) * c.d_model * c.d_ff
    n_layers = c.n_layers
    if isinstance(c, TransformerConfig):  # per target token, with a source as long: cross-attention once more
        return (
            c.n_encoder_layers * (attention + feed_forward)
            + c.n_decoder_layers * (2 * attention + feed_forward)
            + c.vocab_size * c.d_model
        )
    return n_layers * (attention + feed_forward) + c.vocab_size * c.d_model


def _both_ways(cell: str, d_in: int, d_out: int, n_layers: int) -> int:
    """Weights of bidirectional layers."""
    widths = [d_in, *[2 * d_out] * (n_layers - 1)]
    return sum(2 * CELL_MATRICES[cell] * d_out * (width + d_out) for width in widths)


def flops_per_token(c: ModelConfig, n_tokens: int) -> float:
    """Of training, forward and back, in rows of so many tokens."""
    if not isinstance(c, StackConfig):
        return 6.0 * matrix_weights(c)
    c = c.resolved()
    layers = c.n_layers
    if isinstance(c, TransformerConfig):
        layers = c.n_encoder_layers + 2 * c.n_decoder_layers
    assert isinstance(c, GPTConfig | BERTConfig | TransformerConfig)
    return 6.0 * matrix_weights(c) + 12.0 * layers * c.n_heads * c.d_head * n_tokens

"""Training FLOPs per token, and the peak FLOPS of devices.

Each weight of a matrix product costs a token 2 FLOPs in the forward pass and 4 in the backward pass. Attention adds
12 · layers · heads · head width · sequence length, as Chowdhery et al. 2022 (PaLM, appendix B) and nanoGPT count it:
the causal mask is ignored. Model FLOPs utilisation (MFU) is these FLOPs per second over the device's peak FLOPS.
"""

from itertools import pairwise

from headway.config import (
    BagOfWordsConfig,
    BahdanauConfig,
    BERTConfig,
    BiLSTMConfig,
    GPTConfig,
    ModelConfig,
    NGramConfig,
    NPLMConfig,
    RNNConfig,
    Seq2SeqConfig,
    TransformerConfig,
)

# Dense (without sparsity), in bfloat16 where the device has it, from the vendors' datasheets. A key matches a device
# whose name contains all its words; the longest match wins.
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

CELL_MATRICES = {"tanh": 1, "relu": 1, "gru": 3, "lstm": 4, "peephole": 4}  # of a recurrent cell, for each of x and h


def peak_flops(name: str) -> float | None:
    """Peak FLOPS of a GPU by its name; None if it is not in the table."""
    words = set(name.replace("-", " ").split())
    matches = [device for device in PEAK_FLOPS if set(device.split()) <= words]
    return PEAK_FLOPS[max(matches, key=len)] if matches else None


def matrix_weights(c: ModelConfig) -> int:
    """Weights that every token is multiplied with, including the unembedding."""
    if isinstance(c, NGramConfig | BagOfWordsConfig):  # they look rows up, and add
        return 0
    if isinstance(c, NPLMConfig):
        d_input = (c.order - 1) * c.d_model
        return d_input * c.d_hidden + c.vocab_size * (c.d_hidden + (d_input if c.direct else 0))
    if isinstance(c, BiLSTMConfig):  # without its head, whose size depends on the number of labels
        return _bidirectional_weights(c.cell, c.d_model, c.d_hidden, c.n_layers)
    if isinstance(c, Seq2SeqConfig):  # per target token, with a source of the same length
        return 2 * c.n_layers * CELL_MATRICES[c.cell] * 2 * c.d_model**2 + c.vocab_size * c.d_model
    if isinstance(c, BahdanauConfig):  # likewise; products of two activations (attention) are not counted
        c = c.resolved()
        m, D, gates = c.d_model, c.d_hidden, CELL_MATRICES[c.cell]
        encoder = _bidirectional_weights(c.cell, m, D, c.n_encoder_layers) + 2 * D * c.d_attention
        decoder = gates * D * (m + 3 * D) + D * c.d_attention + (3 * D + m) * 2 * c.d_out
        return encoder + decoder + c.vocab_size * c.d_out
    if isinstance(c, RNNConfig):
        c = c.resolved()
        widths = [c.d_model, *[c.d_hidden] * (c.n_layers - 1), c.d_model if c.tie_embeddings else c.d_hidden]
        layers = sum(CELL_MATRICES[c.cell] * b * (a + b) for a, b in pairwise(widths))
        return layers + c.vocab_size * widths[-1]
    if not isinstance(c, GPTConfig | BERTConfig | TransformerConfig):
        return 0  # a registered family, whose products are not known
    c = c.resolved()
    attention = c.d_model * c.d_head * (2 * c.n_heads + 2 * c.n_kv_heads)
    feed_forward = (3 if c.feed_forward == "swiglu" else 2) * c.d_model * c.d_ff
    if isinstance(c, TransformerConfig):  # per target token, with a source of the same length
        return (
            c.n_encoder_layers * (attention + feed_forward)
            + c.n_decoder_layers * (2 * attention + feed_forward)  # self- and cross-attention
            + c.vocab_size * c.d_model
        )
    has_unembedding = not (isinstance(c, BERTConfig) and c.labels)  # not under a head for labels
    return c.n_layers * (attention + feed_forward) + has_unembedding * c.vocab_size * c.d_model


def _bidirectional_weights(cell: str, d_in: int, d_out: int, n_layers: int) -> int:
    """Weights of a stack of bidirectional recurrent layers."""
    widths = [d_in, *[2 * d_out] * (n_layers - 1)]
    return sum(2 * CELL_MATRICES[cell] * d_out * (width + d_out) for width in widths)


def flops_per_token(c: ModelConfig, seq_len: int) -> float:
    """Training FLOPs per token, forward and backward, in sequences of `seq_len` tokens."""
    if not isinstance(c, GPTConfig | BERTConfig | TransformerConfig):
        return 6.0 * matrix_weights(c)
    c = c.resolved()
    layers = c.n_layers
    if isinstance(c, TransformerConfig):
        layers = c.n_encoder_layers + 2 * c.n_decoder_layers
    return 6.0 * matrix_weights(c) + 12.0 * layers * c.n_heads * c.d_head * seq_len

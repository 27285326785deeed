"""Memory that training needs, in bytes, estimated before it starts.

    weights, gradients, optimizer state     float32, once per parameter each (two Adam moments)
    activations                             what the backward pass needs of each token, per layer
    logits                                  one chunk of them, the largest on any device (nn/cross_entropy.py)

The estimate counts the tensors that autograd saves. The allocator's fragmentation adds a few percent. On a CPU it is
within 15 % of the measured peak of a GPT (`headway cost MODEL --measure`).
"""

from dataclasses import dataclass

from headway.config import StackConfig, TrainConfig, TransformerConfig

MOMENTS = {"adamw": 2, "adam": 2, "sgd": 0, "muon": 1}  # optimizer state, in tensors per parameter
MOST_MOMENTS = 2  # assumed of optimizers that plug-ins register
CHUNK_LOGITS = {"cpu": 2**24, "cuda": 2**29}  # logits materialised at once (nn/cross_entropy.py)


@dataclass(frozen=True)
class Memory:
    """Bytes on each rank."""

    weights: float
    gradients: float
    optimizer_state: float
    ema: float
    activations: float
    logits: float

    @property
    def total(self) -> float:
        return sum(self.__dict__.values())


def parameter_copies(train: TrainConfig) -> int:
    """How often training holds every parameter in float32: weights, gradients, optimizer state and EMA. That much
    memory is needed at any batch size."""
    return 2 + _moments(train) + bool(train.ema)


def _moments(train: TrainConfig) -> int:
    return MOMENTS.get(train.optimizer, MOST_MOMENTS) if train.optimizer != "sgd" else int(bool(train.momentum))


def training_memory(
    model: StackConfig,
    n_params: int,
    train: TrainConfig,
    *,
    batch_size: int,
    seq_len: int,
    source_len: int | None = None,
    ranks: int = 1,
    bytes_per_element: int = 4,
    device_type: str = "cuda",
) -> Memory:
    """Memory of one rank whose micro-batches are `batch_size` sequences of `seq_len` tokens. Activations take
    `bytes_per_element` each: 2 in bfloat16. `device_type` is "cuda" or "cpu", where less is fused. The source of an
    encoder-decoder has `source_len` tokens, by default `seq_len`."""
    c = model.resolved()
    param_bytes = n_params * max(4, bytes_per_element) / (ranks if train.parallel == "fsdp" else 1)
    weights = param_bytes + (n_params * bytes_per_element if bytes_per_element < 4 else 0)
    n_tokens = batch_size * seq_len
    n_layers: float = c.n_layers
    if isinstance(c, TransformerConfig):  # in layers that process the target: cross-attention is half of one
        source_fraction = 1.0 if source_len is None else source_len / seq_len
        cross_kv = 2 * c.n_kv_heads * c.d_head / (8 * c.d_model + 2 * c.d_ff)  # keys and values of the source
        n_layers = source_fraction * (c.n_encoder_layers + cross_kv * c.n_decoder_layers) + 1.5 * c.n_decoder_layers
    layer_bytes = _layer_bytes(c, batch_size, seq_len, bytes_per_element, device_type)
    table_bytes = c.vocab_size * c.d_model * 4
    saved_bytes = n_tokens * layer_bytes * n_layers
    if train.checkpoint_activations:  # only the input of each layer, and all of the one being recomputed
        saved_bytes = n_tokens * (4 * c.d_model * n_layers + layer_bytes)
    saved_bytes += n_tokens * (8 + bytes_per_element) * c.d_model
    logits = min(n_tokens * c.vocab_size, CHUNK_LOGITS[device_type]) * bytes_per_element
    gradients, activations = param_bytes, saved_bytes
    if device_type == "cpu":
        # Gradients are freed after each step and grow during the backward pass while activations shrink: the peak is at
        # its start or at its end. Logits have a copy, and the allocator keeps both.
        hidden = (3 if c.feed_forward == "swiglu" else 2) * c.d_ff
        has_scores = _materialises_scores(c) or c.positions == "relative"  # whose biases have gradients
        scores = 2 * c.n_heads * seq_len if has_scores else 0
        activations += n_tokens * 4 * (hidden + 3 * c.d_model + scores)  # gradients of those of one layer
        if train.checkpoint_activations:
            activations += n_tokens * layer_bytes / 2  # of the recomputed layer, before all of it is there: measured
        at_end = param_bytes + n_tokens * layer_bytes
        gradients = max(table_bytes, at_end - saved_bytes)
        logits *= 2
    return Memory(
        weights=weights,
        gradients=gradients,
        optimizer_state=_moments(train) * param_bytes,
        ema=param_bytes if train.ema else 0,
        activations=activations,
        logits=logits + table_bytes,
    )


def _materialises_scores(c: StackConfig) -> bool:
    """Whether attention on a CPU holds all scores: its fused kernel has no dropout."""
    return bool(c.dropout) and not isinstance(c, TransformerConfig)  # which has none on attention


def _layer_bytes(c: StackConfig, batch_size: int, seq_len: int, bytes_per_element: int, device_type: str) -> float:
    """Bytes that the backward pass needs of a token in one layer: the residual stream before each of two norms
    (float32), the two normed inputs, queries, keys, values, the attention output, its projection; the feed-forward's
    hidden layer, before and after the activation."""
    qkv = (c.n_heads + 2 * c.n_kv_heads) * c.d_head
    heads = c.n_heads * c.d_head
    hidden = (4 if c.feed_forward == "swiglu" else 1 if c.feed_forward == "relu" else 2) * c.d_ff
    if device_type == "cuda":
        layer_bytes = 8 * c.d_model + bytes_per_element * (3 * c.d_model + qkv + heads + hidden)
        return layer_bytes + (2 * c.d_model + c.n_heads * 8 if c.dropout else 0)  # masks, one byte per element
    # On a CPU nothing is fused: RMSNorm saves its normed input too, rotary positions make new queries and keys, grouped
    # keys and values are repeated, and dropout and biases need all scores.
    floats = 4 * c.d_model + qkv + heads + hidden + (2 * c.d_model if c.norm == "rms" else 0)
    if c.positions in ("rotary", "per-layer"):
        floats += heads + c.n_kv_heads * c.d_head
    if c.n_kv_heads != c.n_heads:
        floats += 2 * heads - c.n_kv_heads * c.d_head
    if c.dropout:
        floats += 2 * c.d_model
    if _materialises_scores(c):
        floats += 3 * c.n_heads * seq_len
    elif c.positions == "relative":
        floats += c.n_heads * seq_len
    elif c.positions == "alibi":
        floats += c.n_heads * seq_len / batch_size  # one bias for all sequences
    return 4 * floats

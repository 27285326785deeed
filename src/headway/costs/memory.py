"""Memory that training needs, in bytes, estimated before it starts.

    weights, gradients, optimizer state     float32, once per parameter each (two Adam moments)
    activations                             what the backward pass needs of each token, per layer
    logits                                  one chunk of them, the largest on any device (nn/cross_entropy.py)

The estimate counts the tensors that autograd saves. The allocator's fragmentation adds a few percent.
"""

from dataclasses import dataclass

from headway.config import StackConfig, TrainConfig, TransformerConfig

MOMENTS = {"adamw": 2, "adam": 2, "sgd": 0, "muon": 1}  # optimizer state, in tensors per parameter
MOST_MOMENTS = 2  # assumed of optimizers that plug-ins register
CHUNK_LOGITS = 2**29  # logits materialised at once on a GPU


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
    ranks: int = 1,
    bytes_per_element: int = 4,
) -> Memory:
    """Memory of one rank whose micro-batches are `batch_size` sequences of `seq_len` tokens. Activations take
    `bytes_per_element` each: 2 in bfloat16."""
    c = model.resolved()
    param_bytes = n_params * 4 / (ranks if train.parallel == "fsdp" else 1)
    n_tokens = batch_size * seq_len
    n_layers = c.n_layers
    if isinstance(c, TransformerConfig):
        n_layers = c.n_encoder_layers + 1.5 * c.n_decoder_layers
    # Per token and layer: the residual stream before each of two norms (float32), the two normed inputs, queries, keys,
    # values, the attention output, its projection; the feed-forward's hidden layer, before and after the activation.
    qkv = (c.n_heads + 2 * c.n_kv_heads) * c.d_head
    hidden = (4 if c.feed_forward == "swiglu" else 2) * c.d_ff
    layer_bytes = 8 * c.d_model + bytes_per_element * (3 * c.d_model + qkv + c.n_heads * c.d_head + hidden)
    if c.dropout:
        layer_bytes += 2 * c.d_model + c.n_heads * 8  # masks, one byte per element
    saved_bytes = layer_bytes * n_layers
    if train.checkpoint_activations:  # only the input of each layer, and all of the one being recomputed
        saved_bytes = 4 * c.d_model * n_layers + layer_bytes
    return Memory(
        weights=param_bytes + (n_params * bytes_per_element if bytes_per_element < 4 else 0),
        gradients=param_bytes,
        optimizer_state=_moments(train) * param_bytes,
        ema=param_bytes if train.ema else 0,
        activations=n_tokens * (saved_bytes + (8 + bytes_per_element) * c.d_model),
        logits=min(n_tokens * c.vocab_size, CHUNK_LOGITS) * bytes_per_element + c.vocab_size * c.d_model * 4,
    )

"""What training holds at once, in bytes, before it begins.

    weights, gradients and what the optimiser remembers     float32, once per parameter
    activations                                             what the way back needs of each token, per layer
    logits                                                  a chunk of them (nn/cross_entropy.py)

An estimate: it counts the tensors autograd keeps, not the allocator's gaps, which are some percent more.
"""

from dataclasses import dataclass

from headway.config import StackConfig, TrainConfig, TransformerConfig

MOMENTS = {"adamw": 2, "adam": 2, "sgd": 0, "muon": 1}


@dataclass(frozen=True)
class Memory:
    """Bytes, on each rank."""

    weights: float
    gradients: float
    optimizer: float
    average: float
    activations: float
    logits: float

    @property
    def total(self) -> float:
        return sum(self.__dict__.values())


def training_memory(
    model: StackConfig, n_params: int, train: TrainConfig, *, rows: int, width: int, ranks: int = 1, bytes_each: int = 4
) -> Memory:
    """Of one rank that learns from `rows` rows of `width` tokens at a time; products make numbers of `bytes_each`."""
    c = model.resolved()
    share = n_params * 4 / (ranks if train.parallel == "fsdp" else 1)
    moments = MOMENTS[train.optimizer] if train.optimizer != "sgd" else int(bool(train.momentum))
    tokens = rows * width
    layers = c.n_layers
    if isinstance(c, TransformerConfig):
        layers = c.n_encoder_layers + 1.5 * c.n_decoder_layers
    # Of a token in a layer: the stream before each of two norms (float32), the two normed inputs, queries, keys,
    # values, what attention gives, its projection; the feed-forward's inside, before and after the activation.
    heads = (c.n_heads + 2 * c.n_kv_heads) * c.d_head
    inside = (4 if c.feed_forward == "swiglu" else 2) * c.d_ff
    layer = 8 * c.d_model + bytes_each * (3 * c.d_model + heads + c.n_heads * c.d_head + inside)
    if c.dropout:
        layer += 2 * c.d_model + c.n_heads * 8  # masks, a byte a number
    kept = 4 * c.d_model * layers + layer if train.checkpoint_activations else layer * layers
    return Memory(
        weights=share + (n_params * bytes_each if bytes_each < 4 else 0),
        gradients=share,
        optimizer=moments * share,
        average=share if train.ema else 0,
        activations=tokens * (kept + (8 + bytes_each) * c.d_model),
        logits=min(tokens * c.vocab_size, 2**28) * bytes_each + c.vocab_size * c.d_model * 4,
    )

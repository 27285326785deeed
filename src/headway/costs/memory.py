"""Memory that training needs, in bytes, estimated before it starts.

    weights, gradients, optimizer state     float32, once per parameter each (two Adam moments)
    weight copies                           of matrices in bfloat16: autocast makes one in the forward pass, which
                                            autograd saves until the layer's backward pass
    activations                             what the backward pass needs of each token, per layer
    logits                                  one chunk of them, the largest on any device (nn/cross_entropy.py)

Gradients are freed after each step and grow during the backward pass, while activations and weight copies shrink. So
the peak is at the start of the backward pass, with few gradients, or at its end, with all of them.

The estimate counts the tensors that autograd saves. The allocator's fragmentation adds a few percent. On a CPU it is
within 15 % of the measured peak of a GPT (`headway cost MODEL --measure`).
"""

from dataclasses import dataclass

from headway.config import StackConfig, TrainConfig, TransformerConfig

MOMENTS = {"adamw": 2, "adam": 2, "sgd": 0, "muon": 1}  # optimizer state, in tensors per parameter
DEFAULT_MOMENTS = 2  # assumed of optimizers that plug-ins register
CHUNK_LOGITS = {"cpu": 2**24, "cuda": 2**29}  # logits materialised at once (nn/cross_entropy.py)
CHUNK_ROW_MULTIPLE = 1024  # chunks of more rows are rounded down to a multiple


@dataclass(frozen=True)
class Memory:
    """Bytes on each rank at the peak."""

    weights: float
    gradients: float
    optimizer_state: float
    ema: float
    activations: float
    logits: float
    weight_copies: float = 0.0

    @property
    def total(self) -> float:
        return sum(self.__dict__.values())


def parameter_copies(train: TrainConfig) -> int:
    """How often training holds every parameter in float32: weights, gradients, optimizer state and EMA. That much
    memory is needed at any batch size."""
    return 2 + _moments(train) + bool(train.ema)


def _moments(train: TrainConfig) -> int:
    return MOMENTS.get(train.optimizer, DEFAULT_MOMENTS) if train.optimizer != "sgd" else int(bool(train.momentum))


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
    n_tokens = batch_size * seq_len
    n_layers: float = c.n_layers
    if isinstance(c, TransformerConfig):  # in layers that process the target: cross-attention is half of one
        source_fraction = 1.0 if source_len is None else source_len / seq_len
        cross_kv = 2 * c.n_kv_heads * c.d_head / (8 * c.d_model + 2 * c.d_ff)  # keys and values of the source
        n_layers = source_fraction * (c.n_encoder_layers + cross_kv * c.n_decoder_layers) + 1.5 * c.n_decoder_layers
    copies = _matrix_elements(c, n_params) * bytes_per_element if bytes_per_element < 4 else 0.0
    layer_copies = copies / max(1.0, n_layers)
    layer_bytes = _layer_bytes(c, batch_size, seq_len, bytes_per_element, device_type)
    table_bytes = c.vocab_size * c.d_model * 4
    saved_bytes = n_tokens * layer_bytes * n_layers
    if train.checkpoint_activations:  # only the input of each layer
        saved_bytes, copies = n_tokens * 4 * c.d_model * n_layers, layer_copies
    if device_type == "cpu":
        return _cpu_memory(c, train, param_bytes, copies, layer_bytes, saved_bytes, batch_size, seq_len)
    recomputed_bytes = n_tokens * layer_bytes if train.checkpoint_activations else 0
    # What the loss holds, before the backward pass: a chunk of logits beside the one before it, the output matrix in
    # the precision of the product, and final hidden states: before and after the norm, cast, and their gradients.
    is_cast = bytes_per_element < 4
    logits = _live_logits(n_tokens, c.vocab_size) * bytes_per_element
    logits += c.vocab_size * c.d_model * bytes_per_element if is_cast else 0
    hidden_states = n_tokens * c.d_model * (8 + bytes_per_element * (2 if is_cast else 1) + bool(c.dropout))
    # The gradients of the largest layer's activations, which follow when those of the loss are free.
    hidden = (4 if c.feed_forward == "swiglu" else 2) * c.d_ff
    scores = c.n_heads * seq_len if c.positions == "relative" else 0  # whose biases have gradients
    layer_gradients = n_tokens * (8 * c.d_model + bytes_per_element * (hidden + scores))
    backward = recomputed_bytes + layer_gradients
    activations = saved_bytes + hidden_states + max(0.0, backward - logits - hidden_states)
    gradients = param_bytes
    if ranks == 1 and train.grad_accum_steps == 1:  # else those of the step before, or of other ranks, are there too
        # At the end, the embedding has a gradient from the look-up and one from the logits.
        at_end = param_bytes + table_bytes + n_tokens * layer_bytes + layer_gradients + layer_copies
        gradients = max(table_bytes, at_end - copies - activations - logits)
    return Memory(
        weights=param_bytes,
        gradients=gradients,
        optimizer_state=_moments(train) * param_bytes,
        ema=param_bytes if train.ema else 0,
        activations=activations,
        logits=logits,
        weight_copies=copies,
    )


def _cpu_memory(
    c: StackConfig,
    train: TrainConfig,
    param_bytes: float,
    copies: float,
    layer_bytes: float,
    saved_bytes: float,
    batch_size: int,
    seq_len: int,
) -> Memory:
    """On a CPU everything is float32. Logits have a copy, and the allocator keeps both."""
    n_tokens, table_bytes = batch_size * seq_len, c.vocab_size * c.d_model * 4
    if train.checkpoint_activations:
        saved_bytes += n_tokens * layer_bytes  # all of the layer being recomputed
    saved_bytes += n_tokens * 12 * c.d_model
    hidden = (3 if c.feed_forward == "swiglu" else 2) * c.d_ff
    has_scores = _saved_scores(c) or c.positions == "relative"  # whose biases have gradients
    scores = 2 * c.n_heads * seq_len if has_scores else 0
    activations = saved_bytes + n_tokens * 4 * (hidden + 3 * c.d_model + scores)  # gradients of those of one layer
    if train.checkpoint_activations:
        activations += n_tokens * layer_bytes / 2  # of the recomputed layer, before all of it is there: measured
    at_end = param_bytes + n_tokens * layer_bytes
    return Memory(
        weights=param_bytes,
        gradients=max(table_bytes, at_end - saved_bytes),
        optimizer_state=_moments(train) * param_bytes,
        ema=param_bytes if train.ema else 0,
        activations=activations,
        logits=2 * 4 * min(n_tokens * c.vocab_size, CHUNK_LOGITS["cpu"]) + table_bytes,
        weight_copies=copies,
    )


def _matrix_elements(c: StackConfig, n_params: int) -> int:
    """Elements of the layers: all parameters but embeddings. Autocast does not cast an embedding that is looked up."""
    n_tables = 1 if getattr(c, "tie_embeddings", True) else 2
    positions = c.context * c.d_model if c.positions == "learned" else 0
    return max(0, n_params - n_tables * c.vocab_size * c.d_model - positions)


def _live_logits(n_tokens: int, vocab_size: int) -> int:
    """Logits on a GPU at once: a chunk, and the one before it, which is freed when the next is there."""
    n_rows = max(1, CHUNK_LOGITS["cuda"] // vocab_size)
    n_rows = n_rows if n_rows < CHUNK_ROW_MULTIPLE else n_rows // CHUNK_ROW_MULTIPLE * CHUNK_ROW_MULTIPLE
    return min(n_tokens, 2 * n_rows) * vocab_size


def _saved_scores(c: StackConfig) -> int:
    """How often attention on a CPU saves all its weights for the backward pass: never in the fused kernel, which has no
    dropout and no mask after the softmax. This counts too much for encoders, which never mask after the softmax."""
    has_dropout = bool(c.dropout) and not isinstance(c, TransformerConfig)  # which has none on attention
    return 3 if has_dropout else 2 if _masks_after_softmax(c) else 0


def _masks_after_softmax(c: StackConfig) -> bool:
    return getattr(c, "attention_mask", "causal") == "after-softmax"


def _layer_bytes(c: StackConfig, batch_size: int, seq_len: int, bytes_per_element: int, device_type: str) -> float:
    """Bytes that the backward pass needs of a token in one layer: the residual stream before each of two norms
    (float32), the two normed inputs, queries, keys, values, the attention output; the feed-forward's hidden layer,
    before and after the activation."""
    qkv = (c.n_heads + 2 * c.n_kv_heads) * c.d_head
    heads = c.n_heads * c.d_head
    hidden = (4 if c.feed_forward == "swiglu" else 1 if c.feed_forward == "relu" else 2) * c.d_ff
    if device_type == "cuda":
        elements: float = 2 * c.d_model + qkv + heads + hidden
        if c.positions == "rotary":
            # New queries and keys, beside the old ones, which share their memory with the values. Attention lays its
            # output out as the new queries, head by head, so merging the heads copies it.
            elements += 2 * heads + c.n_kv_heads * c.d_head
        if c.positions in ("relative", "alibi"):  # one bias for all sequences, in each layer
            elements += c.n_heads * seq_len / batch_size
        layer_bytes = 8 * c.d_model + bytes_per_element * elements + 4 * c.n_heads  # and the scores' log-sum-exp
        if _masks_after_softmax(c):  # weights before and after the mask in float32, and cast
            layer_bytes += (8 + (bytes_per_element if bytes_per_element < 4 else 0)) * c.n_heads * seq_len
        return layer_bytes + (2 * c.d_model if c.dropout else 0)  # masks, one byte per element
    # On a CPU nothing is fused: the projection of attention is saved, RMSNorm saves its normed input too, rotary
    # positions make new queries and keys, grouped keys and values are repeated, and dropout and biases need all scores.
    floats = 4 * c.d_model + qkv + heads + hidden + (2 * c.d_model if c.norm == "rms" else 0)
    if c.positions in ("rotary", "per-layer"):
        floats += heads + c.n_kv_heads * c.d_head
    if c.n_kv_heads != c.n_heads:
        floats += 2 * heads - c.n_kv_heads * c.d_head
    if c.dropout:
        floats += 2 * c.d_model
    if c.similarity == "cosine":  # normalised queries and keys: measured
        floats += 2 * (heads + c.n_kv_heads * c.d_head)
    if n_saved := _saved_scores(c):
        floats += n_saved * c.n_heads * seq_len
    elif c.positions == "relative":
        floats += c.n_heads * seq_len
    elif c.positions == "alibi":
        floats += c.n_heads * seq_len / batch_size  # one bias for all sequences
    return 4 * floats

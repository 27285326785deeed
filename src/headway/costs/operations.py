"""The operations of one pass through a model, row by row: FLOPs, and the elements that are read and written.

A product of (n × m) and (m × k) takes 2nmk FLOPs: a multiplication and an addition for each of nmk pairs. It reads and
writes nm + mk + nk elements. All rows follow from that:

                         full sequence, n tokens                   one token, n keys
    Q/K/V projections    6 b n d²                                  6 b d²
    scores               2 b n² d                                  2 b n d
    weighted sum         2 b n² d                                  2 b n d
    output projection    2 b n d²                                  2 b d²
    feed-forward         16 b n d²                                 16 b d²
    one layer            24 b n d² + 4 b n² d                      24 b d² + 4 b n d

The causal mask saves nothing here: the plain definition computes all n² scores. In the backward pass each product has
two: the gradient of its input and that of its weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

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
    StackConfig,
    TransformerConfig,
)
from headway.costs.formula import Formula, symbols

b, n, s, V, C, h, g, k, f, r, a, o, w, d = symbols("b n s V C h g k f r a o w d")
ONE, ZERO = Formula.constant(1), Formula()

CELL_MATRICES = {
    "tanh": 1,
    "relu": 1,
    "sigmoid": 1,
    "gru": 3,
    "lstm": 4,
    "peephole": 4,
}  # of a recurrent cell, for each of x and h
SOFTMAX_FLOPS = 5  # per score: maximum, difference, exponential, sum, quotient

# What is computed:
#   forward    logits of all n tokens, as in training and scoring
#   prefill    the same, but the logits of the last token only: what generation needs of a prompt. With a sliding window
#              of w tokens, a token attends to the last w tokens, itself among them
#   decode     one more token per sequence, which attends to n tokens, or to the last w, itself among them
Phase = Literal["forward", "prefill", "decode"]


@dataclass(frozen=True)
class Operation:
    """One row of a cost table. Formulas are those of one occurrence; the model has `repeats` of them."""

    name: str
    stage: str  # where it belongs: "layer", "encoder layer", "output", …
    flops: Formula
    weights: Formula = ZERO  # elements of weights that are read
    reads: Formula = ZERO  # elements of activations and caches that are read
    writes: Formula = ZERO  # elements of activations that are written
    cache: Formula = ZERO  # the part of `reads` that comes from the KV cache
    repeats: int = 1
    is_product: bool = True  # a matrix product; other rows are not part of the sum
    no_gradient: Formula = ZERO  # FLOPs that the backward pass does not repeat: gradients of inputs that need none
    masked: Formula = ZERO  # FLOPs for scores that the causal mask removes, which a kernel may skip
    steps: Formula = ONE  # that wait for each other, and so read the weights again

    @property
    def elements(self) -> Formula:
        """Elements that are read and written if the operation, or each of its steps, runs by itself."""
        return self.steps * self.weights + self.reads + self.writes

    @property
    def backward(self) -> Formula:
        return 2 * self.flops - self.no_gradient

    @property
    def unmasked_flops(self) -> Formula:
        return self.flops - self.masked


@dataclass(frozen=True)
class Pass:
    """All operations of one phase, and the sizes that their formulas name."""

    phase: Phase
    operations: list[Operation]
    sizes: Mapping[str, int]

    def flops(self, operation: Operation) -> int:
        """Of one occurrence."""
        return operation.flops.evaluate(self.sizes)

    @property
    def total_flops(self) -> int:
        """FLOPs of all matrix products."""
        return sum(o.repeats * self.flops(o) for o in self.operations if o.is_product)

    @property
    def backward_flops(self) -> int:
        return sum(o.repeats * o.backward.evaluate(self.sizes) for o in self.operations if o.is_product)

    @property
    def unmasked_flops(self) -> int:
        """Those of a kernel that skips masked scores."""
        return sum(o.repeats * o.unmasked_flops.evaluate(self.sizes) for o in self.operations if o.is_product)

    @property
    def weight_elements(self) -> int:
        return sum(o.repeats * o.weights.evaluate(self.sizes) for o in self.operations)

    @property
    def cache_elements(self) -> int:
        return sum(o.repeats * o.cache.evaluate(self.sizes) for o in self.operations)

    def stages(self) -> list[tuple[str, int, list[Operation]]]:
        """Stage, how often the model has it, and its operations."""
        grouped = groupby(self.operations, key=lambda o: (o.stage, o.repeats))
        return [(stage, repeats, list(operations)) for (stage, repeats), operations in grouped]


def product_flops(n: int, m: int, k: int) -> int:
    """FLOPs of (n × m)(m × k): 2nmk."""
    return 2 * n * m * k


def product_elements(n: int, m: int, k: int) -> int:
    """Elements that (n × m)(m × k) reads and writes: nm + mk, and the nk of the result (a slide has another term)."""
    return n * m + m * k + n * k


def count_pass(
    config: ModelConfig,
    phase: Phase = "forward",
    *,
    batch_size: int = 1,
    seq_len: int = 1,
    source_len: int | None = None,
    window: int | None = None,
) -> Pass | None:
    """The operations of one pass; None for a family that a plug-in added, whose operations are not known. `window`: the
    tokens that a sliding window lets each token attend to, in a prefill and in a decode step.

    >>> from headway.config import model_config
    >>> count_pass(model_config("gpt2"), seq_len=1024).total_flops
    291648307200
    """
    c = config.resolved()
    has_window = phase != "forward" and window is not None and window < seq_len
    has_window = has_window and isinstance(c, GPTConfig | TransformerConfig)
    operations = _operations(c, phase, window=w if has_window else None)
    if operations is None:
        return None
    sizes = sizes_of(c) | {"b": batch_size, "n": seq_len, "s": seq_len if source_len is None else source_len}
    if has_window:
        assert window is not None
        sizes["w"] = window
    return Pass(phase, [o for o in operations if o.repeats], sizes)


def sizes_of(c: Any) -> dict[str, int]:
    """Symbol → size, of a resolved config."""
    fields = {
        "V": "vocab_size",
        "d": "d_model",
        "h": "n_heads",
        "g": "n_kv_heads",
        "k": "d_head",
        "f": "d_ff",
        "c": "context",
        "r": "d_hidden",
        "a": "d_attention",
        "o": "d_out",
    }
    sizes = {symbol: int(size) for symbol, name in fields.items() if (size := getattr(c, name, None)) is not None}
    if isinstance(c, NGramConfig | NPLMConfig):
        sizes["w"] = c.order - 1
    sizes["C"] = len(getattr(c, "labels", ()))
    sizes["e"] = getattr(c, "n_segments", 0) or getattr(c, "n_buckets", 0)
    return sizes


def has_source(config: ModelConfig) -> bool:
    return isinstance(config, TransformerConfig | Seq2SeqConfig | BahdanauConfig)


def can_decode(config: ModelConfig) -> bool:
    """Whether the model generates token by token; encoders do not."""
    return not isinstance(config, BERTConfig | BiLSTMConfig | BagOfWordsConfig)


def _operations(c: Any, phase: Phase, *, window: Formula | None = None) -> list[Operation] | None:
    tokens = ONE if phase == "decode" else n
    scored = n if phase == "forward" else ONE  # tokens whose logits are computed
    match c:
        case GPTConfig():
            keys = n if window is None or phase != "decode" else window  # a decode step has no others in its cache
            layer = _layer(c, "layer", c.n_layers, tokens, keys, is_causal=phase != "decode", window=window)
            return [*layer, product("unembedding", "output", scored, d, V)]
        case BERTConfig():
            return [*_layer(c, "layer", c.n_layers, n, n), *_head(c, d)]
        case TransformerConfig():
            encoder = _layer(c, "encoder layer", c.n_encoder_layers, s, s) if phase != "decode" else []
            if not c.n_decoder_layers:  # nothing reads the source, so it gets no gradient
                encoder = [replace(operation, no_gradient=2 * operation.flops) for operation in encoder]
            is_causal = phase != "decode"
            keys = n if window is None or is_causal else window
            decoder = _layer(
                c, "decoder layer", c.n_decoder_layers, tokens, keys, source=s, is_causal=is_causal, window=window
            )
            return [*encoder, *decoder, product("unembedding", "output", scored, d, V)]
        case NPLMConfig():
            window = w * d
            features = r + window if c.direct else r
            hidden = product("hidden layer", "layer", tokens, window, r)
            return [hidden, product("unembedding", "output", scored, features, V)]
        case RNNConfig():
            top = d if c.tie_embeddings else r
            if c.n_layers == 1:
                layers = _recurrent("layer", c.cell, tokens, d, top, 1, from_state=phase == "decode")
            else:
                layers = [
                    *_recurrent("first layer", c.cell, tokens, d, r, 1),
                    *_recurrent("layer", c.cell, tokens, r, r, c.n_layers - 2),
                    *_recurrent("last layer", c.cell, tokens, r, top, 1),
                ]
            return [*layers, product("unembedding", "output", scored, top, V)]
        case Seq2SeqConfig():
            encoder = _recurrent("encoder layer", c.cell, s, d, d, c.n_layers) if phase != "decode" else []
            decoder = _recurrent("decoder layer", c.cell, tokens, d, d, c.n_layers, from_state=True)
            return [*encoder, *decoder, product("unembedding", "output", scored, d, V)]
        case BahdanauConfig():
            return _bahdanau(c, phase, tokens, scored)
        case BiLSTMConfig():
            layers = _bidirectional("layer", c.cell, n, d, r, c.n_layers)
            return [*layers, *_head(c, 2 * r)]
        case BagOfWordsConfig():
            look_up = Operation("look-ups", "input", ZERO, reads=2 * b * n * d, writes=b * d, is_product=False)
            return [look_up, *([product("labels", "head", ONE, d, C)] if c.labels else [])]
        case NGramConfig():  # at each order a hash look-up of a token and its context, and two columns
            look_ups = b * tokens * (w + 1)
            return [Operation("look-ups", "table", ZERO, reads=4 * look_ups, writes=b * tokens, is_product=False)]
    return None


def product(name: str, stage: str, rows: Formula, n_in: Formula, n_out: Formula, repeats: int = 1) -> Operation:
    """x W for `rows` tokens per sequence: (b rows × n_in)(n_in × n_out).

    >>> b_, n, d = symbols("b n d")
    >>> queries = product("queries of all heads", "layer", n, d, d)
    >>> str(queries.flops), str(queries.elements)
    ('2 b n d²', 'd² + 2 b n d')
    """
    return Operation(
        name,
        stage,
        flops=2 * b * rows * n_in * n_out,
        weights=n_in * n_out,
        reads=b * rows * n_in,
        writes=b * rows * n_out,
        repeats=repeats,
    )


def _layer(
    c: StackConfig,
    stage: str,
    n_layers: int,
    queries: Formula,
    keys: Formula,
    *,
    source: Formula | None = None,
    is_causal: bool = False,  # all tokens at once, each attending to those before it
    window: Formula | None = None,  # the last tokens that each attends to, of those before it
) -> list[Operation]:
    """A Transformer layer: `queries` tokens per sequence attend to `keys` tokens; with `source`, to that many more."""
    heads, kv_heads, hidden = widths(c)
    skips_masked = is_causal and getattr(c, "attention_mask", "causal") == "causal"
    rows = [
        product("Q/K/V projections", stage, queries, d, heads + 2 * kv_heads),
        *_attention("", stage, queries, keys, heads, kv_heads, skips_masked=skips_masked, window=window),
        product("output projection", stage, queries, heads, d),
    ]
    if source is not None:
        rows.append(product("cross Q projection", stage, queries, d, heads))
        if is_causal:  # once per source: a decode step has them in its cache
            rows.append(product("cross K/V projections", stage, source, d, 2 * kv_heads))
        rows += _attention("cross ", stage, queries, source, heads, kv_heads)
        rows.append(product("cross output projection", stage, queries, heads, d))
    n_matrices = 3 if c.feed_forward == "swiglu" else 2
    rows.append(
        Operation(
            "feed-forward",
            stage,
            flops=n_matrices * 2 * b * queries * d * hidden,
            weights=n_matrices * d * hidden,
            reads=b * queries * d + b * queries * hidden,
            writes=b * queries * d + (n_matrices - 1) * b * queries * hidden,
        )
    )
    return [_repeated(row, n_layers) for row in rows]


def widths(c: StackConfig) -> tuple[Formula, Formula, Formula]:
    """Width of all query heads, of all key/value heads, and of the feed-forward layer, in terms of d where they are
    multiples of it: 6 b n d² instead of 2 b n d h k + 4 b n d g k."""
    heads = d if c.n_heads * c.d_head == c.d_model else h * k
    kv_heads = d if c.n_kv_heads * c.d_head == c.d_model else g * k if c.n_kv_heads != c.n_heads else h * k
    return heads, kv_heads, c.d_ff // c.d_model * d if c.d_ff % c.d_model == 0 else f


def _attention(
    prefix: str,
    stage: str,
    queries: Formula,
    keys: Formula,
    heads: Formula,
    kv_heads: Formula,
    *,
    skips_masked: bool = False,
    window: Formula | None = None,
) -> list[Operation]:
    visible = keys if window is None else window  # keys that each query has a score for
    scores = b * h * queries * visible
    masked = b * visible * (visible - 1) * heads if skips_masked else ZERO  # all but n (n + 1) / 2 of n² scores
    return [
        Operation(
            f"{prefix}scores",
            stage,
            flops=2 * b * queries * visible * heads,
            reads=b * queries * heads + b * keys * kv_heads,
            cache=b * keys * kv_heads,
            writes=scores,
            masked=masked,
        ),
        _softmax(f"{prefix}softmax", stage, scores),
        Operation(
            f"{prefix}weighted sum",
            stage,
            flops=2 * b * queries * visible * heads,
            reads=scores + b * keys * kv_heads,
            cache=b * keys * kv_heads,
            writes=b * queries * heads,
            masked=masked,
        ),
    ]


def _softmax(name: str, stage: str, scores: Formula) -> Operation:
    return Operation(name, stage, flops=SOFTMAX_FLOPS * scores, reads=scores, writes=scores, is_product=False)


def _recurrent(
    stage: str,
    cell: str,
    tokens: Formula,
    n_in: Formula,
    n_out: Formula,
    n_layers: int,
    *,
    from_state: bool = False,
) -> list[Operation]:
    """The two products of a recurrent layer. The state before the first token is zero and has no gradient, unless an
    encoder computed it (`from_state`)."""
    gates = CELL_MATRICES[cell]
    from_x = product("input to gates", stage, tokens, n_in, gates * n_out, n_layers)
    from_h = Operation(
        "state to gates",
        stage,
        flops=2 * b * tokens * gates * n_out * n_out,
        weights=gates * n_out * n_out,
        reads=b * tokens * n_out,
        writes=b * tokens * gates * n_out,
        repeats=n_layers,
        steps=tokens,
        no_gradient=ZERO if from_state else 2 * b * gates * n_out * n_out,
    )
    return [from_x, from_h]


def _bidirectional(
    stage: str, cell: str, tokens: Formula, n_in: Formula, n_out: Formula, n_layers: int
) -> list[Operation]:
    first = _recurrent(f"first {stage}, each direction", cell, tokens, n_in, n_out, 2)
    return [*first, *_recurrent(f"{stage}, each direction", cell, tokens, 2 * n_out, n_out, 2 * (n_layers - 1))]


def _bahdanau(c: BahdanauConfig, phase: Phase, tokens: Formula, scored: Formula) -> list[Operation]:
    encoder = []
    if phase != "decode":
        encoder = [
            *_bidirectional("encoder layer", c.cell, s, d, r, c.n_encoder_layers),
            product("keys of the source", "encoder", s, 2 * r, a),
            product("first decoder state", "encoder", ONE, r, r),
        ]
    energies = b * tokens * s
    attention = [
        replace(product("query of the alignment", "decoder", tokens, r, a), steps=tokens),
        Operation(
            "alignment scores",
            "decoder",
            flops=2 * energies * a,
            weights=a,
            steps=tokens,
            reads=energies * a,
            cache=b * tokens * s * a,
            writes=energies,
        ),
        _softmax("softmax", "decoder", energies),
        Operation(
            "weighted sum",
            "decoder",
            flops=2 * energies * 2 * r,
            reads=energies + energies * 2 * r,
            cache=energies * 2 * r,
            writes=b * tokens * 2 * r,
        ),
    ]
    from_x, from_h = _recurrent("decoder", c.cell, tokens, d + 2 * r, r, 1, from_state=True)
    return [
        *encoder,
        *attention,
        replace(from_x, steps=tokens),  # x holds the context vector, which depends on the state before
        from_h,
        product("maxout layer", "output", tokens, d + 3 * r, 2 * o),
        product("unembedding", "output", scored, o, V),
    ]


def _head(c: BERTConfig | BiLSTMConfig, width: Formula) -> list[Operation]:
    """A classification head if the config has labels, else BERT's masked-LM head."""
    if c.labels:
        return [product("pooler", "head", ONE, width, width), product("labels", "head", ONE, width, C)]
    if isinstance(c, BERTConfig):
        return [product("dense", "head", n, d, d), product("unembedding", "head", n, d, V)]
    return []


def _repeated(operation: Operation, repeats: int) -> Operation:
    return replace(operation, repeats=repeats)

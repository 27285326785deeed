"""The configs of the model families, with published settings as defaults.

Widths left at `None` are derived from the others by `resolved()`, so overriding `d_model` also moves the widths that
follow from it.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import msgspec

from headway.config.base import Config, Fraction, NonNegativeInt, PositiveFloat, PositiveInt, about, build
from headway.config.choices import one_of
from headway.entry_points import plugin_hint
from headway.errors import ConfigError, suggest

PositionKind = Literal["sinusoidal", "learned", "per-layer", "relative", "rotary", "alibi", "none"]
NormKind = Literal["layer", "rms", "none"]
NormOrder = Literal["pre", "post"]
FeedForwardKind = Literal["relu", "gelu", "gelu-tanh", "swiglu", "relu2"]
AttentionMask = Annotated[
    Literal["causal", "none", "after-softmax"],
    about('how the decoder hides later tokens; "none" and "after-softmax" are ablations that leak them'),
]
Smoothing = Literal["kneser-ney", "witten-bell", "add-k", "stupid-backoff", "none", "given"]

# The largest whole numbers: far above any published model, and small enough to be refused, or built, in a second.
MAX_SIZE = 2**31 - 1
MAX_LAYERS = 1000  # DeepNet (Wang et al. 2022) has that many
MAX_ORDER = 1000  # of an n-gram
MAX_SIZES = {
    "n_layers": MAX_LAYERS,
    "n_encoder_layers": MAX_LAYERS,
    "n_decoder_layers": MAX_LAYERS,
    "n_heads": 2**16,
    "order": MAX_ORDER,
}

BosId = Annotated[NonNegativeInt | None, about("token every text starts with; a recipe takes the tokenizer's")]
EosId = Annotated[NonNegativeInt | None, about("token every text ends with; a recipe takes the tokenizer's")]
NormEps = Annotated[float, msgspec.Meta(ge=1e-30, le=1)]  # above 0 in float32 too
Dropout = Annotated[Fraction, about("probability of dropping an activation while training")]

if TYPE_CHECKING:
    DerivedInt = Any  # None until the config is `resolved()`, an int in the configs that models hold
    DerivedCount = Any  # likewise, from 0
    DerivedFraction = Any  # likewise, a float
else:
    DerivedInt = PositiveInt | None
    DerivedCount = NonNegativeInt | None
    DerivedFraction = Fraction | None


def _family_name(class_name: str) -> str:
    return class_name.removesuffix("Config").lower()


class ModelConfig(Config, frozen=True, kw_only=True, tag_field="family", tag=_family_name):
    """Base of the model configs. The family is named after the class: GPTConfig is the config of "gpt".

    A family without a maximum sequence length has `context` None.
    """

    objectives: ClassVar[tuple[str, ...]] = ("causal",)  # what the family can be trained for; the first is the default

    vocab_size: Annotated[PositiveInt, about("number of tokens; a recipe takes the tokenizer's")] = 256

    @property
    def family(self) -> str:
        return str(type(self).__struct_config__.tag)

    @property
    def context(self) -> int | None:
        return None

    def resolved(self) -> Self:
        """A copy with every derived width filled in."""
        return self

    @property
    def bos_id(self) -> int | None:
        return None

    @property
    def eos_id(self) -> int | None:
        return None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.__struct_fields__:
            value, limit = getattr(self, name), MAX_SIZES.get(name, MAX_SIZE)
            if isinstance(value, int) and value > limit:
                raise ConfigError(f"{name}={value} must be at most {limit:,}", setting=name)
        for name in ("bos_id", "eos_id"):
            value = getattr(self, name, None)
            if value is not None and value >= self.vocab_size:
                raise ConfigError(
                    f"{name}={value} is outside the vocabulary of {self.vocab_size}: use 0 to {self.vocab_size - 1}"
                )


class StackConfig(ModelConfig, frozen=True, kw_only=True):
    """The fields of every Transformer stack. The families below give them their published defaults."""

    context: Annotated[
        PositiveInt, about("maximum sequence length; sinusoidal, rotary and ALiBi positions extrapolate past it")
    ]
    n_layers: Annotated[NonNegativeInt, about("number of blocks")]
    n_heads: Annotated[PositiveInt, about("attention heads per layer")]
    n_kv_heads: Annotated[DerivedInt, about("key/value heads (grouped-query attention); unset: n_heads")] = None
    d_model: Annotated[PositiveInt, about("width of the residual stream")]
    d_head: Annotated[DerivedInt, about("width of one head; unset: d_model / n_heads")] = None
    d_ff: Annotated[
        DerivedInt, about("unset: 4 d_model, or 8/3 d_model for SwiGLU, which has three matrices, not two")
    ] = None
    dropout: Dropout = 0.1
    attention: Annotated[str, one_of("attention"), about("attention function")] = "dot-product"
    attention_scale: Annotated[
        Literal["sqrt", "none"], about('"none": scores are not scaled to unit variance, so the softmax saturates')
    ] = "sqrt"
    similarity: Annotated[Literal["dot", "cosine"], about("scores: dot products, or cosines of queries and keys")] = (
        "dot"
    )
    positions: Annotated[PositionKind, about("position encoding")] = "learned"
    rope_theta: Annotated[float, msgspec.Meta(ge=1), about("base of the rotary frequencies")] = 10_000.0
    norm: Annotated[NormKind, about("LayerNorm, RMSNorm or neither")] = "layer"
    norm_order: Annotated[NormOrder, about("normalise before each sub-layer, or after the residual")] = "pre"
    norm_eps: Annotated[NormEps, about("added to the variance before the square root")] = 1e-5
    residual: Annotated[Literal["add", "none"], about("add the input of each sub-layer to its output")] = "add"
    feed_forward: Annotated[FeedForwardKind, about("activation of the feed-forward layer")] = "gelu"
    bias: Annotated[bool, about("biases in linear layers and LayerNorm")] = True
    tie_embeddings: Annotated[bool, about("share the embedding matrix with the unembedding")] = True
    scale_embeddings: Annotated[bool, about("multiply embeddings by √d_model (Vaswani et al. 2017, §3.4)")] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.d_head is None and self.d_model % self.n_heads:
            below = self.d_model // self.n_heads * self.n_heads
            nearest = f"d_model={below}, or " if below else ""
            raise ConfigError(
                f"d_model={self.d_model} does not split into n_heads={self.n_heads} equal heads; possible: "
                f"{nearest}n_heads of {_divisors(self.d_model, most=8)}; or give d_head"
            )
        if self.n_kv_heads and self.n_heads % self.n_kv_heads:
            raise ConfigError(
                f"n_kv_heads={self.n_kv_heads} does not divide n_heads={self.n_heads}: each key/value head "
                f"serves the same number of query heads; possible: {_divisors(self.n_heads)}"
            )
        if self.attention != "dot-product" and getattr(self, "attention_mask", "causal") == "after-softmax":
            raise ConfigError(
                f"attention_mask='after-softmax' is a form of dot-product attention, but attention={self.attention!r}: "
                f"choose one of the two"
            )
        if self.positions == "rotary" and (width := self.d_head or self.d_model // self.n_heads) % 2:
            raise ConfigError(f"rotary positions rotate pairs of numbers, but d_head={width} is odd; use {width + 1}")

    def resolved(self) -> Self:
        """A copy with every `None` width filled in."""
        d_ff = 4 * self.d_model if self.feed_forward != "swiglu" else _round_up(8 * self.d_model / 3, 8)
        return msgspec.structs.replace(
            self,
            n_kv_heads=self.n_kv_heads or self.n_heads,
            d_head=self.d_head or self.d_model // self.n_heads,
            d_ff=self.d_ff or d_ff,
        )


class GPTConfig(StackConfig, frozen=True, kw_only=True):
    """A decoder. Defaults: GPT-2 small (Radford et al. 2019, §2.3 and Table 2, first row)."""

    vocab_size: PositiveInt = 50257
    context: PositiveInt = 1024
    n_layers: NonNegativeInt = 12
    n_heads: PositiveInt = 12
    d_model: PositiveInt = 768
    feed_forward: FeedForwardKind = "gelu-tanh"
    attention_mask: AttentionMask = "causal"
    bos_id: BosId = None
    eos_id: EosId = None


class BERTConfig(StackConfig, frozen=True, kw_only=True):
    """An encoder. Defaults: BERT-base (Devlin et al. 2019, §3)."""

    objectives: ClassVar[tuple[str, ...]] = ("masked", "classify", "tag", "span")

    vocab_size: PositiveInt = 30522
    context: PositiveInt = 512
    n_layers: NonNegativeInt = 12
    n_heads: PositiveInt = 12
    d_model: PositiveInt = 768
    n_segments: Annotated[PositiveInt, about("segment embeddings, for pairs of texts")] = 2
    labels: Annotated[list[str], about("label names of a classification or tagging head")] = []
    multi_label: Annotated[bool, about("a classification head with any number of labels per text")] = False
    norm_order: NormOrder = "post"
    norm_eps: NormEps = 1e-12


class TransformerConfig(StackConfig, frozen=True, kw_only=True):
    """Encoder and decoder. Defaults: the base model of Vaswani et al. 2017, Table 3, one vocabulary for both sides."""

    objectives: ClassVar[tuple[str, ...]] = ("pairs",)

    vocab_size: PositiveInt = 37_000  # §5.1, "a shared source-target vocabulary of about 37000 tokens"
    context: PositiveInt = 512
    n_layers: Annotated[NonNegativeInt, about("on each side, unless the next two fields say otherwise")] = 6
    n_encoder_layers: Annotated[DerivedCount, about("unset: n_layers")] = None
    n_decoder_layers: Annotated[DerivedCount, about("unset: n_layers")] = None
    n_heads: PositiveInt = 8
    d_model: PositiveInt = 512
    positions: PositionKind = "sinusoidal"
    norm_order: NormOrder = "post"
    norm_eps: NormEps = 1e-6  # the paper gives none; tensor2tensor's
    feed_forward: FeedForwardKind = "relu"
    scale_embeddings: bool = True
    attention_mask: AttentionMask = "causal"
    bos_id: BosId = None
    eos_id: EosId = None

    def resolved(self) -> Self:
        layers = {
            name: self.n_layers if getattr(self, name) is None else getattr(self, name)
            for name in ("n_encoder_layers", "n_decoder_layers")
        }
        return msgspec.structs.replace(super().resolved(), **layers)


class NGramConfig(ModelConfig, frozen=True, kw_only=True):
    """Smoothed counts of up to `order` tokens."""

    vocab_size: PositiveInt = 256
    order: Annotated[PositiveInt, about("n: tokens of the longest n-gram")] = 3
    smoothing: Annotated[
        Smoothing, about('"none": unseen n-grams have probability 0; "given": probabilities come from a file')
    ] = "kneser-ney"
    k: Annotated[PositiveFloat, about("add-k smoothing: added to every count")] = 1.0
    prune: Annotated[
        list[int], about("per order, drop n-grams with counts up to this, such as [0, 1, 2]; []: keep all")
    ] = []
    bos_id: BosId = None
    eos_id: EosId = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prune and (self.prune[0] != 0 or sorted(self.prune) != self.prune or len(self.prune) > self.order):
            raise ConfigError(
                f"prune={self.prune} must start with 0 (all unigrams stay), never decrease, and have at most "
                f"order={self.order} numbers, such as [0, 1, 2]"
            )


class NPLMConfig(ModelConfig, frozen=True, kw_only=True):
    """The neural probabilistic language model. Defaults: Bengio et al. 2003, Table 1, MLP9 (n = 5, h = 100, m = 30)."""

    vocab_size: PositiveInt = 16_383
    order: Annotated[int, msgspec.Meta(ge=2), about("n: the model conditions on the last n − 1 tokens")] = 5
    d_model: Annotated[PositiveInt, about("m, width of a token's embedding")] = 30
    d_hidden: Annotated[PositiveInt, about("h, width of the hidden layer")] = 100
    direct: Annotated[bool, about("also connect the embeddings directly to the output")] = False
    dropout: Dropout = 0.0
    bos_id: BosId = None
    eos_id: EosId = None


Cell = Literal["tanh", "relu", "sigmoid", "lstm", "gru", "peephole"]


class RNNConfig(ModelConfig, frozen=True, kw_only=True):
    """A recurrent language model. Default: one Elman layer, as in Mikolov et al. 2010."""

    vocab_size: PositiveInt = 10_000
    n_layers: Annotated[PositiveInt, about("recurrent layers")] = 1
    d_model: Annotated[PositiveInt, about("width of the embeddings and, when tied, of the last layer")] = 200
    d_hidden: Annotated[DerivedInt, about("width of the recurrent layers; unset: d_model")] = None
    cell: Annotated[Cell, about('"peephole": an LSTM whose gates also see the cell state')] = "tanh"
    tie_embeddings: Annotated[bool, about("share the embedding matrix with the unembedding")] = False
    dropout: Annotated[Fraction, about("on the output of the last layer")] = 0.0
    input_dropout: Annotated[DerivedFraction, about("on the embeddings; unset: dropout")] = None
    hidden_dropout: Annotated[DerivedFraction, about("between recurrent layers; unset: dropout")] = None
    embedding_dropout: Annotated[Fraction, about("drop whole words of the vocabulary (Gal & Ghahramani 2016)")] = 0.0
    weight_drop: Annotated[Fraction, about("DropConnect on hidden-to-hidden weights (Merity et al. 2018)")] = 0.0
    variational_dropout: Annotated[bool, about("one dropout mask for all time steps of a sequence")] = False
    bos_id: BosId = None
    eos_id: EosId = None

    def resolved(self) -> Self:
        """A copy with every `None` filled in."""
        return msgspec.structs.replace(
            self,
            d_hidden=self.d_hidden or self.d_model,
            input_dropout=self.dropout if self.input_dropout is None else self.input_dropout,
            hidden_dropout=self.dropout if self.hidden_dropout is None else self.hidden_dropout,
        )


class LSTMConfig(RNNConfig, frozen=True, kw_only=True):
    """An LSTM language model. Defaults: the medium one of Zaremba et al. 2014, §4.1."""

    n_layers: PositiveInt = 2
    d_model: PositiveInt = 650
    cell: Cell = "lstm"
    dropout: Annotated[Fraction, about("on the output of the last layer")] = 0.5


class Seq2SeqConfig(ModelConfig, frozen=True, kw_only=True):
    """Two deep LSTMs. Defaults: Sutskever et al. 2014, §3.4, but with one vocabulary for both sides."""

    objectives: ClassVar[tuple[str, ...]] = ("pairs",)

    vocab_size: PositiveInt = 80_000
    context: Annotated[PositiveInt, about("maximum source and target length")] = 128
    n_layers: Annotated[PositiveInt, about("on each side")] = 4
    d_model: Annotated[PositiveInt, about("width of the embeddings and layers")] = 1000
    cell: Cell = "lstm"
    reverse_source: Annotated[bool, about("encode the source backwards (Sutskever et al. 2014, §3.3)")] = True
    tie_embeddings: Annotated[bool, about("share the embedding matrix with the unembedding")] = False
    dropout: Dropout = 0.0
    bos_id: BosId = None
    eos_id: EosId = None


class BahdanauConfig(ModelConfig, frozen=True, kw_only=True):
    """The first attention. Defaults: RNNsearch (Bahdanau et al. 2015, appendix A.2), one vocabulary for both sides."""

    objectives: ClassVar[tuple[str, ...]] = ("pairs",)

    vocab_size: PositiveInt = 30_000
    context: Annotated[PositiveInt, about("maximum source and target length")] = 128
    n_encoder_layers: Annotated[PositiveInt, about("each bidirectional")] = 1
    d_model: Annotated[PositiveInt, about("width of the embeddings")] = 620
    d_hidden: Annotated[PositiveInt, about("width of each encoder direction and of the decoder")] = 1000
    d_attention: Annotated[DerivedInt, about("width of the alignment network; unset: d_hidden")] = None
    d_out: Annotated[
        DerivedInt, about("width of the maxout layer before the output; unset: 500, or d_model with tied embeddings")
    ] = None
    cell: Cell = "gru"
    tie_embeddings: Annotated[bool, about("share the embedding matrix with the unembedding")] = False
    dropout: Dropout = 0.0
    bos_id: BosId = None
    eos_id: EosId = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tie_embeddings and self.d_out not in (None, self.d_model):
            raise ConfigError(
                f"d_out={self.d_out} with tied embeddings, which are d_model={self.d_model} wide: leave d_out out"
            )

    def resolved(self) -> Self:
        """A copy with every `None` filled in."""
        return msgspec.structs.replace(
            self,
            d_attention=self.d_attention or self.d_hidden,
            d_out=self.d_out or (self.d_model if self.tie_embeddings else 500),
        )


class BiLSTMConfig(ModelConfig, frozen=True, kw_only=True):
    """A bidirectional recurrent encoder. Defaults: Ma & Hovy 2016, Table 1, word embeddings only."""

    objectives: ClassVar[tuple[str, ...]] = ("tag", "classify", "span")

    vocab_size: PositiveInt = 30_522
    context: Annotated[PositiveInt, about("longest training text; inference has no limit")] = 512
    n_layers: Annotated[PositiveInt, about("number of bidirectional layers")] = 1
    d_model: Annotated[PositiveInt, about("width of the embeddings")] = 100
    d_hidden: Annotated[PositiveInt, about("width of each direction")] = 200
    cell: Cell = "lstm"
    pooling: Annotated[
        Literal["first", "mean", "max"], about("classification: the state of the first token, or over all tokens")
    ] = "first"
    dropout: Dropout = 0.5
    labels: Annotated[list[str], about("label names of a classification or tagging head")] = []
    multi_label: Annotated[bool, about("a classification head with any number of labels per text")] = False


class BagOfWordsConfig(ModelConfig, frozen=True, kw_only=True, tag="bow"):
    """Averaged embeddings of words and bigrams. Defaults: Joulin et al. 2017, §3.1, with fewer buckets (10 million)."""

    objectives: ClassVar[tuple[str, ...]] = ("classify", "tag")

    vocab_size: PositiveInt = 30_522
    context: Annotated[PositiveInt, about("longest training text; inference has no limit")] = 512
    d_model: Annotated[PositiveInt, about("width of the embeddings")] = 10
    n_buckets: Annotated[PositiveInt, about("rows of the table that bigrams are hashed to")] = 200_000
    dropout: Dropout = 0.0
    labels: Annotated[list[str], about("label names of a classification or tagging head")] = []
    multi_label: Annotated[bool, about("a classification head with any number of labels per text")] = False


FAMILIES: dict[str, type[ModelConfig]] = {
    "gpt": GPTConfig,
    "bert": BERTConfig,
    "transformer": TransformerConfig,
    "ngram": NGramConfig,
    "nplm": NPLMConfig,
    "rnn": RNNConfig,
    "lstm": LSTMConfig,
    "seq2seq": Seq2SeqConfig,
    "bahdanau": BahdanauConfig,
    "bilstm": BiLSTMConfig,
    "bow": BagOfWordsConfig,
}


def model_config(name: str, overrides: Mapping[str, Any] | None = None) -> ModelConfig:
    """The config of a family or preset by exact name, with overrides.

    >>> model_config("gpt2", {"n_layers": 2}).n_layers
    2
    """
    from headway.config.presets import PRESETS  # presets are instances of the classes above
    from headway.config.published import NOT_BUILDABLE

    base = None
    if isinstance(name, str):
        base = PRESETS[name] if name in PRESETS else FAMILIES[name]() if name in FAMILIES else None
    if base is None:
        if isinstance(name, str) and name in NOT_BUILDABLE:
            raise ConfigError(NOT_BUILDABLE[name].error(name), setting="model.name")
        names = [*FAMILIES, *PRESETS]
        raise ConfigError(
            f"no model family or preset named {name!r}."
            + suggest(
                str(name),
                names,
                otherwise=f" Families: {', '.join(FAMILIES)}. Presets: {', '.join(PRESETS)}. "
                f"{plugin_hint('family', name)}",
            ),
            setting="model.name",
        )
    return build(type(base), {**msgspec.to_builtins(base), **(overrides or {})}, where="model")


def _divisors(n: int, most: int | None = None) -> str:
    """ "1, 2, 3, 4, 6, 12", or the first `most` of them and an ellipsis."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    divisors = [str(d) for d in sorted({*small, *(n // d for d in small)})]
    return ", ".join(divisors[:most]) + (", …" if most is not None and len(divisors) > most else "")


def _round_up(value: float, multiple: int) -> int:
    return int(-(-value // multiple) * multiple)

"""The configs of the families, with published settings as defaults.

Fields left at `None` are derived from the others by `resolved()`, so that overriding `d_model` also moves the widths
that follow from it.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from headway.config.base import Config, at_least, build, one_of, probabilities
from headway.errors import ConfigError, suggest

PositionKind = Literal["sinusoidal", "learned", "per-layer", "relative", "rotary", "alibi"]
NormKind = Literal["layer", "rms"]
NormOrder = Literal["pre", "post"]
FeedForwardKind = Literal["relu", "gelu", "gelu-tanh", "swiglu", "relu2"]
Smoothing = Literal["kneser-ney", "witten-bell", "add-k", "stupid-backoff", "none", "given"]

if TYPE_CHECKING:
    Derived = Any  # None until the config is `resolved()`, an int in the configs that models hold
    DerivedShare = Any  # the same, a number
else:
    Derived = int | None
    DerivedShare = float | None


class FamilyConfig(Config, frozen=True, kw_only=True):
    """Base of the model configs. Families without a maximum sequence length have `context` None."""

    @property
    def family(self) -> str:
        return str(type(self).__struct_config__.tag)

    @property
    def context(self) -> int | None:
        return None

    @property
    def eos_id(self) -> int | None:
        return None


class StackConfig(FamilyConfig, frozen=True, kw_only=True):
    """What every Transformer stack has. The three families below give these their published defaults."""

    vocab_size: int
    context: int  # longest sequence with a position of its own; sinusoidal, rotary and ALiBi go past it
    n_layers: int
    n_heads: int
    n_kv_heads: Derived = None  # heads of keys and values (grouped-query attention); None: n_heads
    d_model: int
    d_head: Derived = None  # width of one head; None: d_model / n_heads
    d_ff: Derived = None  # None: 4 d_model, or 8/3 d_model for SwiGLU, which has three matrices, not two
    dropout: float = 0.1
    positions: PositionKind = "learned"
    rope_theta: float = 10_000.0
    norm: NormKind = "layer"
    norm_order: NormOrder = "pre"
    norm_eps: float = 1e-5
    feed_forward: FeedForwardKind = "gelu"
    bias: bool = True  # on linear layers and LayerNorm
    tie_embeddings: bool = True  # the unembedding is the embedding
    scale_embeddings: bool = False  # multiply embeddings by √d_model (Vaswani et al. 2017, §3.4)

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context", "n_heads", "n_kv_heads", "d_model", "d_head", "d_ff"):
            at_least(self, name, 1)
        at_least(self, "n_layers", 0)
        one_of(self, positions=PositionKind, norm=NormKind, norm_order=NormOrder, feed_forward=FeedForwardKind)
        probabilities(self, "dropout")
        for name in ("norm_eps", "rope_theta"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name}={getattr(self, name)} must be a positive number")
        if self.d_head is None and self.d_model % self.n_heads:
            below = self.d_model // self.n_heads * self.n_heads
            nearest = f"nearest width below: {below}" if below else f"use at most {self.d_model} heads"
            raise ConfigError(
                f"d_model={self.d_model} does not split into n_heads={self.n_heads} equal heads; "
                f"{nearest}, or give d_head"
            )
        if self.n_kv_heads and self.n_heads % self.n_kv_heads:
            raise ConfigError(
                f"n_kv_heads={self.n_kv_heads} does not divide n_heads={self.n_heads}: each key/value head "
                f"serves the same number of query heads; possible: {_divisors(self.n_heads)}"
            )
        if self.positions == "rotary" and (width := self.d_head or self.d_model // self.n_heads) % 2:
            raise ConfigError(f"rotary positions turn pairs of numbers, but d_head={width} is odd; use {width + 1}")

    def resolved(self) -> Self:
        """A copy with every `None` width filled in."""
        d_ff = 4 * self.d_model if self.feed_forward != "swiglu" else _round_up(8 * self.d_model / 3, 8)
        return msgspec.structs.replace(
            self,
            n_kv_heads=self.n_kv_heads or self.n_heads,
            d_head=self.d_head or self.d_model // self.n_heads,
            d_ff=self.d_ff or d_ff,
        )


class GPTConfig(StackConfig, frozen=True, kw_only=True, tag_field="family", tag="gpt"):
    """A decoder. Defaults: GPT-2 small (Radford et al. 2019, §2.3 and Table 2, first row)."""

    vocab_size: int = 50257
    context: int = 1024
    n_layers: int = 12
    n_heads: int = 12
    d_model: int = 768
    feed_forward: FeedForwardKind = "gelu-tanh"
    bos_id: int | None = None  # the token every text begins with; see tokenizers/base.py for the rules
    eos_id: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        special_ids(self)


class BERTConfig(StackConfig, frozen=True, kw_only=True, tag_field="family", tag="bert"):
    """An encoder. Defaults: BERT-base (Devlin et al. 2019, §3)."""

    vocab_size: int = 30522
    context: int = 512
    n_layers: int = 12
    n_heads: int = 12
    d_model: int = 768
    n_segments: int = 2
    labels: list[str] = []  # what a head that classifies or tags chooses from
    norm_order: NormOrder = "post"
    norm_eps: float = 1e-12

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, "n_segments", 1)


class TransformerConfig(StackConfig, frozen=True, kw_only=True, tag_field="family", tag="transformer"):
    """Encoder and decoder. Defaults: the base model of Vaswani et al. 2017, Table 3, one vocabulary for both sides."""

    vocab_size: int = 37_000  # §5.1, "a shared source-target vocabulary of about 37000 tokens"
    context: int = 512
    n_layers: int = 6  # of each side, where the two fields below are not given
    n_encoder_layers: Derived = None
    n_decoder_layers: Derived = None
    n_heads: int = 8
    d_model: int = 512
    positions: PositionKind = "sinusoidal"
    norm_order: NormOrder = "post"
    norm_eps: float = 1e-6  # the paper gives none; tensor2tensor's
    feed_forward: FeedForwardKind = "relu"
    scale_embeddings: bool = True
    bos_id: int | None = None
    eos_id: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        special_ids(self)
        for name in ("n_encoder_layers", "n_decoder_layers"):
            at_least(self, name, 0)

    def resolved(self) -> Self:
        layers = {
            name: self.n_layers if getattr(self, name) is None else getattr(self, name)
            for name in ("n_encoder_layers", "n_decoder_layers")
        }
        return msgspec.structs.replace(super().resolved(), **layers)


class NGramConfig(FamilyConfig, frozen=True, kw_only=True, tag_field="family", tag="ngram"):
    """Counts of up to `order` tokens, smoothed."""

    vocab_size: int = 256
    order: int = 3
    smoothing: Smoothing = "kneser-ney"  # "none": what was not counted is impossible; "given": read from a file
    k: float = 1.0  # add-k: what is added to every count
    prune: list[int] = []  # of each order, counts up to which n-grams are dropped, such as [0, 1, 2]; []: none
    bos_id: int | None = None
    eos_id: int | None = None

    def __post_init__(self) -> None:
        at_least(self, "vocab_size", 1)
        at_least(self, "order", 1)
        one_of(self, smoothing=Smoothing)
        special_ids(self)
        if not 0 < self.k < float("inf"):
            raise ConfigError(f"k={self.k} must be a positive number; to add nothing, smoothing='none'")
        if self.prune and (self.prune[0] != 0 or sorted(self.prune) != self.prune or len(self.prune) > self.order):
            raise ConfigError(
                f"prune={self.prune} must begin with 0 (single tokens all stay), never fall, and have at most "
                f"order={self.order} numbers, such as [0, 1, 2]"
            )


class NPLMConfig(FamilyConfig, frozen=True, kw_only=True, tag_field="family", tag="nplm"):
    """The neural probabilistic language model. Defaults: Bengio et al. 2003, Table 1, MLP9 (n = 5, h = 100, m = 30)."""

    vocab_size: int = 16_383
    order: int = 5  # n: the window is the last n − 1 words
    d_model: int = 30  # m, of a word's vector
    d_hidden: int = 100  # h
    direct: bool = False  # from the words' vectors straight to the output too
    dropout: float = 0.0
    bos_id: int | None = None
    eos_id: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("vocab_size", 1), ("order", 2), ("d_model", 1), ("d_hidden", 1)):
            at_least(self, name, least)
        probabilities(self, "dropout")
        special_ids(self)


Cell = Literal["tanh", "relu", "lstm", "gru", "peephole"]


class RNNConfig(FamilyConfig, frozen=True, kw_only=True, tag_field="family", tag="rnn"):
    """A recurrent language model. Default: one Elman layer, as Mikolov et al. 2010 have it."""

    vocab_size: int = 10_000
    n_layers: int = 1
    d_model: int = 200  # of a word's vector, and with tied embeddings of the last layer
    d_hidden: Derived = None  # of the layers; None: d_model
    cell: Cell = "tanh"  # "peephole": an LSTM whose gates see the cell
    tie_embeddings: bool = False  # the unembedding is the embedding
    dropout: float = 0.0  # of what the last layer gives
    input_dropout: DerivedShare = None  # of the words' vectors; None: dropout
    hidden_dropout: DerivedShare = None  # between layers; None: dropout
    embedding_dropout: float = 0.0  # of whole words of the vocabulary
    weight_drop: float = 0.0  # of the weights from step to step
    variational_dropout: bool = False  # one dropout mask for all steps of a window
    bos_id: int | None = None
    eos_id: int | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "n_layers", "d_model", "d_hidden"):
            at_least(self, name, 1)
        one_of(self, cell=Cell)
        for name in ("dropout", "input_dropout", "hidden_dropout", "embedding_dropout", "weight_drop"):
            probabilities(self, name)
        special_ids(self)

    def resolved(self) -> Self:
        """A copy with every `None` filled in."""
        return msgspec.structs.replace(
            self,
            d_hidden=self.d_hidden or self.d_model,
            input_dropout=self.dropout if self.input_dropout is None else self.input_dropout,
            hidden_dropout=self.dropout if self.hidden_dropout is None else self.hidden_dropout,
        )


class LSTMConfig(RNNConfig, frozen=True, kw_only=True, tag_field="family", tag="lstm"):
    """An LSTM language model. Defaults: the medium one of Zaremba et al. 2014, §4.1."""

    n_layers: int = 2
    d_model: int = 650
    cell: Cell = "lstm"
    dropout: float = 0.5


class Seq2SeqConfig(FamilyConfig, frozen=True, kw_only=True, tag_field="family", tag="seq2seq"):
    """Two deep LSTMs. Defaults: Sutskever et al. 2014, §3.4, but for one vocabulary for both sides."""

    vocab_size: int = 80_000
    context: int = 128  # longest source and target, learned from or translated
    n_layers: int = 4  # of each side
    d_model: int = 1000
    cell: Cell = "lstm"
    reverse_source: bool = True  # read the source backwards
    tie_embeddings: bool = False
    dropout: float = 0.0
    bos_id: int | None = None
    eos_id: int | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context", "n_layers", "d_model"):
            at_least(self, name, 1)
        one_of(self, cell=Cell)
        probabilities(self, "dropout")
        special_ids(self)


class BahdanauConfig(FamilyConfig, frozen=True, kw_only=True, tag_field="family", tag="bahdanau"):
    """Attention, the first. Defaults: RNNsearch (Bahdanau et al. 2015, appendix A.2), one vocabulary for both sides."""

    vocab_size: int = 30_000
    context: int = 128  # longest source and target, learned from or translated
    n_encoder_layers: int = 1  # each reading both ways
    d_model: int = 620  # of a word's vector
    d_hidden: int = 1000  # of each direction of the encoder, and of the decoder
    d_attention: Derived = None  # of the network that aligns; None: d_hidden
    d_out: Derived = None  # of the maxout layer before the output; None: 500, or d_model with tied embeddings
    cell: Cell = "gru"
    tie_embeddings: bool = False
    dropout: float = 0.0
    bos_id: int | None = None
    eos_id: int | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context", "n_encoder_layers", "d_model", "d_hidden", "d_attention", "d_out"):
            at_least(self, name, 1)
        one_of(self, cell=Cell)
        probabilities(self, "dropout")
        special_ids(self)
        if self.tie_embeddings and self.d_out not in (None, self.d_model):
            raise ConfigError(
                f"d_out={self.d_out} with tied embeddings, which are d_model={self.d_model} wide: leave it out"
            )

    def resolved(self) -> Self:
        """A copy with every `None` filled in."""
        return msgspec.structs.replace(
            self,
            d_attention=self.d_attention or self.d_hidden,
            d_out=self.d_out or (self.d_model if self.tie_embeddings else 500),
        )


class BiLSTMConfig(FamilyConfig, frozen=True, kw_only=True, tag_field="family", tag="bilstm"):
    """A recurrent encoder that reads both ways. Defaults: Ma & Hovy 2016, Table 1, words alone."""

    vocab_size: int = 30_522
    context: int = 512  # longest text that is learned from; there is no limit otherwise
    n_layers: int = 1  # several: a deep bidirectional network
    d_model: int = 100  # of a word's vector
    d_hidden: int = 200  # of each direction
    cell: Cell = "lstm"
    dropout: float = 0.5
    labels: list[str] = []  # what a head that classifies or tags chooses from

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context", "n_layers", "d_model", "d_hidden"):
            at_least(self, name, 1)
        one_of(self, cell=Cell)
        probabilities(self, "dropout")


ModelConfig = (
    GPTConfig
    | BERTConfig
    | TransformerConfig
    | NGramConfig
    | NPLMConfig
    | RNNConfig
    | LSTMConfig
    | Seq2SeqConfig
    | BahdanauConfig
    | BiLSTMConfig
)
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
}


def model_config(name: str, overrides: Mapping[str, Any] | None = None) -> ModelConfig:
    """The config of a family or preset by exact name, with overrides.

    >>> model_config("gpt2", {"n_layers": 2}).n_layers
    2
    """
    from headway.config.presets import PRESETS  # presets are made of the classes above

    base = None
    if isinstance(name, str):
        base = PRESETS[name] if name in PRESETS else FAMILIES[name]() if name in FAMILIES else None
    if base is None:
        names = [*FAMILIES, *PRESETS]
        raise ConfigError(
            f"no model family or preset named {name!r}."
            + suggest(str(name), names, otherwise=f" Families: {', '.join(FAMILIES)}. Presets: {', '.join(PRESETS)}")
        )
    return build(type(base), {**msgspec.to_builtins(base), **(overrides or {})}, where="model")


def special_ids(config: Any) -> None:
    for name in ("bos_id", "eos_id"):
        at_least(config, name, 0)
        value = getattr(config, name)
        if value is not None and value >= config.vocab_size:
            raise ConfigError(f"{name}={value} is outside the vocabulary of {config.vocab_size}")


def _divisors(n: int) -> str:
    return ", ".join(str(d) for d in range(1, n + 1) if n % d == 0)


def _round_up(value: float, multiple: int) -> int:
    return int(-(-value // multiple) * multiple)

"""Configs: what a model, a tokenizer, a data source and a run are, as frozen values without torch.

One route in, each stage overriding the one before it:

    defaults → preset → TOML file → `--set train.steps=100`

A key that does not exist is an error with a suggestion, never ignored. Fields left at `None` are derived
from the others by `resolved()`, so that overriding `d_model` also moves the widths that follow from it.
"""

import inspect
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
import tomli_w

from headway.errors import ConfigError, suggest

Positions = Literal["sinusoidal", "learned", "per-layer", "relative", "rotary", "alibi"]
Norm = Literal["layer", "rms"]
NormOrder = Literal["pre", "post"]
FeedForward = Literal["relu", "gelu", "gelu-tanh", "swiglu", "relu2"]
Smoothing = Literal["kneser-ney", "witten-bell", "add-k", "stupid-backoff", "none", "given"]

if TYPE_CHECKING:
    Derived = Any  # None until the config is `resolved()`, an int in the configs that models hold
    DerivedShare = Any  # the same, a number
else:
    Derived = int | None
    DerivedShare = float | None


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all configs: frozen and strict."""

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, checked like the original."""
        return build(type(self), {**msgspec.to_builtins(self), **changes})


# ── models ────────────────────────────────────────────────────────────────────────────────────────────────────────


class StackConfig(Config, frozen=True, kw_only=True):
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
    positions: Positions = "learned"
    rope_theta: float = 10_000.0
    norm: Norm = "layer"
    norm_order: NormOrder = "pre"
    norm_eps: float = 1e-5
    feed_forward: FeedForward = "gelu"
    bias: bool = True  # on linear layers and LayerNorm
    tie_embeddings: bool = True  # the unembedding is the embedding
    scale_embeddings: bool = False  # multiply embeddings by √d_model (Vaswani et al. 2017, §3.4)

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context", "n_heads", "n_kv_heads", "d_model", "d_head", "d_ff"):
            _at_least(self, name, 1)
        _at_least(self, "n_layers", 0)
        _one_of(self, positions=Positions, norm=Norm, norm_order=NormOrder, feed_forward=FeedForward)
        _probabilities(self, "dropout")
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
    feed_forward: FeedForward = "gelu-tanh"
    bos_id: int | None = None  # the token every text begins with; see tokenizers/base.py for the rules
    eos_id: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _special_ids(self)


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
        _at_least(self, "n_segments", 1)


class TransformerConfig(StackConfig, frozen=True, kw_only=True, tag_field="family", tag="transformer"):
    """Encoder and decoder. Defaults: the base model of Vaswani et al. 2017, Table 3, one vocabulary for both sides."""

    vocab_size: int = 37_000  # §5.1, "a shared source-target vocabulary of about 37000 tokens"
    context: int = 512
    n_layers: int = 6  # of each side, where the two fields below are not given
    n_encoder_layers: Derived = None
    n_decoder_layers: Derived = None
    n_heads: int = 8
    d_model: int = 512
    positions: Positions = "sinusoidal"
    norm_order: NormOrder = "post"
    norm_eps: float = 1e-6  # the paper gives none; tensor2tensor's
    feed_forward: FeedForward = "relu"
    scale_embeddings: bool = True
    bos_id: int | None = None
    eos_id: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _special_ids(self)
        for name in ("n_encoder_layers", "n_decoder_layers"):
            _at_least(self, name, 0)

    def resolved(self) -> Self:
        layers = {
            name: self.n_layers if getattr(self, name) is None else getattr(self, name)
            for name in ("n_encoder_layers", "n_decoder_layers")
        }
        return msgspec.structs.replace(super().resolved(), **layers)


class NGramConfig(Config, frozen=True, kw_only=True, tag_field="family", tag="ngram"):
    """Counts of up to `order` tokens, smoothed."""

    vocab_size: int = 256
    order: int = 3
    smoothing: Smoothing = "kneser-ney"  # "none": what was not counted is impossible; "given": read from a file
    k: float = 1.0  # add-k: what is added to every count
    prune: list[int] = []  # of each order, counts up to which n-grams are dropped, such as [0, 1, 2]; []: none
    bos_id: int | None = None
    eos_id: int | None = None

    def __post_init__(self) -> None:
        _at_least(self, "vocab_size", 1)
        _at_least(self, "order", 1)
        _one_of(self, smoothing=Smoothing)
        _special_ids(self)
        if not 0 < self.k < float("inf"):
            raise ConfigError(f"k={self.k} must be a positive number; to add nothing, smoothing='none'")
        if self.prune and (self.prune[0] != 0 or sorted(self.prune) != self.prune or len(self.prune) > self.order):
            raise ConfigError(
                f"prune={self.prune} must begin with 0 (single tokens all stay), never fall, and have at most "
                f"order={self.order} numbers, such as [0, 1, 2]"
            )


class NPLMConfig(Config, frozen=True, kw_only=True, tag_field="family", tag="nplm"):
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
            _at_least(self, name, least)
        _probabilities(self, "dropout")
        _special_ids(self)


Cell = Literal["tanh", "relu", "lstm", "gru", "peephole"]


class RNNConfig(Config, frozen=True, kw_only=True, tag_field="family", tag="rnn"):
    """A recurrent language model. Default: one Elman layer, as Mikolov et al. 2010 have it."""

    vocab_size: int = 10_000
    n_layers: int = 1
    d_model: int = 200  # of a word's vector, and with tied embeddings of the last layer
    d_hidden: Derived = None  # of the layers; None: d_model
    cell: Cell = "tanh"  # "peephole": an LSTM whose gates see the cell
    tie_embeddings: bool = False  # the unembedding is the embedding
    dropout: float = 0.0  # of what the last layer gives
    dropout_input: DerivedShare = None  # of the words' vectors; None: dropout
    dropout_hidden: DerivedShare = None  # between layers; None: dropout
    dropout_words: float = 0.0  # of whole words of the vocabulary
    dropout_weights: float = 0.0  # of the weights from step to step
    locked: bool = False  # one dropout mask for all steps of a window
    bos_id: int | None = None
    eos_id: int | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "n_layers", "d_model", "d_hidden"):
            _at_least(self, name, 1)
        _one_of(self, cell=Cell)
        for name in ("dropout", "dropout_input", "dropout_hidden", "dropout_words", "dropout_weights"):
            _probabilities(self, name)
        _special_ids(self)

    def resolved(self) -> Self:
        """A copy with every `None` filled in."""
        return msgspec.structs.replace(
            self,
            d_hidden=self.d_hidden or self.d_model,
            dropout_input=self.dropout if self.dropout_input is None else self.dropout_input,
            dropout_hidden=self.dropout if self.dropout_hidden is None else self.dropout_hidden,
        )


class LSTMConfig(RNNConfig, frozen=True, kw_only=True, tag_field="family", tag="lstm"):
    """An LSTM language model. Defaults: the medium one of Zaremba et al. 2014, §4.1."""

    n_layers: int = 2
    d_model: int = 650
    cell: Cell = "lstm"
    dropout: float = 0.5


class Seq2SeqConfig(Config, frozen=True, kw_only=True, tag_field="family", tag="seq2seq"):
    """Two deep LSTMs. Defaults: Sutskever et al. 2014, §3.4, but for one vocabulary for both sides."""

    vocab_size: int = 80_000
    context: int = 128  # longest source and target that are learned from; there is no limit otherwise
    n_layers: int = 4  # of each side
    d_model: int = 1000
    cell: Cell = "lstm"
    reverse: bool = True  # read the source backwards
    tie_embeddings: bool = False
    dropout: float = 0.0
    bos_id: int | None = None
    eos_id: int | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context", "n_layers", "d_model"):
            _at_least(self, name, 1)
        _one_of(self, cell=Cell)
        _probabilities(self, "dropout")
        _special_ids(self)


class BahdanauConfig(Config, frozen=True, kw_only=True, tag_field="family", tag="bahdanau"):
    """Attention, the first. Defaults: RNNsearch (Bahdanau et al. 2015, appendix A.2), one vocabulary for both sides."""

    vocab_size: int = 30_000
    context: int = 128  # longest source and target that are learned from; there is no limit otherwise
    d_model: int = 620  # of a word's vector
    d_hidden: int = 1000  # of each direction of the encoder, and of the decoder
    d_align: Derived = None  # of the network that aligns; None: d_hidden
    d_out: Derived = None  # of the maxout layer before the output; None: 500, or d_model with tied embeddings
    cell: Cell = "gru"
    tie_embeddings: bool = False
    dropout: float = 0.0
    bos_id: int | None = None
    eos_id: int | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context", "d_model", "d_hidden", "d_align", "d_out"):
            _at_least(self, name, 1)
        _one_of(self, cell=Cell)
        _probabilities(self, "dropout")
        _special_ids(self)
        if self.tie_embeddings and self.d_out not in (None, self.d_model):
            raise ConfigError(
                f"d_out={self.d_out} with tied embeddings, which are d_model={self.d_model} wide: leave it out"
            )

    def resolved(self) -> Self:
        """A copy with every `None` filled in."""
        return msgspec.structs.replace(
            self,
            d_align=self.d_align or self.d_hidden,
            d_out=self.d_out or (self.d_model if self.tie_embeddings else 500),
        )


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
}


def model_config(name: str, overrides: Mapping[str, Any] | None = None) -> ModelConfig:
    """The config of a family or preset by exact name, with overrides.

    >>> model_config("gpt2", {"n_layers": 2}).n_layers
    2
    """
    from headway.presets import PRESETS  # presets are made of the classes above

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


# ── runs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class TokenizerConfig(Config, frozen=True, kw_only=True):
    kind: Literal["char", "word", "bpe", "wordpiece", "unigram"] = "bpe"
    vocab_size: int | None = None  # None: 8000, or every word; characters are as many as the text has
    min_frequency: int | None = None  # of words (word) and of pairs to merge (bpe, wordpiece)
    lowercase: bool | None = None  # word, wordpiece
    words: Literal["punctuation", "spaces", "blanks"] | None = None  # word: where words are cut
    special: list[str] = []  # special tokens to add to its own
    path: str | None = None  # use this tokenizer (a file or folder of any kind) instead of training one
    dropout: float = 0.0  # bpe, learning from pairs: the share of merges left out, anew each epoch; 0: none

    def __post_init__(self) -> None:
        _at_least(self, "vocab_size", 1)
        _at_least(self, "min_frequency", 0)
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"tokenizer.dropout={self.dropout} must be at least 0 and below 1")

    @property
    def options(self) -> dict[str, Any]:
        """What the training of its kind is told, beside the size."""
        named = {"min_frequency": self.min_frequency, "lowercase": self.lowercase, "words": self.words}
        return {name: value for name, value in named.items() if value is not None} | {"special": self.special}


class DataConfig(Config, frozen=True, kw_only=True):
    path: str = "pydocs"  # a built-in corpus by name, a file, a folder, a glob, two files as "train.{en,de}", hub:…
    mix: dict[str, float] = {}  # several sources and their weights, in place of path
    root: str | None = None  # relative paths start here; None: $HEADWAY_DATA, then the working directory
    format: Literal["auto", "text", "jsonl", "csv", "tsv", "parquet", "conll", "squad", "lines", "misspellings"] = (
        "auto"
    )
    text: str | None = None  # column of the text, by name or by number from 1
    pairs: str | None = None  # columns of pairs: "source,target"
    label: str | None = None  # column of the label
    target_path: str | None = None  # the file that is parallel to path
    separator: str | None = None  # between the documents of a text file
    scheme: Literal["bio", "iob1", "any"] = "bio"  # how tags are written
    errors: Literal["strict", "replace"] = "strict"  # bytes that are not UTF-8
    valid: float = 0.1  # the share of the text held out; 0, where nothing is learned by steps: none
    test: float = 0.0  # the share held out a second time, never looked at while training
    split: Literal["auto", "hash", "tail"] = "auto"  # documents by hash, or the end of the text
    valid_path: str | None = None  # held-out text of its own
    test_path: str | None = None

    def __post_init__(self) -> None:
        if not (0 <= self.valid < 1 and 0 <= self.test < 1 and self.valid + self.test < 1):
            raise ConfigError(
                f"data.valid={self.valid}, data.test={self.test} are the shares of text held out: each from 0 on, such "
                f"as 0.1, and less than 1 together"
            )
        for path, weight in self.mix.items():
            if not 0 < weight < float("inf"):
                raise ConfigError(f"data.mix: the weight of {path!r} is {weight}, but must be a positive number")


Objective = Literal["auto", "causal", "masked", "pairs", "classify", "tag", "span"]
Optimizer = Literal["adamw", "adam", "sgd", "muon"]
Schedule = Literal["cosine", "linear", "constant", "wsd", "inverse-sqrt", "step"]


class TrainConfig(Config, frozen=True, kw_only=True):
    """Optimisation. Defaults suit a small GPT on a CPU."""

    objective: Objective = "auto"  # what is learned; "auto": what the family is for (gpt causal, bert masked, …)
    label_smoothing: float = 0.0  # the share of each target spread over the vocabulary (Szegedy et al. 2016, §7)
    agreement: float = 0.0  # pairs: see each twice, and pay for what dropout changes (R-Drop, Liang et al. 2021: 5)

    steps: int = 1000
    batch_size: int = 16  # rows a step learns from, over all ranks and pieces
    window: int | None = None  # tokens a row of text learns from at once; None: the model's context, or 64
    carry: bool | Literal["auto"] = "auto"  # rows go on where they ended a step before; "auto": in recurrent models
    max_tokens: int | None = None  # rows of like length, as many as fit this many tokens, in place of batch_size
    accumulate: int = 1  # pieces a rank's rows are cut into, one after the other: less memory, the same step
    max_seconds: float | None = None  # stop, and end the schedule, after this long

    optimizer: Optimizer = "adamw"
    lr: float = 1e-3
    matrix_lr: float | None = None  # muon: of the matrices, in their own units; None: 0.02
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    momentum: float | None = None  # None: 0 for sgd, 0.95 for muon
    grad_clip: float = 1.0  # largest gradient norm; 0 turns clipping off

    schedule: Schedule = "cosine"
    min_lr: float = 0.0  # where cosine, linear and wsd end
    warmup_steps: int = 50
    decay_share: float = 0.2  # wsd: the last share of the run, in which the rate falls
    decay_from: int = 0  # step: the first step at which the rate falls
    decay_every: int = 1000  # step: steps from there to the next fall
    decay_factor: float = 0.5  # step: what the rate is multiplied with

    ema: float = 0.0  # decay of a moving average of the weights, which is then what is scored and saved; 0: none
    average: int = 0  # the last so many checkpoints are averaged at the end; 0: none

    seed: int = 1
    device: str = "auto"  # "auto": CUDA where there is one
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # "auto": bfloat16 on CUDA, float32 elsewhere
    compile: bool | Literal["auto", "blocks", "model"] = "auto"  # "auto": blocks, on CUDA, in batches of one shape
    residual: Literal["float32", "bfloat16"] = "float32"  # of the stream between blocks, where products are bfloat16
    checkpoint_activations: bool = False  # compute each block again on the way back instead of keeping it
    parallel: Literal["none", "ddp", "fsdp"] = "none"  # how the ranks that torchrun starts share the work

    save_every: int = 500  # steps between checkpoints; 0: only at the end
    keep: int = 2  # checkpoints kept, beside the best; 0: all
    log_every: int = 10  # steps between lines of log.jsonl
    track: list[Literal["tensorboard", "wandb"]] = []  # where the log also goes

    def __post_init__(self) -> None:
        for name, least in (
            ("steps", 1),
            ("batch_size", 1),
            ("max_tokens", 1),
            ("accumulate", 1),
            ("warmup_steps", 0),
            ("decay_from", 0),
            ("decay_every", 1),
            ("average", 0),
            ("seed", 0),
            ("save_every", 0),
            ("keep", 0),
            ("log_every", 1),
        ):
            _at_least(self, name, least)
        if self.seed >= 2**31:
            raise ConfigError(f"train.seed={self.seed} must be below 2147483648")
        for name in ("lr", "matrix_lr", "min_lr", "weight_decay", "grad_clip", "eps", "decay_factor", "agreement"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise ConfigError(f"train.{name}={value} must be a number from 0 upwards")
        for name in ("beta1", "beta2", "momentum", "ema", "label_smoothing"):
            if getattr(self, name) is not None and not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"train.{name}={getattr(self, name)} must be at least 0 and below 1")
        if not 0 < self.decay_share <= 1:
            raise ConfigError(f"train.decay_share={self.decay_share} is a share of the run: above 0, at most 1")
        if self.min_lr > self.lr:
            raise ConfigError(f"train.min_lr={self.min_lr} is above train.lr={self.lr}; the schedule falls")
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise ConfigError(f"train.max_seconds={self.max_seconds} must be positive; leave it out for no limit")
        if self.schedule == "inverse-sqrt" and not self.warmup_steps:
            raise ConfigError("train.schedule='inverse-sqrt' falls from the end of its warm-up: set train.warmup_steps")
        for name, fits in (("momentum", ("sgd", "muon")), ("matrix_lr", ("muon",))):
            if getattr(self, name) is not None and self.optimizer not in fits:
                value, others = getattr(self, name), " and ".join(fits)
                raise ConfigError(f"train.{name}={value} is for {others}, not train.optimizer={self.optimizer!r}")
        if self.average and self.average > self.keep > 0:
            raise ConfigError(
                f"train.average={self.average} checkpoints are averaged at the end, but train.keep={self.keep} are "
                f"kept; set train.keep={self.average}"
            )


class EvalConfig(Config, frozen=True, kw_only=True):
    every: int = 0  # steps between evaluations on held-out text; 0: only at the end
    batch_size: int = 16
    metric: Literal["loss", "bleu", "exact"] = "loss"  # what the best is best in; of pairs also what is written
    patience: int = 0  # evaluations without a new best after which training stops; 0: never

    def __post_init__(self) -> None:
        for name in ("every", "patience"):
            _at_least(self, name, 0)
        _at_least(self, "batch_size", 1)
        if self.patience and not self.every:
            raise ConfigError(f"eval.patience={self.patience} counts evaluations: set eval.every, in steps")


class ResultConfig(Config, frozen=True, kw_only=True):
    """What a shipped recipe reaches, beside what was published: read by people, not by the program."""

    metric: str = ""
    target: str = ""  # the published number and where it is from
    ours: str = ""  # our number, with its conditions
    command: str = ""  # which makes it again


DEFAULT_MODEL = "gpt-mini"  # of a recipe that names none: something a laptop can train


class Recipe(Config, frozen=True, kw_only=True):
    """One run: everything needed to repeat it. On disk the `[model]` table may name a preset: `name = "gpt2"`."""

    description: str = ""
    model: ModelConfig = msgspec.field(default_factory=lambda: model_config(DEFAULT_MODEL))
    tokenizer: TokenizerConfig = msgspec.field(default_factory=TokenizerConfig)
    data: DataConfig = msgspec.field(default_factory=DataConfig)
    train: TrainConfig = msgspec.field(default_factory=TrainConfig)
    eval: EvalConfig = msgspec.field(default_factory=EvalConfig)
    result: ResultConfig = msgspec.field(default_factory=ResultConfig)

    def to_toml(self) -> str:
        return tomli_w.dumps(_without_none(msgspec.to_builtins(self)))

    def explained(self) -> str:
        """The same with every setting there is, those that are not set as comments, and what each means."""
        lines = [f"description = {_toml(self.description)}"]
        for table in ("model", "tokenizer", "data", "train", "eval"):
            config = getattr(self, table)
            lines += ["", f"[{table}]"]
            lines += [f"family = {_toml(config.__struct_config__.tag)}"] if table == "model" else []
            notes = _notes(type(config))
            for name in config.__struct_fields__:
                value, note = getattr(config, name), f"  # {notes[name]}" if notes.get(name) else ""
                is_derived = table == "model" and name in ("vocab_size", "bos_id", "eos_id")
                if is_derived:
                    lines.append(f"# {name}: the tokenizer's")
                else:
                    lines.append(f"# {name} ={note}" if value is None else f"{name} = {_toml(value)}{note}")
        return "\n".join(lines) + "\n"


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a TOML file, or a shipped one by name, with `--set` overrides such as "train.steps=100"."""
    file = find_recipe(path)
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        hint = "" if file.suffix == ".toml" else f"; to train on a text: headway train demo --set data.path={file}"
        raise ConfigError(f"{file} is not a recipe in TOML ({error}){hint}") from None
    names = [o for o in overrides if o.partition("=")[0].strip() == "model.name"]
    if names:  # another model: what the recipe says of its own is not for it
        table["model"] = {}
    for override in [*names, *(o for o in overrides if o not in names)]:
        if override.partition("=")[0].strip() == "model.vocab_size":
            raise ConfigError(f"--set {override!r}: a model's vocabulary is its tokenizer's; set tokenizer.vocab_size")
        _set(table, override)
    return recipe_from_table(table)


def recipe_from_table(table: Mapping[str, Any]) -> Recipe:
    model = table.get("model", {})
    if not isinstance(model, Mapping):
        raise ConfigError(f"model={model!r} is not a table; write model.name={model!r}")
    model = dict(model)
    name = model.pop("name", None)
    family = model.pop("family", None)
    if family is not None and family not in FAMILIES:
        near = suggest(str(family), FAMILIES, otherwise=f" Families: {', '.join(FAMILIES)}")
        raise ConfigError(f"no model family {family!r}.{near}")
    config = model_config(name if name is not None else family if family is not None else DEFAULT_MODEL, model)
    if name is not None and family is not None and FAMILIES.get(family) is not type(config):
        raise ConfigError(f"model.name={name!r} is not of model.family={family!r}; give one of the two")
    return build(Recipe, {**table, "model": msgspec.to_builtins(config)})


RECIPES = Path(__file__).parent / "recipes"


def find_recipe(path: str | Path) -> Path:
    """A TOML file, a run folder (its own recipe), or the name of a shipped recipe."""
    file, shipped = Path(path), RECIPES / f"{path}.toml"
    if (file / "recipe.toml").is_file():
        return file / "recipe.toml"
    if file.is_file():
        return file
    if shipped.is_file():
        return shipped
    names = [p.stem for p in sorted(RECIPES.glob("*.toml"))]
    raise ConfigError(
        f"no recipe {str(path)!r}: neither a TOML file nor a shipped recipe."
        + suggest(str(path), names, otherwise=f" Shipped: {', '.join(names)}")
    )


# ── the way in ────────────────────────────────────────────────────────────────────────────────────────────────────


C = TypeVar("C", bound=Config)


def build(kind: type[C], table: Mapping[str, Any], where: str = "") -> C:
    """A config from plain values, with errors that name the key, the rule and the nearest key that exists."""
    try:
        return msgspec.convert(dict(table), kind)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), kind, table, where)) from None


def _explain(message: str, kind: Any, table: Any, where: str) -> str:
    """Say in our words what msgspec says in its own: "Expected `int`, got `str` - at `$.train.steps`"."""
    text, _, location = message.partition(" - at `")
    inner = [part for part in location.rstrip("`").removeprefix("$").split(".") if part]
    path = ".".join(filter(None, [where, *inner]))
    if not text.startswith(("Object contains", "Expected", "Invalid")):
        # A rule of our own, from a __post_init__, which knows the field but not where it is.
        return f"{path}.{text}" if path and re.match(r"\w+=", text) else text
    for part in inner:  # walk to the value that is wrong and the type it should have had
        part, _, index = part.partition("[")
        hint = get_type_hints(kind).get(part)
        table = table.get(part) if isinstance(table, Mapping) else None
        if index and get_origin(hint) is list and isinstance(table, list):
            hint, table = get_args(hint)[0], table[int(index.rstrip("]"))]
        if hint == ModelConfig:
            if not isinstance(table, Mapping) or table.get("family") not in FAMILIES:
                return f"{path}={table!r}: {text[0].lower()}{text[1:]}".replace("`", "")
            hint = FAMILIES[table["family"]]
        kind = hint
    if unknown := re.search(r"unknown field `(.*)`", text):
        names = list(kind.__struct_fields__)
        key = ".".join(filter(None, [path, unknown[1]]))
        near = suggest(unknown[1], names)  # "Did you mean 'steps'?", to be found at "train.steps"
        near = near.replace("'", f"'{path}.", 1) if near and path else near
        return f"no setting {key!r}." + (near or f" There are: {', '.join(names)}")
    if get_origin(kind) is Literal:
        names = list(get_args(kind))
        return f"{path}={table!r} is not one of {', '.join(map(repr, names))}." + suggest(str(table), names)
    return f"{path}={table!r}: {text[0].lower()}{text[1:]}".replace("`", "")


def _set(table: dict[str, Any], override: str) -> None:
    """Apply "a.b=value": the value as TOML reads it, or the text as it stands where TOML cannot."""
    key, equals, raw = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"--set {override!r} is not of the form table.key=value, such as train.steps=100")
    try:
        read = tomllib.loads(f"value = {raw}")
        value = read["value"] if len(read) == 1 else raw.strip()
    except tomllib.TOMLDecodeError:
        value = raw.strip()
    if not isinstance(value, str) and _is_text(parts):
        value = raw.strip()  # such as a column's number
    for part in parts[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {override!r}: {part!r} is a value, not a table")
    table[parts[-1]] = value


def _toml(value: Any) -> str:
    """A value in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").strip()


def _notes(kind: type[Config]) -> dict[str, str]:
    """What the comments beside the fields say: the one place where settings are explained."""
    found: dict[str, str] = {}
    for base in reversed([b for b in kind.__mro__ if issubclass(b, Config)]):
        found |= dict(re.findall(r"^    (\w+): .*?  # (.*)$", inspect.getsource(base), re.MULTILINE))
    return found


def _is_text(parts: Sequence[str]) -> bool:
    """Whether a setting outside of the model's is a text and nothing else."""
    kind: Any = Recipe
    for part in parts:
        kind = get_type_hints(kind).get(part) if hasattr(kind, "__struct_fields__") else None
    return kind is str or (get_origin(kind) in (Union, UnionType) and set(get_args(kind)) == {str, type(None)})


def _at_least(config: Config, name: str, least: int) -> None:
    value = getattr(config, name)
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{name}={value!r} is not a whole number")
    if value < least:
        raise ConfigError(f"{name}={value} must be at least {least}")


def _probabilities(config: Config, name: str) -> None:
    value = getattr(config, name)
    if value is not None and not 0 <= value < 1:
        raise ConfigError(f"{name}={value} is not a probability below 1; 0 turns it off")


def _one_of(config: Config, **choices: Any) -> None:
    """For configs made in Python, whose types nobody checked."""
    for name, kind in choices.items():
        if getattr(config, name) not in get_args(kind):
            names = ", ".join(map(repr, get_args(kind)))
            raise ConfigError(f"{name}={getattr(config, name)!r} is not one of {names}")


def _special_ids(config: Any) -> None:
    for name in ("bos_id", "eos_id"):
        _at_least(config, name, 0)
        value = getattr(config, name)
        if value is not None and value >= config.vocab_size:
            raise ConfigError(f"{name}={value} is outside the vocabulary of {config.vocab_size}")


def _divisors(n: int) -> str:
    return ", ".join(str(d) for d in range(1, n + 1) if n % d == 0)


def _round_up(value: float, multiple: int) -> int:
    return int(-(-value // multiple) * multiple)


def _without_none(value: Any) -> Any:
    """TOML has no null: a field at `None` is left out, and comes back as the default, `None`."""
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return value

"""Create a model by name: `headway.create("gpt2")`. `MODELS` maps family names to classes."""

from typing import Any, Literal, TypeAlias, overload

import torch

from headway.config import (
    FAMILIES,
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
    model_config,
)
from headway.config.choices import CHOICES
from headway.config.presets import PRESETS
from headway.devices import parse_device, parse_dtype
from headway.entry_points import load_declared
from headway.errors import ConfigError, with_article
from headway.memory import check_fits
from headway.models.bag_of_words import BagOfWords
from headway.models.bahdanau import Bahdanau
from headway.models.base import Model
from headway.models.bert import BERT
from headway.models.bilstm import BiLSTM
from headway.models.description import format_count
from headway.models.gpt import GPT
from headway.models.ngram.model import NGram
from headway.models.nplm import NPLM
from headway.models.rnn import RNN
from headway.models.seq2seq import Seq2Seq
from headway.models.transformer import Transformer

MODELS: dict[str, type[Model]] = {
    "gpt": GPT,
    "bert": BERT,
    "transformer": Transformer,
    "ngram": NGram,
    "nplm": NPLM,
    "rnn": RNN,
    "lstm": RNN,
    "seq2seq": Seq2Seq,
    "bahdanau": Bahdanau,
    "bilstm": BiLSTM,
    "bow": BagOfWords,
}

# The names of each class, so that editors complete them and type checkers know what `create` returns.
GPTName = Literal[
    "gpt", "gpt1", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt3-small", "gpt3-medium", "gpt3-large", "gpt3-xl",
    "gpt3-2.7b", "gpt3-6.7b", "gpt3-13b", "gpt3-175b", "llama-7b", "llama-13b", "llama-33b", "llama-65b",
    "llama-2-7b", "llama-2-13b", "llama-2-70b", "llama-3-8b", "llama-3-70b", "llama-3-405b", "gpt-tiny", "gpt-mini",
    "llama-mini",
]  # fmt: skip
BERTName = Literal["bert", "bert-base", "bert-large", "bert-tiny", "bert-small", "bert-medium", "bert-mini"]
TransformerName = Literal["transformer", "transformer-base", "transformer-big", "transformer-mini"]
Device: TypeAlias = str | torch.device
DType: TypeAlias = torch.dtype | str | None


# fmt: off
@overload
def create(name: GPTName | GPTConfig, *, device: Device = ..., dtype: DType = ..., **overrides: Any) -> GPT: ...
@overload
def create(name: BERTName | BERTConfig, *, device: Device = ..., dtype: DType = ..., **overrides: Any) -> BERT: ...
@overload
def create(name: TransformerName | TransformerConfig, *, device: Device = ..., dtype: DType = ...,
           **overrides: Any) -> Transformer: ...
@overload
def create(name: Literal["ngram"] | NGramConfig, *, device: Device = ..., dtype: DType = ...,
           **overrides: Any) -> NGram: ...
@overload
def create(name: Literal["nplm"] | NPLMConfig, *, device: Device = ..., dtype: DType = ...,
           **overrides: Any) -> NPLM: ...
@overload
def create(name: Literal["rnn", "lstm"] | RNNConfig, *, device: Device = ..., dtype: DType = ...,
           **overrides: Any) -> RNN: ...
@overload
def create(name: Literal["seq2seq"] | Seq2SeqConfig, *, device: Device = ..., dtype: DType = ...,
           **overrides: Any) -> Seq2Seq: ...
@overload
def create(name: Literal["bahdanau"] | BahdanauConfig, *, device: Device = ..., dtype: DType = ...,
           **overrides: Any) -> Bahdanau: ...
@overload
def create(name: Literal["bilstm"] | BiLSTMConfig, *, device: Device = ..., dtype: DType = ...,
           **overrides: Any) -> BiLSTM: ...
@overload
def create(name: Literal["bow"] | BagOfWordsConfig, *, device: Device = ..., dtype: DType = ...,
           **overrides: Any) -> BagOfWords: ...
@overload
def create(name: str | ModelConfig, *, device: Device = ..., dtype: DType = ..., **overrides: Any) -> Model: ...
# fmt: on


def create(name: str | ModelConfig, *, device: Device = "cpu", dtype: DType = None, **overrides: Any) -> Model:
    """A new model of a family or preset, randomly initialised from torch's global generator.

    >>> create("gpt2", n_layers=2, device="meta").n_params
    53561088
    """
    if not isinstance(name, ModelConfig):
        load_declared("family", name, {*FAMILIES, *PRESETS})
    load_declared("attention", overrides.get("attention"), CHOICES["attention"])
    config = name.replace(**overrides) if isinstance(name, ModelConfig) else model_config(name, overrides)
    model = empty_model(config)  # so nothing is allocated or initialised twice
    model.to(parse_dtype(dtype))
    if str(device) != "meta":
        target = parse_device(device)
        if target.type == "cpu":
            n_bytes = sum(tensor.nbytes for tensor in model.state_dict().values())
            check_fits(n_bytes, f"{with_article(model.display_name)} of {format_count(model.n_params)} parameters")
        model.to_empty(device=target)
        model.init_weights()
    return model


def empty_model(config: ModelConfig) -> Model:
    """A model on the meta device: shapes without data."""
    try:
        with torch.device("meta"):
            return MODELS[config.family](config)
    except (RuntimeError, OverflowError) as error:
        if "overflow" not in str(error).lower():
            raise
        raise ConfigError(
            f"the sizes of this {config.family} are too large: a tensor would have more than 2^63 bytes"
        ) from None

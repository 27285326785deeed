"""Create a model by name: `headway.create("gpt2")`. `MODELS` maps family names to classes."""

from typing import Any

import torch

from headway.config import ModelConfig, model_config
from headway.devices import parse_device, parse_dtype
from headway.models.bahdanau import Bahdanau
from headway.models.base import Model
from headway.models.bert import BERT
from headway.models.bilstm import BiLSTM
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
}


def create(
    name: str | ModelConfig,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str | None = None,
    **overrides: Any,
) -> Model:
    """A new model of a family or preset, randomly initialised from torch's global generator.

    >>> create("gpt2", n_layers=2, device="meta").n_params
    53561088
    """
    config = name.replace(**overrides) if isinstance(name, ModelConfig) else model_config(name, overrides)
    with torch.device("meta"):  # so nothing is allocated or initialised twice
        model = MODELS[config.family](config)
    model.to(parse_dtype(dtype))
    if str(device) != "meta":
        model.to_empty(device=parse_device(device))
        model.init_weights()
    return model

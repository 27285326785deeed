"""Who is compared: the models of the lectures in the order of their years, each at a size one asks for.

A template is a recipe's `[model]` and `[train]` with one open number, the width; `scale_to_params` finds the width that
gives the parameter count asked for. Data, tokenizer and budget are shared by all models of a comparison (budget.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headway.config import ModelConfig, model_config
from headway.errors import ConfigError
from headway.models import create

STEP = 8  # widths are multiples of it: every number of heads used here divides it
WIDEST = 16_384


@dataclass(frozen=True)
class ModelTemplate:
    year: int
    title: str
    model: Callable[[int], dict[str, Any]]  # of a width
    train: dict[str, Any] = field(default_factory=dict)

    @property
    def family(self) -> str:
        return str(self.model(STEP)["family"])

    @property
    def is_open(self) -> bool:
        """Whether it has a width to choose; a model that counts is as large as what it counts."""
        return self.model(STEP) != self.model(2 * STEP)


def _gpt(width: int, **parts: Any) -> dict[str, Any]:
    return {"family": "gpt", "n_layers": 4, "n_heads": 4, "d_model": width, "dropout": 0.0, **parts}


_SHORT = {"window": 48}  # tokens that learning goes back through: more steps, which is what recurrent models lack
_MUON = {"optimizer": "muon", "lr": 4e-3}  # in half a minute 0.3 bits per byte better than AdamW

# What language models were made of. Rates are the best of a few, for a million parameters and a minute of two cores.
TEXT: dict[str, ModelTemplate] = {
    "ngram": ModelTemplate(
        1998, "5-grams, modified Kneser-Ney (Chen & Goodman)", lambda width: {"family": "ngram", "order": 5}
    ),
    "nplm": ModelTemplate(
        2003,
        "a window of words into a tanh layer (Bengio et al.)",
        lambda width: {"family": "nplm", "order": 8, "d_model": width, "d_hidden": 4 * width},
        {"lr": 4e-3},
    ),
    "rnn": ModelTemplate(
        2010,
        "an Elman network (Mikolov et al.)",
        lambda width: {"family": "rnn", "d_model": width, "tie_embeddings": True},
        {"lr": 4e-3, **_SHORT},
    ),
    "lstm": ModelTemplate(
        2012,
        "a layer of LSTM (Sundermeyer et al.)",
        lambda width: {"family": "lstm", "n_layers": 1, "d_model": width, "tie_embeddings": True, "dropout": 0.0},
        {"lr": 1e-2, **_SHORT},
    ),
    "gru": ModelTemplate(
        2014,
        "a layer of gated units (Cho et al.)",
        lambda width: {"family": "rnn", "cell": "gru", "d_model": width, "tie_embeddings": True},
        {"lr": 8e-3, **_SHORT},
    ),
    "gpt": ModelTemplate(2018, "four blocks, as GPT-2 has them (Radford et al.)", _gpt, _MUON),
    "llama": ModelTemplate(
        2023,
        "the same with rotary positions, RMS norms, SwiGLU (Touvron et al.)",
        lambda width: _gpt(width, positions="rotary", norm="rms", feed_forward="swiglu", bias=False),
        _MUON,
    ),
}

PAIRS: dict[str, ModelTemplate] = {
    "seq2seq": ModelTemplate(
        2014,
        "two layers of LSTM read, two write (Sutskever et al.)",
        lambda width: {
            "family": "seq2seq",
            "n_layers": 2,
            "d_model": width,
            "tie_embeddings": True,
        },
        {"lr": 5e-3},
    ),
    "bahdanau": ModelTemplate(
        2015,
        "the decoder looks back (Bahdanau et al.)",
        lambda width: {"family": "bahdanau", "d_model": width, "d_hidden": 2 * width, "tie_embeddings": True},
        {"lr": 5e-3},
    ),
    "transformer": ModelTemplate(
        2017,
        "attention alone (Vaswani et al.)",
        lambda width: {
            "family": "transformer",
            "n_layers": 2,
            "n_heads": 4,
            "d_model": width,
            "dropout": 0.0,
            "norm_order": "pre",
        },
        {"lr": 3e-3},
    ),
}


def scale_to_params(contestant: ModelTemplate, n_params: int, **given: Any) -> ModelConfig:
    """The config whose parameters are nearest to so many; `given`: what is settled, such as the vocabulary's size."""

    def config(width: int) -> ModelConfig:
        table = {**contestant.model(width), **given}
        return model_config(table.pop("family"), table)

    def size(width: int) -> int:
        return create(config(width), device="meta").n_params

    if not contestant.is_open or "d_model" in given:
        return config(given.get("d_model", STEP))
    least = size(STEP)
    if least > 2 * n_params:
        raise ConfigError(
            f"{n_params:,} parameters are too few for {contestant.title} over {given.get('vocab_size'):,} tokens, "
            f"which has at least {least:,}: set a smaller tokenizer.vocab_size, or more parameters"
        )
    if size(WIDEST) < n_params:
        raise ConfigError(f"{n_params:,} parameters are too many for {contestant.title}: at most {size(WIDEST):,}")
    low, high = 1, WIDEST // STEP
    while low < high:  # the widest that is not above
        middle = (low + high + 1) // 2
        low, high = (middle, high) if size(middle * STEP) <= n_params else (low, middle - 1)
    width = min((low * STEP, (low + 1) * STEP), key=lambda width: abs(size(width) - n_params))
    return config(width)

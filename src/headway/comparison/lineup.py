"""The models of the lectures in the order of their years, each at any size.

A template is a recipe's `[model]` and `[train]` with one free number, the width. `scale_to_params` finds the width
whose parameter count is nearest to the one you ask for. Data, tokenizer and budget are shared by all models of a
comparison (budget.py). A template with `init_from` starts from weights, so it has their size and their tokenizer.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from headway.config import FAMILIES, ModelConfig, model_config
from headway.config.recipe_loading import FAMILY_LR
from headway.errors import ConfigError
from headway.models import MODELS, create

WIDTH_STEP = 8  # widths are multiples of it, so every number of heads used here divides them
MAX_WIDTH = 16_384


@dataclass(frozen=True)
class ModelTemplate:
    """A model of the lectures whose width is still free, and the training settings that suit it."""

    year: int | None  # None for a family that a plug-in registers
    title: str
    model: Callable[[int], dict[str, Any]]  # width → the recipe's [model] table
    train: dict[str, Any] = field(default_factory=dict)  # the recipe's [train] table
    init_from: str | None = None  # start from these weights

    @property
    def family(self) -> str:
        return str(self.model(WIDTH_STEP)["family"])

    @property
    def is_scalable(self) -> bool:
        """Whether the template has a width. The size of an n-gram follows from the text."""
        return self.model(WIDTH_STEP) != self.model(2 * WIDTH_STEP)


def _gpt(width: int, **overrides: Any) -> dict[str, Any]:
    return {"family": "gpt", "n_layers": 4, "n_heads": 4, "d_model": width, "dropout": 0.0, **overrides}


_SHORT_BPTT = {"seq_len": 48}  # shorter backpropagation through time buys more steps, which recurrent models need
_MUON = {"optimizer": "muon", "lr": 4e-3}  # after half a minute, 0.3 bits per byte better than AdamW

# Learning rates are the best of a few tried at a million parameters and one minute on two CPU cores.
TEXT_TEMPLATES: dict[str, ModelTemplate] = {
    "ngram": ModelTemplate(
        1998,
        "5-gram, modified Kneser-Ney smoothing (Chen & Goodman)",
        lambda width: {"family": "ngram", "order": 5},
    ),
    "nplm": ModelTemplate(
        2003,
        "feed-forward network over the last 7 tokens (Bengio et al.)",
        lambda width: {"family": "nplm", "order": 8, "d_model": width, "d_hidden": 4 * width},
        {"lr": 4e-3},
    ),
    "rnn": ModelTemplate(
        2010,
        "Elman RNN (Mikolov et al.)",
        lambda width: {"family": "rnn", "d_model": width, "tie_embeddings": True},
        {"lr": 4e-3, **_SHORT_BPTT},
    ),
    "lstm": ModelTemplate(
        2012,
        "one-layer LSTM (Sundermeyer et al.)",
        lambda width: {"family": "lstm", "n_layers": 1, "d_model": width, "tie_embeddings": True, "dropout": 0.0},
        {"lr": 1e-2, **_SHORT_BPTT},
    ),
    "gru": ModelTemplate(
        2014,
        "one-layer GRU (Cho et al.)",
        lambda width: {"family": "rnn", "cell": "gru", "d_model": width, "tie_embeddings": True},
        {"lr": 8e-3, **_SHORT_BPTT},
    ),
    "gpt": ModelTemplate(2018, "GPT-2 with 4 blocks (Radford et al.)", _gpt, _MUON),
    "llama": ModelTemplate(
        2023,
        "the same with rotary positions, RMSNorm and SwiGLU (Touvron et al.)",
        lambda width: _gpt(width, positions="rotary", norm="rms", feed_forward="swiglu", bias=False),
        _MUON,
    ),
}

PAIR_TEMPLATES: dict[str, ModelTemplate] = {
    "seq2seq": ModelTemplate(
        2014,
        "two-layer LSTM encoder and decoder (Sutskever et al.)",
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
        "recurrent encoder-decoder with additive attention (Bahdanau et al.)",
        lambda width: {"family": "bahdanau", "d_model": width, "d_hidden": 2 * width, "tie_embeddings": True},
        {"lr": 5e-3},
    ),
    "transformer": ModelTemplate(
        2017,
        "encoder-decoder of attention alone (Vaswani et al.)",
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

# For labelled texts and for tagged words. Learning rates are the best of a few tried on IMDB.
ENCODER_TEMPLATES: dict[str, ModelTemplate] = {
    "bow": ModelTemplate(
        2012,
        "bag of words and bigrams (Wang & Manning; embedded as by Joulin et al. 2017)",
        lambda width: {"family": "bow"},
        {"lr": FAMILY_LR["bow"]},
    ),
    "bilstm": ModelTemplate(
        2015,
        "bidirectional LSTM (Huang et al.)",
        lambda width: {"family": "bilstm", "d_model": width, "d_hidden": width, "pooling": "max", "dropout": 0.3},
        {"lr": 2e-3},
    ),
    "bert": ModelTemplate(
        2019,
        "BERT with 4 blocks, from random weights (Devlin et al.)",
        lambda width: {"family": "bert", "n_layers": 4, "n_heads": 4, "d_model": width, "norm_order": "pre"},
        {"lr": 1e-3},
    ),
    "minilm": ModelTemplate(
        2020,
        "BERT with 6 blocks, from pre-trained weights (Wang et al.)",
        lambda width: {"family": "bert"},
        {"lr": 1e-4},
        init_from="minilm",
    ),
}

LINEUPS = {  # by the kind of data
    "text": TEXT_TEMPLATES,
    "pairs": PAIR_TEMPLATES,
    "labelled": ENCODER_TEMPLATES,
    "tagged": ENCODER_TEMPLATES,
}


def registered_template(family: str) -> ModelTemplate:
    """The template of a family that a plug-in registers: scaled by its `d_model`, if it has one."""
    is_scalable = "d_model" in FAMILIES[family].__struct_fields__
    title = (MODELS[family].__doc__ or family).strip().partition("\n")[0].rstrip(".")
    return ModelTemplate(None, title, lambda width: {"family": family} | ({"d_model": width} if is_scalable else {}))


def scale_to_params(template: ModelTemplate, n_params: int, **overrides: Any) -> ModelConfig:
    """The config whose parameter count is nearest to `n_params`; `overrides` are fixed fields such as vocab_size."""

    def config(width: int) -> ModelConfig:
        table = {**template.model(width), **overrides}
        return model_config(table.pop("family"), table)

    @cache
    def size(width: int) -> int:
        return create(config(width), device="meta").n_params

    if not template.is_scalable or "d_model" in overrides:
        return config(overrides.get("d_model", WIDTH_STEP))
    smallest = size(WIDTH_STEP)
    if smallest > 2 * n_params:
        raise ConfigError(
            f"{n_params:,} parameters are too few for {template.title} with a vocabulary of "
            f"{overrides.get('vocab_size'):,} tokens, which has at least {smallest:,}: set a smaller "
            f"tokenizer.vocab_size, or raise --params"
        )
    if (largest := size(MAX_WIDTH)) < n_params:
        raise ConfigError(f"{n_params:,} parameters are too many for {template.title}: at most {largest:,}")
    low, high = 1, MAX_WIDTH // WIDTH_STEP
    while low < high:  # bisect for the widest model with at most n_params
        middle = (low + high + 1) // 2
        low, high = (middle, high) if size(middle * WIDTH_STEP) <= n_params else (low, middle - 1)
    width = min((low * WIDTH_STEP, (low + 1) * WIDTH_STEP), key=lambda width: abs(size(width) - n_params))
    return config(width)

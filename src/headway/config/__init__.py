"""Frozen configs for models, tokenizers, data and training; importing them does not import torch.

Each source of settings overrides the one before it:

    defaults → preset → TOML file → `--set train.steps=100`

An unknown key is an error with a suggestion.
"""

from headway.config.base import Config, build
from headway.config.models import (
    FAMILIES,
    BagOfWordsConfig,
    BahdanauConfig,
    BERTConfig,
    BiLSTMConfig,
    GPTConfig,
    LSTMConfig,
    ModelConfig,
    NGramConfig,
    NPLMConfig,
    RNNConfig,
    Seq2SeqConfig,
    StackConfig,
    TransformerConfig,
    model_config,
)
from headway.config.recipe import DataConfig, EvalConfig, Recipe, TokenizerConfig, TrainConfig
from headway.config.recipe_loading import RECIPES, as_recipe, find_recipe, load_recipe, recipe_from_table

__all__ = [
    "FAMILIES",
    "RECIPES",
    "BERTConfig",
    "BagOfWordsConfig",
    "BahdanauConfig",
    "BiLSTMConfig",
    "Config",
    "DataConfig",
    "EvalConfig",
    "GPTConfig",
    "LSTMConfig",
    "ModelConfig",
    "NGramConfig",
    "NPLMConfig",
    "RNNConfig",
    "Recipe",
    "Seq2SeqConfig",
    "StackConfig",
    "TokenizerConfig",
    "TrainConfig",
    "TransformerConfig",
    "as_recipe",
    "build",
    "find_recipe",
    "load_recipe",
    "model_config",
    "recipe_from_table",
]

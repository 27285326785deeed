"""Headway: the models of the Transformer lectures in one readable, fast library and command line.

    model = headway.create("gpt2")            # a family or a preset, with overrides
    model = headway.load("runs/demo")         # a model directory or a run
    for token in headway.generate(model, "Once upon"):
        print(token.text, end="")             # as it is sampled; `headway.complete` returns whole texts

Names are loaded when first used, so that `import headway` is instant.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

__version__ = "0.1.0"

# Public name → the module that holds it.
_PUBLIC = {
    "create": "headway.models",
    "load": "headway.models",
    "MODELS": "headway.models",
    "PRESETS": "headway.config.presets",
    "generate": "headway.generation.generate",
    "complete": "headway.generation.complete",
    "translate": "headway.generation.translate",
    "classify": "headway.prediction.classify",
    "answer": "headway.prediction.answer",
    "fill": "headway.prediction.fill",
    "embed": "headway.prediction.embed",
    "tag": "headway.prediction.tag",
    "train": "headway.training.train",
    "compare": "headway.comparison.compare",
    "evaluate": "headway.evaluation.perplexity",
    "score": "headway.analysis.token_scores",
    "check_contract": "headway.evaluation.contract",
    "load_recipe": "headway.config",
    "open_run": "headway.run_reader",
    "sweep": "headway.sweeps.sweep",
    "load_tokenizer": "headway.tokenizers",
    "register": "headway.plugins",
    "HeadwayError": "headway.errors",
    "ConfigError": "headway.errors",
    "InputError": "headway.errors",
    "DataError": "headway.errors",
    "CheckpointError": "headway.errors",
}
__all__ = sorted(_PUBLIC)  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from headway import analysis as analysis
    from headway import comparison as comparison
    from headway import config as config
    from headway import costs as costs
    from headway import data as data
    from headway import device_rates as device_rates
    from headway import devices as devices
    from headway import display as display
    from headway import entry_points as entry_points
    from headway import errors as errors
    from headway import evaluation as evaluation
    from headway import exercises as exercises
    from headway import file_reading as file_reading
    from headway import files as files
    from headway import generation as generation
    from headway import installed_files as installed_files
    from headway import memory as memory
    from headway import models as models
    from headway import nn as nn
    from headway import plugins as plugins
    from headway import prediction as prediction
    from headway import run_reader as run_reader
    from headway import run_table as run_table
    from headway import runs as runs
    from headway import sampling as sampling
    from headway import sweeps as sweeps
    from headway import tables as tables
    from headway import tokenizers as tokenizers
    from headway import training as training
    from headway.analysis.token_scores import score as score
    from headway.comparison.compare import compare as compare
    from headway.config import load_recipe as load_recipe
    from headway.config.presets import PRESETS as PRESETS
    from headway.errors import CheckpointError as CheckpointError
    from headway.errors import ConfigError as ConfigError
    from headway.errors import DataError as DataError
    from headway.errors import HeadwayError as HeadwayError
    from headway.errors import InputError as InputError
    from headway.evaluation.contract import check_contract as check_contract
    from headway.evaluation.perplexity import evaluate as evaluate
    from headway.generation.complete import complete as complete
    from headway.generation.generate import generate as generate
    from headway.generation.translate import translate as translate
    from headway.models import MODELS as MODELS
    from headway.models import create as create
    from headway.models import load as load
    from headway.plugins import register as register
    from headway.prediction.answer import answer as answer
    from headway.prediction.classify import classify as classify
    from headway.prediction.embed import embed as embed
    from headway.prediction.fill import fill as fill
    from headway.prediction.tag import tag as tag
    from headway.run_reader import open_run as open_run
    from headway.sweeps.sweep import sweep as sweep
    from headway.tokenizers import load_tokenizer as load_tokenizer
    from headway.training.train import train as train
else:  # hidden from type checkers, for which a misspelt name would otherwise be any object

    def __getattr__(name: str) -> object:
        if name in _PUBLIC:
            return getattr(import_module(_PUBLIC[name]), name)
        if name in _modules():
            return import_module(f"headway.{name}")
        from headway.errors import suggest

        near = suggest(name, __dir__(), otherwise=f" It has: {', '.join(__all__)}")
        raise AttributeError(f"module 'headway' has no attribute {name!r}.{near}")


def _modules() -> set[str]:
    """The modules and packages of the library."""
    return {module.name for module in iter_modules(__path__)} - {"cli", "__main__"}


def __dir__() -> list[str]:
    return sorted([*__all__, *_modules(), "__version__"])

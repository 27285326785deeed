"""Headway: the models of the Transformer lectures in one readable, fast library and command line.

    model = headway.create("gpt2")            # a family or a preset, with overrides
    model = headway.load("runs/demo")         # a model directory or a run
    for token in headway.generate(model, "Once upon"):
        print(token.text, end="")

Names are loaded when first used, so that `import headway` is instant.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

# Public name → the module that holds it.
_PUBLIC = {
    "create": "headway.models",
    "load": "headway.models",
    "MODELS": "headway.models",
    "PRESETS": "headway.config.presets",
    "generate": "headway.generation.generate",
    "translate": "headway.generation.translate",
    "train": "headway.training.train",
    "compare": "headway.comparison.compare",
    "evaluate": "headway.evaluation.perplexity",
    "load_recipe": "headway.config",
    "load_tokenizer": "headway.tokenizers",
    "HeadwayError": "headway.errors",
    "ConfigError": "headway.errors",
    "InputError": "headway.errors",
    "DataError": "headway.errors",
    "CheckpointError": "headway.errors",
}
_MODULES = ("analysis", "comparison", "config", "costs", "data", "errors", "evaluation", "generation", "models", "nn",
            "runs", "sampling", "tokenizers", "training")  # fmt: skip
__all__ = sorted(_PUBLIC)  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from headway.comparison.compare import compare as compare
    from headway.config import load_recipe as load_recipe
    from headway.config.presets import PRESETS as PRESETS
    from headway.errors import CheckpointError as CheckpointError
    from headway.errors import ConfigError as ConfigError
    from headway.errors import DataError as DataError
    from headway.errors import HeadwayError as HeadwayError
    from headway.errors import InputError as InputError
    from headway.evaluation.perplexity import evaluate as evaluate
    from headway.generation.generate import generate as generate
    from headway.generation.translate import translate as translate
    from headway.models import MODELS as MODELS
    from headway.models import create as create
    from headway.models import load as load
    from headway.tokenizers import load_tokenizer as load_tokenizer
    from headway.training.train import train as train


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    if name in _MODULES:
        return import_module(f"headway.{name}")
    raise AttributeError(f"module 'headway' has no attribute {name!r}; it has: {', '.join(__all__)}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

"""Headway: the Transformer lectures as one small, readable, fast library, command line and server.

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
    "PRESETS": "headway.presets",
    "generate": "headway.generation",
    "translate": "headway.translation",
    "train": "headway.training",
    "compare": "headway.comparison",
    "evaluate": "headway.training",
    "load_recipe": "headway.config",
    "load_tokenizer": "headway.tokenizers",
    "HeadwayError": "headway.errors",
    "ConfigError": "headway.errors",
    "InputError": "headway.errors",
    "DataError": "headway.errors",
    "CheckpointError": "headway.errors",
}
__all__ = sorted(_PUBLIC)  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from headway.comparison import compare as compare
    from headway.config import load_recipe as load_recipe
    from headway.errors import CheckpointError as CheckpointError
    from headway.errors import ConfigError as ConfigError
    from headway.errors import DataError as DataError
    from headway.errors import HeadwayError as HeadwayError
    from headway.errors import InputError as InputError
    from headway.generation import generate as generate
    from headway.models import MODELS as MODELS
    from headway.models import create as create
    from headway.models import load as load
    from headway.presets import PRESETS as PRESETS
    from headway.tokenizers import load_tokenizer as load_tokenizer
    from headway.training import evaluate as evaluate
    from headway.training import train as train
    from headway.translation import translate as translate


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    if name in {
        "nn",
        "models",
        "tokenizers",
        "data",
        "sampling",
        "training",
        "costs",
        "trace",
        "config",
        "decoding",
        "generation",
        "engine",
        "search",
        "errors",
        "presets",
    }:
        return import_module(f"headway.{name}")
    raise AttributeError(f"module 'headway' has no attribute {name!r}; it has: {', '.join(__all__)}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

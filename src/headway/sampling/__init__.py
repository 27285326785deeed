"""Choosing the next token: pure functions on logits, independent of any model.

`SAMPLERS` holds every sampler, `Pipeline` applies them in the order you choose, `find_stop` and `safe_length` handle
stop strings.
Names load on first use: the table of samplers (specs.py) and stop strings need no torch.
"""

# ruff: noqa: F401 (the imports are for type checkers)

from importlib import import_module
from typing import TYPE_CHECKING

# Public name → the module that holds it.
_PUBLIC = {
    name: f"headway.sampling.{module}"
    for module, names in {
        "drawing": "GREEDY_BELOW draw greedy",
        "history": "History",
        "pipeline": "PerRowPipeline Pipeline SamplerState",
        "samplers": "SAMPLERS Sampler",
        "specs": "FLAT_NAMES ORDER_PRESETS SAMPLER_SPECS SamplerSpec",
        "stop_strings": "StopMatch check_stop_strings find_stop partial_stop_length safe_length",
    }.items()
    for name in names.split()
}
__all__ = sorted(_PUBLIC)  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from headway.sampling.drawing import GREEDY_BELOW, draw, greedy
    from headway.sampling.history import History
    from headway.sampling.pipeline import PerRowPipeline, Pipeline, SamplerState
    from headway.sampling.samplers import SAMPLERS, Sampler
    from headway.sampling.specs import FLAT_NAMES, ORDER_PRESETS, SAMPLER_SPECS, SamplerSpec
    from headway.sampling.stop_strings import StopMatch, check_stop_strings, find_stop, partial_stop_length, safe_length


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'headway.sampling' has no attribute {name!r}")

"""Choosing the next token: pure functions on logits, independent of any model.

`SAMPLERS` holds every sampler, `Pipeline` applies them in the order you choose, `find_stop` and `safe_length` handle
stop strings.
Names load on first use: the table of samplers (specs.py) and stop strings need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

# Public name → the module that holds it.
_PUBLIC = {
    name: f"headway.sampling.{module}"
    for module, names in {
        "drawing": "GREEDY_BELOW draw greedy",
        "history": "History",
        "parameters": "IntParam NumberParam",
        "pipeline": "PerRowPipeline Pipeline SamplerState",
        "samplers": "SAMPLERS Sampler",
        "specs": "FLAT_NAMES ORDER_PRESETS SAMPLER_SPECS SamplerSpec",
        "stop_strings": "StopMatch check_stop_strings find_stop partial_stop_length safe_length",
    }.items()
    for name in names.split()
}
__all__ = sorted(_PUBLIC)  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from headway.sampling.drawing import GREEDY_BELOW as GREEDY_BELOW
    from headway.sampling.drawing import draw as draw
    from headway.sampling.drawing import greedy as greedy
    from headway.sampling.history import History as History
    from headway.sampling.parameters import IntParam as IntParam
    from headway.sampling.parameters import NumberParam as NumberParam
    from headway.sampling.pipeline import PerRowPipeline as PerRowPipeline
    from headway.sampling.pipeline import Pipeline as Pipeline
    from headway.sampling.pipeline import SamplerState as SamplerState
    from headway.sampling.samplers import SAMPLERS as SAMPLERS
    from headway.sampling.samplers import Sampler as Sampler
    from headway.sampling.specs import FLAT_NAMES as FLAT_NAMES
    from headway.sampling.specs import ORDER_PRESETS as ORDER_PRESETS
    from headway.sampling.specs import SAMPLER_SPECS as SAMPLER_SPECS
    from headway.sampling.specs import SamplerSpec as SamplerSpec
    from headway.sampling.stop_strings import StopMatch as StopMatch
    from headway.sampling.stop_strings import check_stop_strings as check_stop_strings
    from headway.sampling.stop_strings import find_stop as find_stop
    from headway.sampling.stop_strings import partial_stop_length as partial_stop_length
    from headway.sampling.stop_strings import safe_length as safe_length
else:  # hidden from type checkers, for which a misspelt name would otherwise be any object

    def __getattr__(name: str) -> object:
        if name in _PUBLIC:
            return getattr(import_module(_PUBLIC[name]), name)
        raise AttributeError(f"module 'headway.sampling' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Choosing the next token: pure functions on logits that never see a model.

`SAMPLERS` holds every stage, `Pipeline` applies them in the order you say, `find_stop` and `safe_length` end texts.
"""

from headway.sampling.drawing import GREEDY_BELOW, draw, greedy
from headway.sampling.history import History
from headway.sampling.pipeline import PerRowPipeline, Pipeline, SamplerState
from headway.sampling.samplers import PRESETS, SAMPLERS, Sampler
from headway.sampling.settings import FLAT
from headway.sampling.stop_strings import StopMatch, check_stop_strings, find_stop, partial_stop_length, safe_length

__all__ = [
    "FLAT",
    "GREEDY_BELOW",
    "PRESETS",
    "SAMPLERS",
    "History",
    "PerRowPipeline",
    "Pipeline",
    "Sampler",
    "SamplerState",
    "StopMatch",
    "check_stop_strings",
    "draw",
    "find_stop",
    "greedy",
    "partial_stop_length",
    "safe_length",
]

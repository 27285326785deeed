"""Costs of a model, computed from its config alone: parameters, FLOPs and memory. Nothing here imports torch."""

from headway.costs.flops import PEAK_FLOPS, flops_per_token, peak_flops
from headway.costs.memory import Memory, parameter_copies, training_memory
from headway.costs.parameters import count_parameters, largest_setting

__all__ = [
    "PEAK_FLOPS",
    "Memory",
    "count_parameters",
    "flops_per_token",
    "largest_setting",
    "parameter_copies",
    "peak_flops",
    "training_memory",
]

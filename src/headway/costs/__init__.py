"""What a model costs, from its config alone: floating-point operations and bytes. No torch here."""

from headway.costs.flops import PEAK_FLOPS, flops_per_token, peak_flops
from headway.costs.memory import Memory, training_memory

__all__ = ["PEAK_FLOPS", "Memory", "flops_per_token", "peak_flops", "training_memory"]

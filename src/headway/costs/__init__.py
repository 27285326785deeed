"""Training costs of a model, computed from its config alone: FLOPs and memory. Nothing here imports torch."""

from headway.costs.flops import PEAK_FLOPS, flops_per_token, peak_flops
from headway.costs.memory import Memory, training_memory

__all__ = ["PEAK_FLOPS", "Memory", "flops_per_token", "peak_flops", "training_memory"]

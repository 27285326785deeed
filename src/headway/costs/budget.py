"""Budgets of training: FLOPs, tokens, time and devices.

C = 6 N D                  FLOPs for N parameters and D tokens (Kaplan et al. 2020)
D = 20 N                   the compute-optimal number of tokens (Hoffmann et al. 2022, Table 3)
seconds = C / (devices × peak FLOPS × MFU)
"""

from dataclasses import dataclass
from math import ceil

from headway.costs.devices import DeviceSpec
from headway.costs.memory import Memory

TOKENS_PER_PARAMETER = 20  # Hoffmann et al. 2022 ("Chinchilla")
DEFAULT_MFU = 0.4  # of a well-tuned run: 38 to 43 % (Grattafiori et al. 2024, Table 4)
USABLE_MEMORY = 0.9  # the rest is the allocator's and the driver's


@dataclass(frozen=True)
class TrainingBudget:
    n_params: int
    n_tokens: int

    @staticmethod
    def compute_optimal(n_params: int) -> "TrainingBudget":
        return TrainingBudget(n_params, TOKENS_PER_PARAMETER * n_params)

    @property
    def flops(self) -> int:
        """6 N D"""
        return 6 * self.n_params * self.n_tokens

    def seconds(self, device: DeviceSpec, n_devices: int, *, mfu: float = DEFAULT_MFU) -> float | None:
        """In bfloat16, or in float32 where the device has no rate for it; None if neither is known."""
        peak = device.peak("bfloat16") or device.peak("float32")
        return self.flops / (n_devices * peak * mfu) if peak else None


def parallelism(memory: Memory, device: DeviceSpec, n_devices: int) -> str:
    """How to spread training over devices, as a sentence. `memory` is what one device needs without sharding."""
    usable = USABLE_MEMORY * device.memory
    if memory.total <= usable:
        return "fits on one device" if n_devices == 1 else "use DDP: the whole training state fits on each device"
    sharded = 2 * memory.weights + memory.optimizer_state + memory.ema  # all gradients are as large as the weights
    fixed = memory.weight_copies + memory.activations + memory.logits
    if memory.activations > usable:
        return "activations do not fit: reduce the batch size, or set train.checkpoint_activations=true"
    if fixed >= usable:
        return f"{fixed / 1e9:,.0f} GB per device cannot be sharded by FSDP: it needs tensor or pipeline parallelism"
    n_needed = ceil(sharded / (usable - fixed))
    if n_needed <= n_devices:
        return f"use FSDP: {sharded / 1e9:,.0f} GB of state over {n_devices} devices (at least {n_needed})"
    return f"needs more devices: FSDP over at least {n_needed} × {device.name}, or tensor and pipeline parallelism"

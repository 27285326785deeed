"""Budgets of training: FLOPs, tokens, time and devices.

C = 6 N D                  FLOPs for N parameters and D tokens (Kaplan et al. 2020)
D = 20 N                   the compute-optimal number of tokens (Hoffmann et al. 2022, Table 3)
seconds = C / (devices × peak FLOP/s × MFU)
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

    def seconds(self, peak: float, n_devices: int, *, mfu: float = DEFAULT_MFU) -> float:
        """`peak`: FLOP/s of one device, in the dtype of training."""
        return self.flops / (n_devices * peak * mfu)


def parallelism(memory: Memory, checkpointed: Memory, device: DeviceSpec, n_devices: int, batch_size: int) -> str:
    """How to spread training over devices, as a sentence. `memory` is what one device needs for its batch without
    sharding, `checkpointed` the same with activation checkpointing."""
    usable = USABLE_MEMORY * device.memory
    for needs, setting in ((memory, ""), (checkpointed, " with train.checkpoint_activations=true")):
        if needs.total <= usable:
            if n_devices == 1:
                return f"fits on one device{setting}"
            return f"use DDP{setting}: the whole training state fits on each device"
        if n_devices > 1 and (n_needed := _fsdp_devices(needs, usable)) is not None and n_needed <= n_devices:
            sharded = f"{_sharded_bytes(needs) / 1e9:,.0f} GB of state over {n_devices} devices"
            return f"use FSDP{setting}: {sharded} (at least {n_needed})"
    n_needed = _fsdp_devices(checkpointed, usable)
    if n_needed is not None:
        needed = f"needs more devices: FSDP over at least {n_needed} × {device.name}"
        return f"{needed} with train.checkpoint_activations=true, or tensor and pipeline parallelism"
    fixed = f"{_fixed_bytes(checkpointed) / 1e9:,.0f} GB of activations and logits per device, even with checkpointing"
    if batch_size > 1:
        return f"{fixed}: reduce the batch size, or use tensor or pipeline parallelism"
    return f"{fixed} and one sequence: needs shorter sequences, or tensor or pipeline parallelism"


def _fsdp_devices(memory: Memory, usable: float) -> int | None:
    """On how many devices FSDP fits; None if what it cannot shard does not fit."""
    space = usable - _fixed_bytes(memory)
    return ceil(_sharded_bytes(memory) / space) if space > 0 else None


def _sharded_bytes(memory: Memory) -> float:
    return 2 * memory.weights + memory.optimizer_state + memory.ema  # all gradients are as large as the weights


def _fixed_bytes(memory: Memory) -> float:
    return memory.weight_copies + memory.activations + memory.logits

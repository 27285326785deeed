"""Costs of a model, computed from its config alone: parameters, FLOPs, bytes and memory. Nothing here imports torch.

report = cost_report(model_config("gpt2"), seq_len=1024)
report.forward.total_flops                                  291648307200
for operation in report.forward.operations:
    print(operation.name, operation.flops)                  scores 2 b n² d, …
"""

from headway.costs.budget import TrainingBudget, parallelism
from headway.costs.devices import DEVICES, DeviceSpec, find_device, peak_flops
from headway.costs.flops import flops_per_token
from headway.costs.memory import Memory, parameter_copies, training_memory
from headway.costs.operations import Operation, Pass, count_pass
from headway.costs.parameters import Parameters, count_parameters, largest_setting, parameter_table
from headway.costs.report import CostReport, cost_report
from headway.costs.roofline import Rates, intensity, lower_bound_seconds
from headway.costs.state import DecodeState, decode_state

__all__ = [
    "DEVICES",
    "CostReport",
    "DecodeState",
    "DeviceSpec",
    "Memory",
    "Operation",
    "Parameters",
    "Pass",
    "Rates",
    "TrainingBudget",
    "cost_report",
    "count_parameters",
    "count_pass",
    "decode_state",
    "find_device",
    "flops_per_token",
    "intensity",
    "largest_setting",
    "lower_bound_seconds",
    "parallelism",
    "parameter_copies",
    "parameter_table",
    "peak_flops",
    "training_memory",
]

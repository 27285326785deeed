"""Peak memory of training steps and of a KV cache, minus the memory in use before it."""

import ctypes
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headway.config import GPTConfig, ModelConfig, TrainConfig
from headway.costs.report import CostReport
from headway.data.loader import CausalBatch
from headway.devices import DTYPES
from headway.models.registry import create
from headway.nn.kernels.cpu_linear import use_cpu_training_kernels
from headway.nn.kv_cache import KVCache
from headway.training.objectives import LossModule
from headway.training.optimizers import Optimizer
from headway.training.train_step import StepBatch, TrainStep, checkpoint_blocks

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # written to clear_refs, it sets the peak to what is in use now
STEPS = 2  # the first leaves the allocator with gaps
SLOW_SECONDS = 5.0  # of a step, after which there is no second one
TINY: dict[str, Any] = {"vocab_size": 16, "context": 8, "n_layers": 1, "d_model": 8, "n_heads": 1}


@dataclass(frozen=True)
class MeasuredMemory:
    name: str
    predicted: float  # bytes
    measured: int

    @property
    def ratio(self) -> float:
        return self.measured / self.predicted


def measure_memory(report: CostReport, device: torch.device) -> list[MeasuredMemory]:
    """The KV cache and the training of a GPT of the report's config: predicted, and measured as the increase over this
    process. Empty for other families, and where the system does not report the peak of a process."""
    config = report.config
    if not isinstance(config, GPTConfig) or report.state is None:
        return []
    is_bfloat16 = report.dtype == "bfloat16"
    device_type = "cpu" if device.type == "cpu" else "cuda"
    predicted = report.training_memory(device_type=device_type)
    assert predicted is not None
    training = measure_training_memory(
        config,
        TrainConfig(),
        batch_size=report.batch_size,
        seq_len=report.seq_len,
        device=device,
        is_bfloat16=is_bfloat16,
    )
    cache = measure_cache_memory(
        config, batch_size=report.batch_size, seq_len=report.seq_len, dtype=report.dtype, device=device
    )
    if training is None or cache is None:
        return []
    rows = [MeasuredMemory("KV cache", report.state.nbytes, cache)] if report.state.nbytes else []
    return [*rows, MeasuredMemory("training", predicted.total, training)]


def measure_cache_memory(
    config: GPTConfig, *, batch_size: int, seq_len: int, dtype: str, device: torch.device
) -> int | None:
    """Bytes that the KV cache of a GPT takes; None where the system does not report the peak of a process."""
    c = config.resolved()
    states: list[KVCache] = []

    def fill() -> None:
        state = KVCache.empty(
            c.n_layers, batch_size, c.n_kv_heads, seq_len, c.d_head, limit=None, dtype=DTYPES[dtype], device=device
        )  # fmt: skip
        for tensor in (state.keys, state.values):
            tensor.fill_(1.0)  # memory that is not written to yet does not count
        states.append(state)

    return peak_increase(fill, device)


def measure_training_memory(
    config: ModelConfig,
    train: TrainConfig,
    *,
    batch_size: int,
    seq_len: int,
    device: torch.device,
    is_bfloat16: bool = False,
) -> int | None:
    """Bytes that building and training a GPT takes at its peak; None for other families, and where the system does not
    report the peak of a process."""
    if not isinstance(config, GPTConfig):
        return None
    _train(GPTConfig(**TINY), train, 1, 8, device, is_bfloat16)  # loads libraries, which stay in memory
    return peak_increase(lambda: _train(config, train, batch_size, seq_len, device, is_bfloat16), device)


def peak_increase(run: Callable[[], object], device: torch.device) -> int | None:
    """How many bytes more than before are in use at the peak of a call: of the device's tensors, or of the process."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    try:
        _return_free_memory()
        CLEAR_REFS.write_text(RESET_PEAK, encoding="ascii")
        before = _status_bytes("VmHWM")
        run()
        return _status_bytes("VmHWM") - before
    except OSError:  # not Linux
        return None


def _train(
    config: GPTConfig, train: TrainConfig, batch_size: int, seq_len: int, device: torch.device, is_bfloat16: bool
) -> None:
    model = create(config, device=device).train()
    use_cpu_training_kernels(model)
    if train.checkpoint_activations:
        checkpoint_blocks(model)
    optimizer = Optimizer(model, train, device=device)
    step = TrainStep(LossModule(model, "causal"), optimizer, clip=1.0, autocast=is_bfloat16, device=device)
    ids = torch.randint(config.vocab_size, (batch_size, seq_len + 1), device=device)
    n_targets = batch_size * seq_len
    optimizer.state()  # as it is from the second step on: its tensors are there while the gradients are computed
    start = time.perf_counter()
    for _ in range(STEPS):
        step(StepBatch([CausalBatch(ids[:, :-1], ids[:, 1:])], [True], n_targets), 1 / n_targets)
        if time.perf_counter() - start > SLOW_SECONDS:
            break


def _return_free_memory() -> None:
    """Give memory that the allocator kept back to the system: otherwise the next tensors would seem to take none."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


def _status_bytes(key: str) -> int:
    for line in STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{key}:"):
            return 1024 * int(line.split()[1])
    raise OSError(f"{STATUS} has no {key}")

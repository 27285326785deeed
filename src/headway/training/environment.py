"""Run metadata: what you need, beside the recipe, to repeat a run. It is the first line of log.jsonl."""

import platform
from typing import Any

import torch

from headway import __version__
from headway.devices import matmul_dtype
from headway.models import Model
from headway.training.distributed import DistContext
from headway.training.git_revision import git_revision
from headway.training.progress import ProgressMeter
from headway.training.task import Task, loss_name
from headway.training.trainable import n_saved_params


def run_metadata(
    task: Task, model: Model, dist: DistContext, device: torch.device, meter: ProgressMeter
) -> dict[str, Any]:
    return {
        **environment(device),
        "dtype": matmul_dtype(device, task.recipe.train.dtype),
        "ranks": dist.size,
        "seed": task.recipe.train.seed,
        "objective": loss_name(task.recipe),
        "n_params": n_saved_params(model),
        "n_trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "flops_per_token": meter.flops_per_token,
        "corpus_tokens": task.n_train_tokens,
        "data": task.fingerprints,
        "bytes_per_token": task.bytes_per_target,
        "peak_flops": meter.peak_flops,
        "peak_flops_from": meter.peak_source,
    }


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, machine and device."""
    return {
        "headway": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.platform(),
        "git": git_revision(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "threads": torch.get_num_threads(),
    }

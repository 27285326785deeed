"""Build a Trainer: wrap a finished model for training, from the outside.

In this order: CPU kernels, activation checkpointing, bfloat16 residual stream, compilation, FSDP sharding, optimizer,
EMA, DDP, and CUDA graph capture of the step.
"""

import math
from collections.abc import Iterator

import torch

from headway.config import StackConfig, TrainConfig
from headway.costs import flops_per_token, training_memory
from headway.devices import matmul_dtype
from headway.errors import ConfigError
from headway.models import BERT, GPT, Model, Transformer
from headway.models.heads import Head
from headway.models.init_from import WeightTransfer
from headway.nn.kernels.cpu_linear import use_cpu_training_kernels
from headway.runs import Run
from headway.training.checkpoint import TrainerProgress, TrainState
from headway.training.distributed import DistContext, replicate, shard
from headway.training.loggers import RunLog, check_loggers
from headway.training.objectives import LossModule
from headway.training.optimizers import Optimizer
from headway.training.progress import OnMessage, OnStep, ProgressMeter
from headway.training.task import Task, loss_name
from headway.training.throughput import device_peak, free_memory
from headway.training.train_step import (
    CapturedStep,
    StepBatch,
    TrainStep,
    checkpoint_blocks,
    compile_blocks,
    compile_model,
    iter_step_batches,
    use_bfloat16_residual,
)
from headway.training.trainer import Trainer
from headway.training.weight_averaging import ExponentialMovingAverage


def build_trainer(
    task: Task,
    model: Model,
    run: Run,
    dist: DistContext,
    device: torch.device,
    transfer: WeightTransfer | None = None,
    *,
    on_message: OnMessage,
    on_step: OnStep,
) -> Trainer:
    """`transfer` says which weights the model took from another one; it becomes part of the run's metadata."""
    config = task.recipe.train
    check_loggers(config.loggers)
    is_bfloat16 = matmul_dtype(device, config.dtype) == "bfloat16"
    loader = task.loader(dist)
    first_batch = next(iter_step_batches(loader, 0, config.grad_accum_steps))
    rows, seq_len = first_batch.tensors()[0].shape[:2]
    _check_memory(model, config, (rows, seq_len), dist, device, 2 if is_bfloat16 else 4, on_message)
    if config.warmup_steps > config.steps:
        on_message(f"note        train.warmup_steps={config.warmup_steps} exceeds the run: lr never reaches train.lr")
    peak_flops, peak_source = device_peak(device, 2 if is_bfloat16 else 4)
    meter = ProgressMeter(
        config,
        device,
        flops_per_token=_flops_per_token(model, seq_len),
        peak_flops=peak_flops,
        peak_source=peak_source,
        n_ranks=dist.size,
        bytes_per_target=task.bytes_per_target,
        tokens_per_target=_tokens_per_target(task, first_batch, dist),
    )

    use_cpu_training_kernels(model)
    loss_module = LossModule(
        model,
        loss_name(task.recipe),
        config.label_smoothing,
        config.rdrop_alpha,
        config.ar_alpha,
        config.tar_beta,
        task.class_weights,
    )
    if config.checkpoint_activations:
        checkpoint_blocks(model)
    if config.residual_dtype == "bfloat16":
        if not isinstance(model, GPT):
            raise ConfigError("train.residual_dtype='bfloat16' is for the family gpt: leave it at float32")
        if not is_bfloat16:
            raise ConfigError("train.residual_dtype='bfloat16' needs matrix products in bfloat16: set train.dtype too")
        use_bfloat16_residual(model)
    is_compiled = bool(config.compile) and (config.compile != "auto" or (device.type == "cuda" and task.is_uniform))
    if is_compiled:
        compile_model(model) if config.compile == "model" else compile_blocks(model)
    shard(loss_module, dist)
    optimizer = Optimizer(model, config, device=device)
    if dist.parallel == "fsdp" and not optimizer.is_capturable:
        raise ConfigError(
            f"train.optimizer={config.optimizer!r} is registered by a plug-in, and the state of such optimizers is not "
            f"sharded: use train.parallel=ddp"
        )
    average = ExponentialMovingAverage(model, config.ema) if config.ema else None
    carried = loss_module.carry_state(rows) if task.carries_state else {}
    module = replicate(loss_module, dist, device)
    step = TrainStep(module, optimizer, clip=config.grad_clip, autocast=is_bfloat16, device=device)
    can_capture = device.type == "cuda" and dist.parallel == "none" and optimizer.is_capturable
    # Only Transformers are bucketed: a recurrent model reads the lengths on the host, which a CUDA graph cannot do.
    is_transformer = isinstance(model, Transformer) or (isinstance(model, Head) and isinstance(model.encoder, BERT))
    is_bucketed = can_capture and is_transformer and not is_compiled
    is_captured = can_capture and (is_bucketed or (is_compiled and task.is_uniform))

    def iter_batches(start_step: int) -> Iterator[StepBatch]:
        max_bucket_length = model.config.context if is_bucketed else None
        return iter_step_batches(loader, start_step, config.grad_accum_steps, max_bucket_length=max_bucket_length)

    return Trainer(
        task=task,
        state=TrainState(model, optimizer, average, TrainerProgress(), dist, carried),
        loss_module=loss_module,
        step_fn=CapturedStep(step) if is_captured else step,
        iter_batches=iter_batches,
        micro_batch_shape=(rows, seq_len),
        run=run,
        log=RunLog(run, dist.is_main),
        meter=meter,
        dist=dist,
        device=device,
        initial_weights={} if transfer is None else transfer.to_dict(),
        on_message=on_message,
        on_step=on_step,
    )


def _flops_per_token(model: Model, seq_len: int) -> float:
    """Training FLOPs per token; for a family of a plug-in, 6 per parameter (Kaplan et al. 2020)."""
    is_built_in = type(model).__module__.startswith("headway.")
    return flops_per_token(model.config, seq_len) or (0.0 if is_built_in else 6.0 * model.n_params)


def _tokens_per_target(task: Task, batch: StepBatch, dist: DistContext) -> float:
    """An encoder computes all tokens of a batch, but has targets at some only: masked ones, or one per text."""
    if task.objective in ("causal", "pairs") or not batch.n_targets:
        return 1.0
    n_tokens = sum(getattr(micro_batch, "ids").numel() for micro_batch in batch.micro_batches)  # noqa: B009 (encoders)
    return dist.size * n_tokens / batch.n_targets


def _check_memory(
    model: Model,
    config: TrainConfig,
    micro_batch_shape: tuple[int, int],
    dist: DistContext,
    device: torch.device,
    bytes_per_element: int,
    on_message: OnMessage,
) -> None:
    """Refuse a step that will not fit in memory, before training starts."""
    if not isinstance(model.config, StackConfig):
        return
    rows, seq_len = micro_batch_shape
    need = training_memory(
        model.config,
        model.n_params,
        config,
        batch_size=rows,
        seq_len=seq_len,
        ranks=dist.size,
        bytes_per_element=bytes_per_element,
        device_type="cpu" if device.type == "cpu" else "cuda",
    )
    size = f"{need.total / 2**30:.1f} GiB" if need.total > 2**29 else f"{need.total / 2**20:.0f} MiB"
    on_message(f"memory      about {size} for micro-batches of {rows} x {seq_len} tokens")
    free = free_memory(device)
    fixed = need.total - need.activations - model.n_params * 4  # the weights are already allocated
    if fixed + need.activations <= free:
        return
    grad_accum_steps = config.grad_accum_steps * math.ceil(need.activations / max(free - fixed, 1))
    if fixed < free and grad_accum_steps <= rows * config.grad_accum_steps:
        hint = (
            f"set train.grad_accum_steps={grad_accum_steps}, which gives the same steps, or "
            f"train.checkpoint_activations=true"
        )
    else:
        hint = "use a smaller model, or shard it over several devices with train.parallel=fsdp"
    raise ConfigError(
        f"a step needs about {need.total / 2**30:.1f} GiB, {need.activations / 2**30:.1f} of them for micro-batches of "
        f"{rows} x {seq_len} tokens, and {device} has {free / 2**30:.1f} GiB free: {hint}"
    )

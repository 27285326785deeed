"""Checkpoints: the complete training state, to disk and back, so that a resumed run is bit-identical.

Tensors go by name, `KIND/PARAMETER`: "exp_avg/blocks.0.norm1.weight". With FSDP, PyTorch's distributed checkpointing
writes each rank's shards as safetensors and loads them into any number of ranks; otherwise the first rank writes all
tensors to one file. Either kind of run can resume from either kind of checkpoint.
"""

import json
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.tensor import DTensor, distribute_tensor

from headway.errors import CheckpointError
from headway.file_reading import check_regular, read_json
from headway.files import new_directory, write_checksums
from headway.models.base import Model
from headway.models.lora_adapters import lora_settings
from headway.models.serialization import SHARDS, find_model, load, read_weights, write_model
from headway.models.weight_files import read_header, shard_offsets
from headway.nn.lora import add_lora, lora_layers
from headway.runs import PROGRESS_FILE
from headway.training.distributed import DistContext
from headway.training.optimizers import Optimizer
from headway.training.weight_averaging import ExponentialMovingAverage

STATE_FILE = "training.safetensors"
LORA_TENSORS = ("weight", "lora_a", "lora_b")  # of an adapted layer


@dataclass
class TrainerProgress:
    """How far training has come; stored in training.json."""

    step: int = 0  # steps done
    n_tokens: int = 0  # targets trained on, over all ranks
    seconds: float = 0.0
    best: float = math.inf  # smallest selection_loss so far, see evaluation/validation.py
    best_step: int | None = None
    evals_since_best: int = 0
    score: dict[str, Any] = field(default_factory=dict)  # of this step, if it was evaluated
    is_validation_pending: bool = False  # a stop request interrupted it: resuming the run repeats it
    evaluation: str = ""  # a hash of validation data and settings: only scores with the same one are comparable

    def start_evaluation(self, evaluation: str) -> None:
        """Reset the scores, which are those of another evaluation."""
        self.evaluation, self.score = evaluation, {}
        self.best, self.best_step, self.evals_since_best = math.inf, None, 0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "best": self.best if math.isfinite(self.best) else None}

    @classmethod
    def read(cls, checkpoint: Path) -> "TrainerProgress":
        """The progress of a checkpoint; its step must be that of the folder's name."""
        file = checkpoint / PROGRESS_FILE
        table = read_json(file)
        table["best"] = math.inf if table.get("best") is None else table["best"]
        try:
            progress = msgspec.convert(table, cls)
        except msgspec.ValidationError as problem:
            raise CheckpointError(f"{file} is damaged: {problem}; use an earlier checkpoint") from None
        if checkpoint.name != f"step-{progress.step}":
            raise CheckpointError(
                f"{file} is of step {progress.step}, but lies in {checkpoint.name}: rename the folder back"
            )
        return progress


@dataclass
class TrainState:
    """Everything that changes while a run trains."""

    model: Model
    optimizer: Optimizer
    average: ExponentialMovingAverage | None
    progress: TrainerProgress
    dist: DistContext
    carried: dict[str, Tensor] = field(default_factory=dict)  # hidden state carried from batch to batch, by name

    def tensors(self) -> dict[str, Tensor]:
        """All state tensors by name, without copies; DTensors if the model is sharded."""
        tensors = {**self.optimizer.state(), **self.carried}
        if self.average is not None or self.dist.parallel == "fsdp":
            tensors |= self._model_tensors()
        # A checkpoint's model has LoRA updates merged, and W + (α/r) B A − (α/r) B A is not W in every bit.
        for layer, lora in lora_layers(self.model).items():
            tensors |= {f"model/{layer}.{name}": getattr(lora, name).detach() for name in LORA_TENSORS}
        if self.average is not None:
            tensors |= {f"average/{name}": tensor for name, tensor in self.average.weights.items()}
        return tensors

    def _model_tensors(self) -> dict[str, Tensor]:
        return {f"model/{name}": p.detach() for name, p in self.model.named_parameters()}

    def save(self, folder: Path) -> None:
        """Write a checkpoint. A collective: all ranks call it."""
        rng_states, tensors = self._rng_states(), {**self.tensors(), **self.optimizer.registered_state()}
        metadata = {**self.progress.to_dict(), "ranks": self.dist.size}
        if lora_layers(self.model):
            metadata["lora"] = dict(zip(("rank", "alpha"), lora_settings(self.model), strict=True))
        if self.dist.parallel != "fsdp":
            averaged = self.average.in_place() if self.average is not None else nullcontext()
            self.dist.on_first_rank(
                lambda: write_checkpoint(self.model, folder, metadata, {**tensors, **rng_states}, averaged)
            )
            return
        partial = folder.with_name(f".{folder.name}.partial")  # a name that every rank knows
        with new_directory(folder, overwrite=True, partial=partial) if self.dist.is_main else nullcontext():
            self.dist.barrier()  # the folder exists
            _write_shards(partial / SHARDS, tensors, self.dist)
            self.dist.barrier()  # all shards are written
            if self.dist.is_main:
                _write_files(self.model, partial, metadata, rng_states, weights=False)
        self.dist.barrier()

    def restore(self, folder: Path) -> None:
        """Load a checkpoint that `Run.newest_intact` has verified. A collective: all ranks call it."""
        self.progress = TrainerProgress.read(folder)
        targets = {**self.tensors(), **self._model_tensors()}
        saved = _read_tensors(folder / STATE_FILE)
        with torch.no_grad():
            if (folder / SHARDS).is_dir():
                _read_shards(folder / SHARDS, targets, self.dist)
            else:
                saved = {f"model/{name}": t for name, t in read_weights(folder, self.model).items()} | saved
                if unexpected := [name for name in saved if name.startswith("model/") and name not in targets]:
                    raise CheckpointError(
                        f"{folder} has the parameter {unexpected[0].removeprefix('model/')!r}, which the model does "
                        f"not have: did its code or a plug-in change since the run was started?"
                    )
                for name, target in targets.items():
                    if name in saved and saved[name].shape != target.shape:
                        raise CheckpointError(
                            f"{name!r} has shape {tuple(saved[name].shape)} in {folder}, not {tuple(target.shape)}: "
                            f"did the code of the model, or a setting of it, change since the run was started?"
                        )
                    if name not in saved:
                        raise CheckpointError(
                            f"{folder / STATE_FILE} has no tensor {name!r}: resume with the settings of recipe.toml, "
                            f"or start a new run with --out"
                        )
                    _copy_tensor(target, saved[name])
        self.optimizer.load_registered_state(saved)
        self._restore_rng_states(saved)

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Replace the model's weights for good; an EMA of the old ones no longer applies."""
        for name, parameter in self.model.named_parameters():
            _copy_tensor(parameter.detach(), weights[name])
        self.average = None

    def _rng_states(self) -> dict[str, Tensor]:
        """Random number generator states of every rank: {"rng/cpu/0": …}."""
        states = {"cpu": torch.get_rng_state()}
        if self.model.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.model.device)
        return {
            f"rng/{device}/{rank}": rank_state
            for device, state in states.items()
            for rank, rank_state in enumerate(self.dist.all_gather(state))
        }

    def _restore_rng_states(self, saved: Mapping[str, Tensor]) -> None:
        """A rank that the checkpoint does not know keeps the generators it was seeded with."""
        cpu_state = saved.get(f"rng/cpu/{self.dist.rank}")
        cuda_state = saved.get(f"rng/cuda/{self.dist.rank}")
        try:
            if cpu_state is not None:
                torch.set_rng_state(cpu_state)
            if cuda_state is not None and self.model.device.type == "cuda":
                torch.cuda.set_rng_state(cuda_state, self.model.device)
        except (RuntimeError, TypeError) as problem:
            raise CheckpointError(f"{STATE_FILE} has a damaged random number generator state: {problem}") from None


def load_with_lora(path: str | Path) -> Model:
    """The model of a run or checkpoint with its LoRA updates apart, so that `save_adapter` can write them."""
    folder = find_model(path)
    settings = read_json(folder / PROGRESS_FILE).get("lora") if (folder / PROGRESS_FILE).is_file() else None
    if not isinstance(settings, dict) or not (folder / STATE_FILE).is_file():
        raise CheckpointError(
            f"{path} has no LoRA updates: name a run that was trained with model.lora_rank, not with averaged weights"
        )
    model, saved = load(folder), _read_tensors(folder / STATE_FILE)
    try:
        add_lora(model, settings["rank"], settings["alpha"])
        with torch.no_grad():
            for layer, lora in lora_layers(model).items():
                for name in LORA_TENSORS:
                    live = f"model/{layer}.{name}"
                    _copy_tensor(getattr(lora, name), saved.get(f"average/{layer}.{name}", saved[live]))
    except (KeyError, TypeError, RuntimeError) as problem:
        raise CheckpointError(f"the LoRA updates of {folder} are damaged: {problem}; use another checkpoint") from None
    return model


def write_checkpoint(
    model: Model,
    folder: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    averaged: AbstractContextManager[None] | None = None,
) -> None:
    """Write a model directory plus training state to a temporary folder, then rename it.

    The `averaged` context puts averaged weights in place while the model is written; `tensors` hold the live ones.
    """
    with new_directory(folder, overwrite=True) as partial:
        _write_files(model, partial, metadata, tensors, averaged)


def _write_files(
    model: Model,
    folder: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    averaged: AbstractContextManager[None] | None = None,
    *,
    weights: bool = True,
) -> None:
    with averaged or nullcontext():
        write_model(model, folder, weights=weights)
    (folder / PROGRESS_FILE).write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")
    try:
        save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, folder / STATE_FILE)
    except SafetensorError as error:  # such as a full disk
        raise CheckpointError(f"{folder / STATE_FILE} cannot be written: {error}") from None
    write_checksums(folder)


def _read_tensors(file: Path) -> dict[str, Tensor]:
    try:
        check_regular(file)
        with safe_open(file, framework="pt") as tensors:
            return {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as problem:
        raise CheckpointError(f"{file} cannot be read: {problem}; use an earlier checkpoint") from None


def _copy_tensor(target: Tensor, value: Tensor) -> None:
    if isinstance(target, DTensor):
        value = value.to(target.device)
        value = distribute_tensor(value, target.device_mesh, target.placements, src_data_rank=None)
    target.copy_(value)


def _write_shards(folder: Path, tensors: dict[str, Tensor], dist: DistContext) -> None:
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    with _without_warnings():
        dcp.save(tensors, storage_writer=writer, no_dist=dist.size == 1)


def _read_shards(folder: Path, tensors: dict[str, Tensor], dist: DistContext) -> None:
    for file in sorted(folder.glob("*.safetensors")):
        shard_offsets(file, read_header(file))  # before a library opens it
    reader = HuggingFaceStorageReader(str(folder))
    saved = reader.read_metadata().state_dict_metadata
    if missing := [name for name in tensors if name not in saved]:
        raise CheckpointError(
            f"{folder} has no tensor {missing[0]!r}: resume with the settings of recipe.toml, or start a new run"
        )
    with _without_warnings():
        dcp.load(tensors, storage_reader=reader, no_dist=dist.size == 1)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence the warning of torch.distributed.checkpoint that there is only one process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield

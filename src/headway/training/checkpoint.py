"""All that training remembers, to disk and back: nothing is left out, so a resumed run is the run.

Tensors go by name, `KIND/PARAMETER`: "exp_avg/blocks.0.norm1.weight". Where each rank holds a share of them (FSDP),
PyTorch's distributed checkpointing writes each share as safetensors and reads them into any other number of ranks; else
one rank writes them all. Either form is read into either kind of run.
"""

import json
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint import load as read_shares
from torch.distributed.checkpoint import save as write_shares
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.tensor import DTensor, distribute_tensor

from headway.errors import CheckpointError
from headway.files import new_directory, seal
from headway.models.base import Model
from headway.models.serialization import SHARDS, read_json, read_weights, write_model
from headway.training.distributed import DistContext
from headway.training.optimizers import Optimizer
from headway.training.weight_averaging import ExponentialMovingAverage

TENSORS = "training.safetensors"


@dataclass
class TrainerProgress:
    """Where training stands: what training.json holds."""

    step: int = 0  # steps done
    n_tokens: int = 0  # targets learned from, over all ranks
    seconds: float = 0.0
    best: float = math.inf  # the smallest merit so far, see evaluation.py
    best_step: int | None = None
    evals_since_best: int = 0  # evaluations since then
    score: dict[str, Any] = field(default_factory=dict)  # at this step, where it was scored

    def to_dict(self) -> dict[str, Any]:
        found = asdict(self)
        return {**found, "best": found["best"] if math.isfinite(found["best"]) else None}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> "TrainerProgress":
        known = {name: table[name] for name in cls.__dataclass_fields__ if name in table}
        return cls(**{**known, "best": math.inf if known.get("best") is None else known["best"]})


@dataclass
class TrainState:
    """The parts of a run that change."""

    model: Model
    optimizer: Optimizer
    average: ExponentialMovingAverage | None
    progress: TrainerProgress
    world: DistContext
    carried: dict[str, Tensor] = field(default_factory=dict)  # what rows of text carry from step to step

    def tensors(self) -> dict[str, Tensor]:
        """Everything by name, as it is; shares where ranks hold shares."""
        found = {**self.optimizer.state(), **self.carried}
        if self.average is not None or self.world.parallel == "fsdp":
            found |= {f"model/{name}": p.detach() for name, p in self.model.named_parameters()}
        if self.average is not None:
            found |= {f"average/{name}": tensor for name, tensor in self.average.weights.items()}
        return found

    def save(self, folder: Path) -> None:
        """Write a checkpoint. All ranks call this together."""
        chance = self._chance()
        tensors = self.tensors()
        if self.world.parallel != "fsdp":
            self.world.on_first_rank(lambda: self._save_whole(folder, {**tensors, **chance}))
            return
        aside = folder.with_name(f".{folder.name}.partial")  # a name that every rank knows
        with new_directory(folder, overwrite=True, aside=aside) if self.world.is_main else nullcontext():
            self.world.barrier()  # until the folder is there
            _write_shares(aside / SHARDS, tensors, self.world)
            self.world.barrier()  # until all shares are
            if self.world.is_main:
                _write_files(self.model, aside, self._facts(), chance, weights=False)
        self.world.barrier()

    def _save_whole(self, folder: Path, tensors: dict[str, Tensor]) -> None:
        averaged = self.average.in_place() if self.average is not None else nullcontext()
        write_checkpoint(self.model, folder, self._facts(), tensors, averaged)

    def _facts(self) -> dict[str, Any]:
        return {**self.progress.to_dict(), "ranks": self.world.size}

    def restore(self, folder: Path) -> None:
        """Take up where a checkpoint, already verified, stands."""
        self.progress = TrainerProgress.from_dict(read_json(folder / "training.json"))
        wanted = self.tensors()
        model = {f"model/{name}": p.detach() for name, p in self.model.named_parameters()}
        kept = _read(folder / TENSORS)
        with torch.no_grad():
            if (folder / SHARDS).is_dir():
                _read_shares(folder / SHARDS, {**wanted, **model}, self.world)
            else:
                found = {f"model/{name}": t for name, t in read_weights(folder, self.model).items()} | kept
                for name, target in {**wanted, **model}.items():
                    if name not in found:
                        raise CheckpointError(
                            f"{folder / TENSORS} lacks {name!r}: was the run begun with other settings?"
                        )
                    copy_tensor(target, found[name])
        self._restore_chance(kept)

    def _chance(self) -> dict[str, Tensor]:
        """The state of the random numbers of every rank, {"chance/cpu/0": …}."""
        found = {"cpu": torch.get_rng_state()}
        if self.model.device.type == "cuda":
            found["cuda"] = torch.cuda.get_rng_state(self.model.device)
        return {
            f"chance/{kind}/{rank}": state
            for kind, own in found.items()
            for rank, state in enumerate(self.world.all_gather(own))
        }

    def _restore_chance(self, kept: Mapping[str, Tensor]) -> None:
        """A rank that was not there before begins anew, from the seed it was started with."""
        own = kept.get(f"chance/cpu/{self.world.rank}")
        if own is not None:
            torch.set_rng_state(own)
        own = kept.get(f"chance/cuda/{self.world.rank}")
        if own is not None and self.model.device.type == "cuda":
            torch.cuda.set_rng_state(own, self.model.device)


def write_checkpoint(
    model: Model,
    folder: Path,
    facts: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    averaged: AbstractContextManager[None] | None = None,
) -> None:
    """A model directory with what training adds to it, written aside and renamed. While the model is written it is as
    `averaged` makes it; what training needs is as it is."""
    with new_directory(folder, overwrite=True) as aside:
        _write_files(model, aside, facts, tensors, averaged)


def _write_files(
    model: Model,
    aside: Path,
    facts: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    averaged: AbstractContextManager[None] | None = None,
    *,
    weights: bool = True,
) -> None:
    with averaged or nullcontext():
        write_model(model, aside, weights=weights)
    (aside / "training.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    try:
        save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, aside / TENSORS)
    except SafetensorError as error:  # such as a full disk
        raise CheckpointError(f"{aside / TENSORS} cannot be written: {error}") from None
    seal(aside)


def _read(file: Path) -> dict[str, Tensor]:
    with safe_open(file, framework="pt") as source:
        return {name: source.get_tensor(name) for name in source.keys()}  # noqa: SIM118


def copy_tensor(target: Tensor, value: Tensor) -> None:
    if isinstance(target, DTensor):
        value = value.to(target.device)
        value = distribute_tensor(value, target.device_mesh, target.placements, src_data_rank=None)
    target.copy_(value)


def _write_shares(folder: Path, tensors: dict[str, Tensor], world: DistContext) -> None:
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    with _quietly():
        write_shares(tensors, storage_writer=writer, no_dist=world.size == 1)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the warning that there is one process, where there is one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _read_shares(folder: Path, tensors: dict[str, Tensor], world: DistContext) -> None:
    reader = HuggingFaceStorageReader(str(folder))
    known = reader.read_metadata().state_dict_metadata
    if missing := [name for name in tensors if name not in known]:
        raise CheckpointError(f"{folder} lacks {missing[0]!r}: were other settings used before?")
    with _quietly():
        read_shares(tensors, storage_reader=reader, no_dist=world.size == 1)

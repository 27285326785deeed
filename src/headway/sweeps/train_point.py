"""Train one point of a sweep: new, or from its last checkpoint. A run that fails is an outcome, not the end."""

import gc
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from headway.config import NGramConfig, Recipe
from headway.errors import HeadwayError
from headway.runs import Run
from headway.training.callbacks import Callbacks
from headway.training.train import train


@dataclass(frozen=True)
class Outcome:
    """How a run ended; what it reached is on disk."""

    interrupted: bool = False
    failure: str = ""


def train_point(recipe: Recipe, path: Path, callbacks: Callbacks) -> Outcome:
    if isinstance(recipe.model, NGramConfig):  # fitted in one pass: an interrupted one starts over
        shutil.rmtree(path, ignore_errors=True)
    try:
        result = train(
            recipe,
            out=path,
            resume=Run.exists(path),
            on_step=callbacks.on_step,
            on_message=callbacks.on_message,
            on_prepare=callbacks.on_prepare,
        )
    except (HeadwayError, RuntimeError, MemoryError) as error:  # diverged, out of memory, missing data, …
        return Outcome(failure=str(error).strip() or type(error).__name__)
    finally:
        _free_memory()
    return Outcome(interrupted=result.interrupted)


def _free_memory() -> None:
    """Leave nothing of this run behind for the next one."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

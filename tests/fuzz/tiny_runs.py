"""Runs of a second, one for each way of training, to be disturbed by kills, full disks and second writers."""

import os
from pathlib import Path
from typing import Any

import torch

import headway
from headway import tokenizers
from headway.config import Recipe, recipe_from_table
from headway.runs import Run
from headway.training.resume_check import differences
from tests.fuzz.warm_processes import DiskEvents
from tests.training.recipes import TEXT, for_objective, make

TINY = {"n_layers": 1, "d_model": 16, "n_heads": 2}
SHORT = {"steps": 6, "batch_size": 4, "save_every": 2, "log_every": 1, "warmup_steps": 2, "threads": 1}

SETUPS: dict[str, dict[str, dict[str, Any]]] = {
    "dropout": {"model": {"dropout": 0.2}},
    "few checkpoints": {"train": {"save_every": 1, "keep_checkpoints": 1}, "eval": {"every_steps": 2}},
    "averaging": {"train": {"average_checkpoints": 2, "save_every": 1, "keep_checkpoints": 2}},
    "ema": {"train": {"ema": 0.9}},
    "muon": {"train": {"optimizer": "muon", "grad_accum_steps": 2}},
    "early stopping": {"train": {"lr": 0.0}, "eval": {"every_steps": 1, "patience": 2}},
}
OBJECTIVES = ("masked", "pairs", "classify", "tag", "span")


def recipes(folder: Path) -> dict[str, Recipe]:
    """A recipe per setup, with the data of each in `folder`."""
    made = {}
    for name, tables in SETUPS.items():
        train = {**SHORT, **tables.get("train", {})}
        made[name] = make(folder, **{**tables, "train": train, "model": {**TINY, **tables.get("model", {})}})
    for objective in OBJECTIVES:
        made[objective] = for_objective(objective, folder, **SHORT)
    lstm = {"family": "lstm", "d_model": 16, "d_hidden": 16, "n_layers": 1}
    table = make(folder, train={**SHORT, "seq_len": 16}).to_table()
    made["lstm"] = recipe_from_table({**table, "model": lstm})
    made["lora"] = recipe_from_table({**table, "model": {"init_from": str(_base_model(folder)), "lora_rank": 2}})
    return made


def _base_model(folder: Path) -> Path:
    """A GPT with random weights to start from."""
    path = folder / "base"
    if not path.exists():
        tokenizer = tokenizers.train("char", [TEXT])
        torch.manual_seed(0)
        model = headway.create("gpt", vocab_size=tokenizer.vocab_size, context=32, **TINY, device="cpu")
        model.tokenizer = tokenizer
        model.save(path)
    return path


def train(recipe: Recipe, run: Path, cache: Path, kill_at: int | None = None, count_file: Path | None = None) -> None:
    """Start or resume a run in this process; a process of its own, since the cache is named by the environment."""
    os.environ["HEADWAY_CACHE"] = str(cache)
    events = DiskEvents(run.parent, kill_at) if kill_at is not None or count_file is not None else None
    headway.train(recipe, out=run, resume=True, quiet=True)
    if count_file is not None and events is not None:
        count_file.write_text(str(events.count))


def check_same(undisturbed: Path, run: Path) -> None:
    """A run equals the undisturbed one, and nothing half-written or half-deleted remains in it."""
    if lines := differences(Run(undisturbed), Run(run)):
        raise AssertionError("; ".join(lines))
    steps = [Run(path).checkpoint_steps() for path in (undisturbed, run)]
    assert steps[0] == steps[1], f"checkpoints of steps {steps[1]} instead of {steps[0]}"
    check_clean(run)


def check_clean(folder: Path) -> None:
    """No partial, old or removed file or folder is left anywhere."""
    left = [path for path in folder.rglob("*") if path.name.startswith(".") and path.suffix != ".lock"]
    left = [path for path in left if path.name != ".lock"]
    left += [path for path in folder.rglob("*") if path.suffix in (".partial", ".old", ".removed", ".tmp")]
    assert not left, f"left behind: {', '.join(str(path.relative_to(folder)) for path in left[:5])}"

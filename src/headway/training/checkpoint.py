"""A run on disk is its own description: `recipe.toml`, `log.jsonl`, and `checkpoints/step-N/`.

A checkpoint is a model directory with `training.json` beside the weights. It is written aside, flushed and renamed,
so a reader finds all of it or none.
"""

import json
from pathlib import Path
from typing import Any

from headway.errors import CheckpointError
from headway.files import new_directory, write_text
from headway.models.base import Model
from headway.models.storage import write_model


class Run:
    """The folder of one training run."""

    def __init__(self, path: Path):
        self.path = path
        self.checkpoints = path / "checkpoints"

    @staticmethod
    def check_free(path: str | Path) -> Path:
        """A folder that holds anything already is never written to."""
        path = Path(path)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise CheckpointError(f"{path} is there already; choose another place with --out")
        return path

    @classmethod
    def create(cls, path: str | Path, recipe: str) -> "Run":
        """Begin a run in a new folder."""
        path = cls.check_free(path)
        path.mkdir(parents=True, exist_ok=True)
        write_text(path / "recipe.toml", recipe)
        return cls(path)

    def log(self, **record: Any) -> None:
        with open(self.path / "log.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def save(self, model: Model, step: int, **facts: Any) -> Path:
        folder = self.checkpoints / f"step-{step}"
        with new_directory(folder) as aside:
            write_model(model, aside)
            document = json.dumps({"step": step, **facts}, indent=2)
            (aside / "training.json").write_text(document + "\n", encoding="utf-8")
        return folder

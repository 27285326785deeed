"""Loggers: where training metrics go beside log.jsonl (TensorBoard, Weights & Biases)."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from headway.errors import ConfigError


class Logger(Protocol):
    """Where the numbers of a step also go."""

    def __init__(self, run: Path, recipe: Mapping[str, Any]) -> None: ...

    def log(self, step: int, numbers: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class TensorBoardLogger:
    def __init__(self, run: Path, recipe: Mapping[str, Any]):
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(run / "tensorboard"))

    def log(self, step: int, numbers: Mapping[str, Any]) -> None:
        for name, value in numbers.items():
            if isinstance(value, int | float):
                self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WandbLogger:
    def __init__(self, run: Path, recipe: Mapping[str, Any]):
        import wandb

        self.run = wandb.init(project="headway", name=run.name, dir=str(run), config=dict(recipe), resume="allow")

    def log(self, step: int, numbers: Mapping[str, Any]) -> None:
        self.run.log(dict(numbers), step=step)

    def close(self) -> None:
        self.run.finish()


LOGGERS: dict[str, type[Logger]] = {"tensorboard": TensorBoardLogger, "wandb": WandbLogger}


def check_loggers(names: Sequence[str]) -> None:
    """Refuse, before anything is begun, what is not installed."""
    for name in names:
        if find_spec(name) is None:
            raise ConfigError(f"train.loggers={[name]} needs the package {name}: pip install 'headway[tracking]'")

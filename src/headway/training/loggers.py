"""Loggers: log.jsonl always; TensorBoard and Weights & Biases if the recipe asks for them (train.loggers)."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from headway.errors import ConfigError, install_command
from headway.runs import Run


class Logger(Protocol):
    """Receives the metrics of a step."""

    def __init__(self, run: Path, recipe: Mapping[str, Any]) -> None: ...

    def log(self, step: int, metrics: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class TensorBoardLogger:
    def __init__(self, run: Path, recipe: Mapping[str, Any]):
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(run / "tensorboard"))

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        for name, value in metrics.items():
            if isinstance(value, int | float):
                self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WandbLogger:
    def __init__(self, run: Path, recipe: Mapping[str, Any]):
        import wandb

        settings = wandb.Settings(disable_git=True, save_code=False)  # git would run programs that its config names
        self.run = wandb.init(
            project="headway", name=run.name, dir=str(run), config=dict(recipe), resume="allow", settings=settings
        )

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.run.log(dict(metrics), step=step)

    def close(self) -> None:
        self.run.finish()


LOGGERS: dict[str, type[Logger]] = {"tensorboard": TensorBoardLogger, "wandb": WandbLogger}


def check_loggers(names: Sequence[str]) -> None:
    """Refuse loggers that are not installed, before training starts."""
    for name in names:
        if find_spec(name) is None:
            raise ConfigError(f"train.loggers={[name]} needs the package {name}: {install_command('tracking')}")


class RunLog:
    """Writes events to log.jsonl, and metrics to log.jsonl and the external loggers. Only the first rank writes."""

    def __init__(self, run: Run, is_main: bool):
        self.run, self.is_main = run, is_main
        self.loggers: list[Logger] = []

    def connect(self, names: Sequence[str], recipe: Mapping[str, Any]) -> None:
        """Open the external loggers."""
        if self.is_main:
            self.loggers = [LOGGERS[name](self.run.path, recipe) for name in names]

    def event(self, name: str, **details: Any) -> None:
        if self.is_main:
            self.run.log(event=name, **details)

    def metrics(self, step: int, **metrics: Any) -> None:
        if self.is_main:
            self.run.log(step=step, **metrics)
            for logger in self.loggers:
                logger.log(step, metrics)

    def close(self) -> None:
        for logger in self.loggers:
            logger.close()

"""Loads of a run while it trains and replaces its only checkpoint at every step: each gives a whole model."""

import random
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

import headway
from headway.config import Recipe
from headway.errors import HeadwayError
from tests.fuzz import tiny_runs, warm_processes
from tests.fuzz.harness import Area
from tests.training.recipes import make

REPLACING = {"steps": 100_000, "max_seconds": 300.0, "save_every": 1, "keep_checkpoints": 1}  # ends by itself


class Loads(Area):
    name, full_count, ci_count = "loads", 1000, 25

    def prepare(self) -> None:
        evaluation = {"every_steps": 3}  # the best checkpoint is replaced too
        train = {**tiny_runs.SHORT, **REPLACING}
        self.recipe: Recipe = make(self.folder, model=tiny_runs.TINY, train=train, eval=evaluation)
        self.process: BaseProcess | None = None
        self.n_runs = 0
        warm_processes.warm_up()

    def case(self, rng: random.Random) -> str:
        run = self._trained_run()
        try:
            model = headway.load(run)
        except HeadwayError as error:
            raise AssertionError(f"not loaded: {error}") from error
        with torch.no_grad():
            logits = model(torch.tensor([[rng.randrange(model.config.vocab_size) for _ in range(8)]]))
        assert logits.isfinite().all()
        assert model.tokenizer.decode(model.tokenizer.encode("one two")) == "one two"
        return "whole"

    def _trained_run(self) -> Path:
        """The run that is being trained now, once it has a checkpoint."""
        if self.process is None or not self.process.is_alive():
            self.n_runs += 1
            arguments = (self.recipe, self.folder / f"run-{self.n_runs}", self.folder / "cache")
            self.process = warm_processes.start(tiny_runs.train, *arguments, output=self.folder / "output")
        run = self.folder / f"run-{self.n_runs}"
        while not list(run.glob("checkpoints/step-*")):
            self.process.join(0.02)
            assert self.process.is_alive(), (self.folder / "output").read_text()
        return run

    def close(self) -> None:
        if self.process is not None:
            warm_processes.kill(self.process)

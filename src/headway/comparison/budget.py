"""What is the same for all: the budget, and how it becomes a recipe for each."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from headway.comparison.lineup import ModelTemplate, scale_to_params
from headway.comparison.selection import fields_of
from headway.config import ModelConfig, Recipe, recipe_from_table
from headway.config.recipe import apply_setting
from headway.devices import parse_device
from headway.errors import ConfigError
from headway.tokenizers import Tokenizer
from headway.training.task import iter_pairs
from headway.training.throughput import free_memory

DEFAULT_PARAMS, DEFAULT_SECONDS = 1_000_000, 60.0
LEARNING = {"beta2": 0.98, "weight_decay": 0.01, "warmup_steps": 30}  # of contestants that say nothing else
LOOKS = 8  # points of a curve
LEARNED_BYTES = 16  # of a parameter: itself, its gradient and two moments
FOREVER = 10**9  # steps, of a run that ends by the clock


@dataclass(frozen=True)
class Budget:
    """What all have alike: a size, and tokens or seconds."""

    params: int | None = None  # None: a million, or the size that a recipe has
    tokens: int | None = None
    seconds: float | None = None  # None, without tokens either: a minute

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name}={value} is no budget: a number above 0")
        if self.tokens is not None and self.seconds is not None:
            raise ConfigError(f"tokens={self.tokens:,}, seconds={self.seconds:g}: one of the two")

    @property
    def clock(self) -> float | None:
        """Seconds, where time is what counts."""
        return (self.seconds or DEFAULT_SECONDS) if self.tokens is None else None

    @property
    def summary(self) -> str:
        each = f"{self.clock:g} seconds" if self.tokens is None else f"{self.tokens:,} tokens"
        return f"about {self.params or DEFAULT_PARAMS:,} parameters, {each} each"


@dataclass(frozen=True)
class SharedSettings:
    """What is the same for all who take part."""

    plan: Recipe
    kind: str
    window: int
    budget: Budget
    tokenizer: Tokenizer
    place: Path

    def recipe(self, entrant: ModelTemplate | Recipe, general: Sequence[str], special: Sequence[str]) -> Recipe:
        """What a contestant is trained by: its own model and rates, and for the rest what all have."""
        is_text, fields = self.kind == "text", fields_of(entrant)
        settings: dict[str, Any] = {"model": {}, "train": {}, "eval": {}}
        for setting in [*general, *special]:
            section, _, key = setting.partition("=")[0].strip().partition(".")
            if section in ("train", "eval") or (section == "model" and (key in fields or setting in special)):
                apply_setting(settings, setting)
        if isinstance(entrant, ModelTemplate):
            model = self._sized(entrant, settings["model"])
            learning = {**LEARNING, "batch_size": 8 if is_text else 64, **entrant.train}
        else:
            model, learning = entrant.model, {**_table(entrant.train), "average": 0}
        train_table = {**learning, "save_every": 0, "keep": 1}
        eval_table = {"times": LOOKS, "batch_size": 16 if is_text else 128}
        if is_text:
            train_table.setdefault("window", self.window)
            eval_table["context"] = self.window
        tokenizer = {"path": str((self.place / "tokenizer").absolute()), "dropout": self.plan.tokenizer.bpe_dropout}
        recipe = recipe_from_table({
            "model": {"family": model.family, **_table(model), **settings["model"]},
            "tokenizer": tokenizer,
            "data": _table(self.plan.data),
            "train": {**train_table, **settings["train"]},
            "eval": {**eval_table, **settings["eval"]},
        })  # fmt: skip
        return self._within_budget(recipe)

    def _sized(self, contestant: ModelTemplate, settings: Mapping[str, Any]) -> ModelConfig:
        given: dict[str, Any] = {"vocab_size": self.tokenizer.vocab_size, **settings}
        if "context" in fields_of(contestant):
            given["context"] = self.window
        wanted = self.budget.params or DEFAULT_PARAMS
        free = free_memory(parse_device(self.plan.train.device))
        if free is not None and wanted * LEARNED_BYTES > free:
            raise ConfigError(
                f"{wanted:,} parameters need {wanted * LEARNED_BYTES / 2**30:,.0f} GiB to learn, and "
                f"{free / 2**30:.0f} are free: ask for fewer with --params"
            )
        return scale_to_params(contestant, wanted, **given)

    def _within_budget(self, recipe: Recipe) -> Recipe:
        config, tokens = recipe.train, self.budget.tokens
        if tokens is None:
            return recipe.replace(train=config.replace(steps=FOREVER, max_seconds=self.budget.clock))
        steps = max(1, round(tokens / self._targets_per_step(recipe)))
        warmup = min(config.warmup_steps, steps // 10)
        return recipe.replace(train=config.replace(steps=steps, warmup_steps=warmup, max_seconds=None))

    def _targets_per_step(self, recipe: Recipe) -> float:
        config = recipe.train
        if self.kind == "text":
            return config.batch_size * (config.seq_len or self.window)
        some = list(islice(iter_pairs(recipe, "train"), 1000))
        sources, targets = (
            self.tokenizer.encode_batch([getattr(pair, side) for pair in some]) for side in ("source", "target")
        )
        n_targets = sum(map(len, targets)) / len(some) + 1
        if config.tokens_per_batch is None:
            return config.batch_size * n_targets
        longest = sum(max(len(a), len(b)) + 1 for a, b in zip(sources, targets, strict=True)) / len(some)
        return config.tokens_per_batch / longest * n_targets  # rows are filled up by the longer side


def _table(config: Any) -> dict[str, Any]:
    """Settings as a recipe has them; what is not set is left out."""
    return {key: value for key, value in msgspec.to_builtins(config).items() if value is not None and key != "family"}

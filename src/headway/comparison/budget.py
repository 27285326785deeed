"""What all models of a comparison share, and how a candidate becomes a recipe within the budget."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import msgspec

from headway.comparison.lineup import ModelTemplate, scale_to_params
from headway.comparison.selection import model_fields
from headway.config import DataConfig, ModelConfig, Recipe, TokenizerConfig, recipe_from_table
from headway.config.recipe_loading import apply_setting
from headway.data.builtin import CORPORA
from headway.data.readers import format_of
from headway.data.splits import read_split, sources_of, with_absolute_paths
from headway.data.synthetic_tasks import is_task
from headway.devices import parse_device
from headway.entry_points import load_declared
from headway.errors import ConfigError
from headway.tokenizers import Tokenizer
from headway.tokenizers.loading import tokenizer_file
from headway.training.record_datasets import iter_pairs
from headway.training.task import prepare_tokenizer
from headway.training.throughput import free_memory

DEFAULT_PARAMS, DEFAULT_SECONDS = 1_000_000, 60.0
DEFAULT_TRAIN = {"beta2": 0.98, "weight_decay": 0.01, "warmup_steps": 30}  # of templates
NUM_EVALS = 8  # points of a training curve
TRAIN_BYTES_PER_PARAM = 16  # float32 weight, gradient and two Adam moments
UNLIMITED_STEPS = 10**9  # of a run that max_seconds ends
SAMPLE_PAIRS = 1000  # pairs that the mean length is estimated from

TOKENIZERS = {
    "text": TokenizerConfig(kind="bpe", vocab_size=2000),
    "pairs": TokenizerConfig(kind="bpe", vocab_size=8000),
    "task": TokenizerConfig(kind="char"),
}


@dataclass(frozen=True)
class Budget:
    """The size of each model, and how long it is trained: a number of tokens or of seconds."""

    params: int | None = None  # None: a million; recipes keep the size they have
    tokens: int | None = None
    seconds: float | None = None  # None, and no tokens: a minute

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name}={value} is not a budget: it must be a finite number above 0")
        if self.tokens is not None and self.seconds is not None:
            raise ConfigError(f"tokens={self.tokens:,} and seconds={self.seconds:g} are both set: choose one")

    @property
    def time_limit(self) -> float | None:
        """Seconds of training per model; None if the budget is in tokens."""
        return (self.seconds or DEFAULT_SECONDS) if self.tokens is None else None

    @property
    def summary(self) -> str:
        amount = f"{self.time_limit:g} seconds" if self.tokens is None else f"{self.tokens:,} tokens"
        return f"about {self.params or DEFAULT_PARAMS:,} parameters, {amount} each"


# ── the shared recipe ─────────────────────────────────────────────────────────────────────────────────────────────


def shared_recipe(data: str, settings: Sequence[str]) -> Recipe:
    """The data, tokenizer and training settings that all models share, as a recipe; its model is not used."""
    load_declared("dataset", data, CORPORA)
    table: dict[str, Any] = {"data": {"path": data}}
    for setting in settings:
        if not setting.startswith("model."):
            apply_setting(table, setting)
    recipe = recipe_from_table(table)
    config = recipe.data
    if format_of(config.path) in ("csv", "tsv") and config.pairs is config.text is config.label is None:
        config = config.replace(pairs="1,2")
    return recipe.replace(data=with_absolute_paths(config))


def data_kind(data: DataConfig) -> str:
    """What the data holds: "text" for language models, "pairs" for sequence-to-sequence models."""
    kinds = {source.kind for source, _ in sources_of(data).values()}
    if kinds not in ({"text"}, {"pairs"}):
        raise ConfigError(f"{data.path} holds {' and '.join(sorted(kinds))}; a comparison takes plain text or pairs")
    return kinds.pop()


def iter_texts(recipe: Recipe, kind: str, split: Literal["train", "valid", "test"]) -> Iterator[str]:
    """The documents of a split; of pairs, source and target in turn."""
    if kind == "text":
        return iter(read_split(recipe.data, split))
    return chain.from_iterable((pair.source, pair.target) for pair in iter_pairs(recipe, split))


def shared_tokenizer(recipe: Recipe, kind: str, folder: Path, *, is_configured: bool) -> Tokenizer:
    """The tokenizer in the folder if there is one, else a new one trained on the training split. `is_configured`: the
    recipe says which, instead of the default for this kind of data."""
    if tokenizer_file(folder):
        return prepare_tokenizer(TokenizerConfig(path=str(folder)), [])
    config = recipe.tokenizer if is_configured else TOKENIZERS["task" if is_task(recipe.data.path) else kind]
    return prepare_tokenizer(config, iter_texts(recipe, kind, "train"))


@dataclass(frozen=True)
class SharedSettings:
    """Everything that is the same for all models of a comparison."""

    recipe: Recipe
    kind: str  # "text" or "pairs"
    context: int
    budget: Budget
    tokenizer: Tokenizer
    tokenizer_dir: Path

    def recipe_for(
        self, candidate: ModelTemplate | Recipe, settings: Sequence[str], own_settings: Sequence[str]
    ) -> Recipe:
        """The recipe a candidate is trained with: its own model and learning rate, and the shared rest. `settings`
        are for all models and apply where the model has them; `own_settings` are for this one."""
        is_text, fields = self.kind == "text", model_fields(candidate)
        overrides: dict[str, Any] = {"model": {}, "train": {}, "eval": {}}
        for setting in [*settings, *own_settings]:
            section, _, key = setting.partition("=")[0].strip().partition(".")
            if section in ("train", "eval") or (section == "model" and (key in fields or setting in own_settings)):
                apply_setting(overrides, setting)
        if isinstance(candidate, ModelTemplate):
            model = self._scaled(candidate, overrides["model"])
            train = {**DEFAULT_TRAIN, "batch_size": 8 if is_text else 64, **candidate.train}
        else:
            model, train = candidate.model, {**_table(candidate.train), "average_checkpoints": 0}
        train |= {"save_every": 0, "keep_checkpoints": 1}
        eval_table = {"num_evals": NUM_EVALS, "batch_size": 16 if is_text else 128}
        if is_text:
            train.setdefault("seq_len", self.context)
            eval_table["context"] = self.context
        tokenizer = {"path": str(self.tokenizer_dir.absolute()), "bpe_dropout": self.recipe.tokenizer.bpe_dropout}
        recipe = recipe_from_table({
            "model": {"family": model.family, **_table(model), **overrides["model"]},
            "tokenizer": tokenizer,
            "data": _table(self.recipe.data),
            "train": {**train, **overrides["train"]},
            "eval": {**eval_table, **overrides["eval"]},
        })  # fmt: skip
        return self._within_budget(recipe)

    def _scaled(self, template: ModelTemplate, settings: Mapping[str, Any]) -> ModelConfig:
        """The template at the size of the budget, if its training fits into memory."""
        overrides: dict[str, Any] = {"vocab_size": self.tokenizer.vocab_size, **settings}
        if "context" in model_fields(template):
            overrides["context"] = self.context
        n_params = self.budget.params or DEFAULT_PARAMS
        free = free_memory(parse_device(self.recipe.train.device))
        if free is not None and n_params * TRAIN_BYTES_PER_PARAM > free:
            raise ConfigError(
                f"training {n_params:,} parameters needs {n_params * TRAIN_BYTES_PER_PARAM / 2**30:,.0f} GiB, but only "
                f"{free / 2**30:.0f} GiB are free: lower --params"
            )
        return scale_to_params(template, n_params, **overrides)

    def _within_budget(self, recipe: Recipe) -> Recipe:
        train, tokens = recipe.train, self.budget.tokens
        if tokens is None:
            return recipe.replace(train=train.replace(steps=UNLIMITED_STEPS, max_seconds=self.budget.time_limit))
        steps = max(1, round(tokens / self._targets_per_step(recipe)))
        warmup = min(train.warmup_steps, steps // 10)
        return recipe.replace(train=train.replace(steps=steps, warmup_steps=warmup, max_seconds=None))

    def _targets_per_step(self, recipe: Recipe) -> float:
        """Target tokens of one batch."""
        train = recipe.train
        if self.kind == "text":
            return train.batch_size * (train.seq_len or self.context)
        mean_target, mean_pair = self._mean_pair_lengths
        n_pairs = train.batch_size if train.tokens_per_batch is None else train.tokens_per_batch / mean_pair
        return n_pairs * mean_target

    @cached_property
    def _mean_pair_lengths(self) -> tuple[float, float]:
        """Mean tokens of the target and of the whole pair, EOS included, over the first training pairs."""
        pairs = list(islice(iter_pairs(self.recipe, "train"), SAMPLE_PAIRS))
        sources = self.tokenizer.encode_batch([pair.source for pair in pairs])
        targets = self.tokenizer.encode_batch([pair.target for pair in pairs])
        mean_source, mean_target = (sum(map(len, texts)) / len(pairs) + 1 for texts in (sources, targets))
        return mean_target, mean_source + mean_target


def _table(config: Any) -> dict[str, Any]:
    """A config as a table of a recipe, without the settings that are None."""
    return {key: value for key, value in msgspec.to_builtins(config).items() if value is not None and key != "family"}

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
from headway.comparison.selection import OBJECTIVES, model_fields, weights_of
from headway.config import DataConfig, ModelConfig, Recipe, TokenizerConfig, recipe_from_table
from headway.config.recipe_loading import apply_setting
from headway.data.builtin import CORPORA
from headway.data.readers import format_of
from headway.data.records import KIND_NAMES, texts_of
from headway.data.splits import SplitName, read_split, sources_of, with_absolute_paths
from headway.data.synthetic_tasks import is_task
from headway.devices import parse_device
from headway.entry_points import load_declared
from headway.errors import ConfigError
from headway.evaluation.tasks import TASK_METRICS
from headway.models.init_from import merged_config
from headway.tokenizers import Tokenizer
from headway.tokenizers.loading import tokenizer_file
from headway.training.record_datasets import iter_pairs, iter_records
from headway.training.task import prepare_tokenizer
from headway.training.throughput import free_memory

DEFAULT_PARAMS, DEFAULT_SECONDS = 1_000_000, 60.0
DEFAULT_TRAIN = {"beta2": 0.98, "weight_decay": 0.01, "warmup_steps": 30}  # of templates
NUM_EVALS = 8  # points of a training curve
TRAIN_BYTES_PER_PARAM = 16  # float32 weight, gradient and two Adam moments
DURATION = ("steps", "epochs", "max_seconds")  # settings of [train] that the budget replaces
UNLIMITED_STEPS = 10**9  # of a run that max_seconds ends
SAMPLE_RECORDS = 1000  # that mean lengths are estimated from

TOKENIZERS = {
    "text": TokenizerConfig(kind="bpe", vocab_size=2000),
    "pairs": TokenizerConfig(kind="bpe", vocab_size=8000),
    "task": TokenizerConfig(kind="char"),
    "labelled": TokenizerConfig(kind="wordpiece", vocab_size=8000),
    "tagged": TokenizerConfig(kind="wordpiece", vocab_size=8000),
}
BATCH_SIZES = {"text": 8, "pairs": 64, "labelled": 32, "tagged": 32}  # of training, for templates
EVAL_BATCH_SIZES = {"text": 16, "pairs": 128, "labelled": 64, "tagged": 64}


@dataclass(frozen=True)
class Budget:
    """The size of each model, and how long it is trained: a number of tokens, of seconds, or of epochs."""

    params: int | None = None  # None: a million; recipes keep the size they have
    tokens: int | None = None
    seconds: float | None = None  # None, and neither tokens nor epochs: a minute
    epochs: float | None = None  # passes over the training split; not of text

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name}={value} is not a budget: it must be a finite number above 0")
        lengths = {"tokens": self.tokens, "seconds": self.seconds, "epochs": self.epochs}
        chosen = [
            f"{name}={value:,}" if isinstance(value, int) else f"{name}={value:g}"
            for name, value in lengths.items()
            if value is not None
        ]
        if len(chosen) > 1:
            together = "both" if len(chosen) == 2 else "all"
            raise ConfigError(f"{' and '.join(chosen)} are {together} set: choose one")

    @property
    def time_limit(self) -> float | None:
        """Seconds of training per model; None if the budget is in tokens or epochs."""
        return (self.seconds or DEFAULT_SECONDS) if self.tokens is self.epochs is None else None

    @property
    def unit(self) -> Literal["tokens", "seconds", "epochs"]:
        if self.epochs is not None:
            return "epochs"
        return "seconds" if self.tokens is None else "tokens"

    @property
    def summary(self) -> str:
        number = self.tokens or self.epochs or self.time_limit
        amount = f"{number:,}" if isinstance(number, int) else f"{number:g}"
        unit = self.unit.removesuffix("s") if number == 1 else self.unit
        return f"about {self.params or DEFAULT_PARAMS:,} parameters, {amount} {unit} each"

    def check_unit(self, data: str, kind: str) -> None:
        """Refuse a unit that this kind of data is not counted in."""
        if self.tokens is not None and kind in ("labelled", "tagged"):
            raise ConfigError(
                f"tokens={self.tokens:,} is a budget for text and pairs, but {data} holds {KIND_NAMES[kind]}: set "
                f"epochs or seconds"
            )
        if self.epochs is not None and kind == "text":
            raise ConfigError(
                f"epochs={self.epochs:g} counts passes over examples, but {data} holds text: set tokens or seconds"
            )


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
    recipe = recipe.replace(data=with_absolute_paths(config))
    if data_kind(config) in ("labelled", "tagged") and "kind" not in table.get("tokenizer", {}):
        recipe = recipe.replace(tokenizer=recipe.tokenizer.replace(kind="wordpiece"))  # encoders need [CLS] and [SEP]
    return recipe


def data_kind(data: DataConfig) -> str:
    """What the data holds: "text" for language models, "pairs" for sequence-to-sequence models, "labelled" texts for
    classifiers, "tagged" words for taggers."""
    kinds = {source.kind for source, _ in sources_of(data).values()}
    if len(kinds) > 1 or not kinds <= OBJECTIVES.keys():
        raise ConfigError(
            f"{data.path} holds {' and '.join(sorted(kinds))}; a comparison takes plain text, pairs, labelled texts or "
            f"tagged words"
        )
    return kinds.pop()


def iter_texts(recipe: Recipe, kind: str, split: SplitName) -> Iterator[str]:
    """The documents of a split; of pairs, source and target in turn; else the text of each record."""
    if kind == "text":
        return iter(read_split(recipe.data, split))
    return chain.from_iterable(texts_of(record) for record in iter_records(recipe, split, kind))


def iter_contents(recipe: Recipe, kind: str, split: SplitName) -> Iterator[str]:
    """All that a split holds, as texts: also labels and tags."""
    if kind in ("text", "pairs"):
        return iter_texts(recipe, kind, split)
    return map(repr, iter_records(recipe, split, kind))


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
    kind: str  # "text", "pairs", "labelled" or "tagged"
    context: int
    budget: Budget
    tokenizer: Tokenizer
    tokenizer_dir: Path

    def recipe_for(
        self, candidate: ModelTemplate | Recipe, settings: Sequence[str], own_settings: Sequence[str]
    ) -> Recipe:
        """The recipe a candidate is trained with: its own model and learning rate, and the shared rest. `settings`
        are for all models and apply where the model has them; `own_settings` are for this one."""
        fields = model_fields(candidate)
        overrides: dict[str, Any] = {"model": {}, "train": {}, "eval": {}}
        for setting in [*settings, *own_settings]:
            section, _, key = setting.partition("=")[0].strip().partition(".")
            if section in ("train", "eval") or (section == "model" and (key in fields or setting in own_settings)):
                apply_setting(overrides, setting)
        if isinstance(candidate, ModelTemplate):
            train = {**DEFAULT_TRAIN, "batch_size": BATCH_SIZES[self.kind], **candidate.train}
        else:
            own = _table(candidate.train).items()
            train = {key: value for key, value in own if key not in DURATION} | {"average_checkpoints": 0}
        train |= {"save_every": 0, "keep_checkpoints": 1}
        eval_table: dict[str, Any] = {"num_evals": NUM_EVALS, "batch_size": EVAL_BATCH_SIZES[self.kind]}
        if self.kind == "text":
            train.setdefault("seq_len", self.context)
            eval_table["context"] = self.context
        elif self.kind != "pairs":
            seed = self.recipe.train.seed  # of the order of the examples: the same for all
            train |= {"objective": OBJECTIVES[self.kind], "seq_len": self.context, "seed": seed}
            eval_table["metric"] = selection_metric(self.recipe, self.kind)
        recipe = recipe_from_table({
            "model": self._model_table(candidate, overrides["model"]),
            "tokenizer": self._tokenizer_table(candidate),
            "data": _table(self.recipe.data),
            "train": {**train, **overrides["train"]},
            "eval": {**eval_table, **overrides["eval"]},
        })  # fmt: skip
        if (source := recipe.finetune.init_from) is not None and recipe.model_settings is not None:
            merged_config(source, recipe.model, recipe.model_settings)  # raises if a setting does not fit the weights
        return self._within_budget(recipe)

    def _model_table(self, candidate: ModelTemplate | Recipe, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The [model] table of a candidate with these settings."""
        if isinstance(candidate, Recipe):
            table = candidate.to_table()["model"] if weights_of(candidate) else _model_settings(candidate.model)
        elif candidate.init_from is not None:
            table = {"family": candidate.family, "init_from": candidate.init_from}
        else:
            table = _model_settings(self._scaled(candidate, settings))
        return {**table, **settings}

    def _tokenizer_table(self, candidate: ModelTemplate | Recipe) -> dict[str, Any]:
        """The [tokenizer] table of a candidate: the shared tokenizer, or that of the weights it starts from."""
        if weights_of(candidate) is None:
            return {"path": str(self.tokenizer_dir.absolute()), "bpe_dropout": self.recipe.tokenizer.bpe_dropout}
        path = candidate.tokenizer.path if isinstance(candidate, Recipe) else None
        return {} if path is None else {"path": path}

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
        train = recipe.train
        if self.budget.epochs is not None:
            return recipe.replace(train=train.replace(epochs=self.budget.epochs))
        if self.budget.tokens is None:
            return recipe.replace(train=train.replace(steps=UNLIMITED_STEPS, max_seconds=self.budget.time_limit))
        steps = max(1, round(self.budget.tokens / self._targets_per_step(recipe)))
        return recipe.replace(train=train.replace(steps=steps, warmup_steps=min(train.warmup_steps, steps // 10)))

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
        pairs = list(islice(iter_pairs(self.recipe, "train"), SAMPLE_RECORDS))
        sources = self.tokenizer.encode_batch([pair.source for pair in pairs])
        targets = self.tokenizer.encode_batch([pair.target for pair in pairs])
        mean_source, mean_target = (sum(map(len, texts)) / len(pairs) + 1 for texts in (sources, targets))
        return mean_target, mean_source + mean_target


def selection_metric(recipe: Recipe, kind: str) -> str:
    """The metric of classifiers or taggers that counts, and selects the best checkpoint: that of the settings, if they
    name one."""
    if recipe.eval.metric in TASK_METRICS[OBJECTIVES[kind]]:
        return recipe.eval.metric
    if kind == "tagged":
        return "accuracy" if recipe.data.tag_scheme == "any" else "f1"
    return "accuracy" if recipe.data.label_separator is None else "micro_f1"


def _model_settings(config: ModelConfig) -> dict[str, Any]:
    return {"family": config.family, **_table(config)}


def _table(config: Any) -> dict[str, Any]:
    """A config as a table of a recipe, without the settings that are None."""
    return {key: value for key, value in msgspec.to_builtins(config).items() if value is not None and key != "family"}

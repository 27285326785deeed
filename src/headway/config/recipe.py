"""Recipes: a model, a tokenizer, data and how to learn from it, in TOML. See the package for the way in."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import tomli_w

from headway.config.base import Config, at_least, build, notes
from headway.config.models import FAMILIES, ModelConfig, model_config
from headway.errors import ConfigError, suggest
from headway.runs import Run

KIND_SETTINGS = (
    "min_frequency",
    "lowercase",
    "pre_tokenizer",
    "bpe_dropout",
)  # of a tokenizer, that not every kind has


class TokenizerConfig(Config, frozen=True, kw_only=True):
    kind: Literal["char", "word", "bpe", "wordpiece", "unigram"] = "bpe"
    vocab_size: int | None = None  # None: 8000, or every word; characters are as many as the text has
    min_frequency: int | None = None  # of words (word) and of pairs to merge (bpe, wordpiece)
    lowercase: bool | None = None  # word, wordpiece
    pre_tokenizer: Literal["punctuation", "spaces", "whitespace"] | None = None  # word: where words are cut
    special_tokens: list[str] = []  # special tokens to add to its own
    path: str | None = None  # use this tokenizer (a file or folder of any kind) instead of training one
    bpe_dropout: float = 0.0  # bpe, learning from pairs: the share of merges left out, anew each epoch; 0: none

    def __post_init__(self) -> None:
        at_least(self, "vocab_size", 1)
        at_least(self, "min_frequency", 0)
        if not 0 <= self.bpe_dropout < 1:
            raise ConfigError(f"tokenizer.bpe_dropout={self.bpe_dropout} must be at least 0 and below 1")

    @property
    def options(self) -> dict[str, Any]:
        """What the training of its kind is told, beside the size."""
        named = {"min_frequency": self.min_frequency, "lowercase": self.lowercase, "pre_tokenizer": self.pre_tokenizer}
        return {name: value for name, value in named.items() if value is not None} | {
            "special_tokens": self.special_tokens
        }


class DataConfig(Config, frozen=True, kw_only=True):
    path: str = "pydocs"  # a built-in corpus by name, a file, a folder, a glob, two files as "train.{en,de}", hub:…
    mix: dict[str, float] = {}  # several sources and their weights, in place of path
    root: str | None = None  # relative paths start here; None: $HEADWAY_DATA, then the working directory
    format: Literal["auto", "text", "jsonl", "csv", "tsv", "parquet", "conll", "squad", "lines", "misspellings"] = (
        "auto"
    )
    text: str | None = None  # column of the text, by name or by number from 1
    pairs: str | None = None  # columns of pairs: "source,target"
    label: str | None = None  # column of the label
    target_path: str | None = None  # the file that is parallel to path
    separator: str | None = None  # between the documents of a text file
    tag_scheme: Literal["bio", "iob1", "any"] = "bio"  # how tags are written
    errors: Literal["strict", "replace"] = "strict"  # bytes that are not UTF-8
    valid_fraction: float = 0.1  # the share of the text held out; 0, where nothing is learned by steps: none
    test_fraction: float = 0.0  # the share held out a second time, never looked at while training
    split: Literal["auto", "hash", "tail"] = "auto"  # documents by hash, or the end of the text
    valid_path: str | None = None  # held-out text of its own
    test_path: str | None = None

    def __post_init__(self) -> None:
        if not (
            0 <= self.valid_fraction < 1
            and 0 <= self.test_fraction < 1
            and self.valid_fraction + self.test_fraction < 1
        ):
            raise ConfigError(
                f"data.valid_fraction={self.valid_fraction}, data.test_fraction={self.test_fraction} are the shares of text held out: each from 0 on, such "
                f"as 0.1, and less than 1 together"
            )
        for path, weight in self.mix.items():
            if not 0 < weight < float("inf"):
                raise ConfigError(f"data.mix: the weight of {path!r} is {weight}, but must be a positive number")


Objective = Literal["auto", "causal", "masked", "pairs", "classify", "tag", "span"]
OptimizerName = Literal["adamw", "adam", "sgd", "muon"]
ScheduleName = Literal["cosine", "linear", "constant", "wsd", "inverse-sqrt", "step"]


class TrainConfig(Config, frozen=True, kw_only=True):
    """Optimisation. Defaults suit a small GPT on a CPU."""

    objective: Objective = "auto"  # what is learned; "auto": what the family is for (gpt causal, bert masked, …)
    label_smoothing: float = 0.0  # the share of each target spread over the vocabulary (Szegedy et al. 2016, §7)
    rdrop_alpha: float = 0.0  # pairs: see each twice, and pay for what dropout changes (R-Drop, Liang et al. 2021: 5)
    ar_alpha: float = 0.0  # recurrent models: pay for the square of what the last layer gives (Merity et al. 2017: 2)
    tar_beta: float = 0.0  # the same, for the square of its change from token to token (Merity et al. 2017: 1)

    steps: int = 1000
    batch_size: int = 16  # rows a step learns from, over all ranks and pieces
    seq_len: int | None = None  # tokens a row of text learns from at once; None: the model's context, or 64
    carry_state: bool | Literal["auto"] = (
        "auto"  # rows go on where they ended a step before; "auto": in recurrent models
    )
    tokens_per_batch: int | None = None  # rows of like length, as many as fit this many tokens, in place of batch_size
    grad_accum_steps: int = 1  # pieces a rank's rows are cut into, one after the other: less memory, the same step
    max_seconds: float | None = None  # stop, and end the schedule, after this long

    optimizer: OptimizerName = "adamw"
    lr: float = 1e-3
    muon_lr: float | None = None  # muon: of the matrices, in their own units; None: 0.02
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    momentum: float | None = None  # None: 0 for sgd, 0.95 for muon
    grad_clip: float = 1.0  # largest gradient norm; 0 turns clipping off

    schedule: ScheduleName = "cosine"
    min_lr: float = 0.0  # where cosine, linear and wsd end
    warmup_steps: int = 50
    decay_fraction: float = 0.2  # wsd: the last share of the run, in which the rate falls
    decay_from: int = 0  # step: the first step at which the rate falls
    decay_every: int = 1000  # step: steps from there to the next fall
    decay_factor: float = 0.5  # step: what the rate is multiplied with

    ema: float = 0.0  # decay of a moving average of the weights, which is then what is scored and saved; 0: none
    average_checkpoints: int = 0  # the last so many checkpoints are averaged at the end; 0: none

    seed: int = 1
    device: str = "auto"  # "auto": CUDA where there is one
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # "auto": bfloat16 on CUDA, float32 elsewhere
    compile: bool | Literal["auto", "blocks", "model"] = "auto"  # "auto": blocks, on CUDA, in batches of one shape
    residual_dtype: Literal["float32", "bfloat16"] = (
        "float32"  # of the stream between blocks, where products are bfloat16
    )
    checkpoint_activations: bool = False  # compute each block again on the way back instead of keeping it
    parallel: Literal["none", "ddp", "fsdp"] = "none"  # how the ranks that torchrun starts share the work

    save_every: int = 500  # steps between checkpoints; 0: only at the end
    keep_checkpoints: int = 2  # checkpoints kept, beside the best; 0: all
    log_every: int = 10  # steps between lines of log.jsonl
    loggers: list[Literal["tensorboard", "wandb"]] = []  # where the log also goes

    def __post_init__(self) -> None:
        for name, least in (
            ("steps", 1),
            ("batch_size", 1),
            ("tokens_per_batch", 1),
            ("grad_accum_steps", 1),
            ("warmup_steps", 0),
            ("decay_from", 0),
            ("decay_every", 1),
            ("average_checkpoints", 0),
            ("seed", 0),
            ("save_every", 0),
            ("keep_checkpoints", 0),
            ("log_every", 1),
        ):
            at_least(self, name, least)
        if self.seed >= 2**31:
            raise ConfigError(f"train.seed={self.seed} must be below 2147483648")
        from_zero = ("lr", "muon_lr", "min_lr", "weight_decay", "grad_clip", "eps", "decay_factor")
        for name in (*from_zero, "rdrop_alpha", "ar_alpha", "tar_beta"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise ConfigError(f"train.{name}={value} must be a number from 0 upwards")
        for name in ("beta1", "beta2", "momentum", "ema", "label_smoothing"):
            if getattr(self, name) is not None and not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"train.{name}={getattr(self, name)} must be at least 0 and below 1")
        if not 0 < self.decay_fraction <= 1:
            raise ConfigError(f"train.decay_fraction={self.decay_fraction} is a share of the run: above 0, at most 1")
        if self.min_lr > self.lr:
            raise ConfigError(f"train.min_lr={self.min_lr} is above train.lr={self.lr}; the schedule falls")
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise ConfigError(f"train.max_seconds={self.max_seconds} must be positive; leave it out for no limit")
        if self.schedule == "inverse-sqrt" and not self.warmup_steps:
            raise ConfigError("train.schedule='inverse-sqrt' falls from the end of its warm-up: set train.warmup_steps")
        for name, fits in (("momentum", ("sgd", "muon")), ("muon_lr", ("muon",))):
            if getattr(self, name) is not None and self.optimizer not in fits:
                value, others = getattr(self, name), " and ".join(fits)
                raise ConfigError(f"train.{name}={value} is for {others}, not train.optimizer={self.optimizer!r}")
        if self.average_checkpoints and self.average_checkpoints > self.keep_checkpoints > 0:
            raise ConfigError(
                f"train.average_checkpoints={self.average_checkpoints} checkpoints are averaged at the end, but train.keep_checkpoints={self.keep_checkpoints} are "
                f"kept; set train.keep_checkpoints={self.average_checkpoints}"
            )


class EvalConfig(Config, frozen=True, kw_only=True):
    every_steps: int = 0  # steps between evaluations on held-out text; 0: only at the end
    num_evals: int = 0  # in place of every: so many evaluations, spread over the run by steps or by the clock
    context: int | None = None  # tokens in a window of held-out text; None: the model's, or all of it as one
    batch_size: int = 16
    metric: Literal["loss", "bleu", "exact_match"] = "loss"  # what the best is best in; of pairs also what is written
    patience: int = 0  # evaluations without a new best after which training stops; 0: never

    def __post_init__(self) -> None:
        for name in ("every_steps", "num_evals", "patience"):
            at_least(self, name, 0)
        for name in ("batch_size", "context"):
            at_least(self, name, 1)
        if self.every_steps and self.num_evals:
            raise ConfigError(
                f"eval.every_steps={self.every_steps} steps, or eval.num_evals={self.num_evals} in all: one of the two"
            )
        if self.patience and not self.every_steps and not self.num_evals:
            raise ConfigError(
                f"eval.patience={self.patience} counts evaluations: set eval.every_steps or eval.num_evals"
            )


class ResultConfig(Config, frozen=True, kw_only=True):
    """What a shipped recipe reaches, beside what was published: read by people, not by the program."""

    metric: str = ""
    target: str = ""  # the published number and where it is from
    ours: str = ""  # our number, with its conditions
    command: str = ""  # which makes it again


DEFAULT_MODEL = "gpt-mini"  # of a recipe that names none: something a laptop can train


class Recipe(Config, frozen=True, kw_only=True):
    """One run: everything needed to repeat it. On disk the `[model]` table may name a preset: `name = "gpt2"`."""

    description: str = ""
    model: ModelConfig = msgspec.field(default_factory=lambda: model_config(DEFAULT_MODEL))
    tokenizer: TokenizerConfig = msgspec.field(default_factory=TokenizerConfig)
    data: DataConfig = msgspec.field(default_factory=DataConfig)
    train: TrainConfig = msgspec.field(default_factory=TrainConfig)
    eval: EvalConfig = msgspec.field(default_factory=EvalConfig)
    result: ResultConfig = msgspec.field(default_factory=ResultConfig)

    def to_toml(self) -> str:
        return tomli_w.dumps(_without_none(msgspec.to_builtins(self)))

    def explained(self) -> str:
        """The same with every setting there is, those that are not set as comments, and what each means."""
        lines = [f"description = {_toml(self.description)}"]
        for table in ("model", "tokenizer", "data", "train", "eval"):
            config = getattr(self, table)
            lines += ["", f"[{table}]"]
            lines += [f"family = {_toml(config.family)}"] if table == "model" else []
            meant = notes(type(config))
            for name in config.__struct_fields__:
                value, note = getattr(config, name), f"  # {meant[name]}" if meant.get(name) else ""
                is_derived = table == "model" and name in ("vocab_size", "bos_id", "eos_id")
                if is_derived:
                    lines.append(f"# {name}: the tokenizer's")
                else:
                    lines.append(f"# {name} ={note}" if value is None else f"{name} = {_toml(value)}{note}")
        return "\n".join(lines) + "\n"


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a TOML file, or a shipped one by name, with `--set` overrides such as "train.steps=100"."""
    file = find_recipe(path)
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        hint = "" if file.suffix == ".toml" else f"; to train on a text: headway train demo --set data.path={file}"
        raise ConfigError(f"{file} is not a recipe in TOML ({error}){hint}") from None
    names = [o for o in overrides if o.partition("=")[0].strip() == "model.name"]
    if names:  # another model: what the recipe says of its own is not for it
        table["model"] = {}
    kinds = [o.partition("=")[2].strip() for o in overrides if o.partition("=")[0].strip() == "tokenizer.kind"]
    if kinds and kinds[-1].strip("\"'") != table.get("tokenizer", {}).get("kind"):  # likewise another tokenizer
        table["tokenizer"] = {k: v for k, v in table.get("tokenizer", {}).items() if k not in KIND_SETTINGS}
    for override in [*names, *(o for o in overrides if o not in names)]:
        if override.partition("=")[0].strip() == "model.vocab_size":
            raise ConfigError(f"--set {override!r}: a model's vocabulary is its tokenizer's; set tokenizer.vocab_size")
        apply_setting(table, override)
    return recipe_from_table(table)


def recipe_from_table(table: Mapping[str, Any]) -> Recipe:
    model = table.get("model", {})
    if not isinstance(model, Mapping):
        raise ConfigError(f"model={model!r} is not a table; write model.name={model!r}")
    model = dict(model)
    name = model.pop("name", None)
    family = model.pop("family", None)
    if family is not None and family not in FAMILIES:
        near = suggest(str(family), FAMILIES, otherwise=f" Families: {', '.join(FAMILIES)}")
        raise ConfigError(f"no model family {family!r}.{near}")
    config = model_config(name if name is not None else family if family is not None else DEFAULT_MODEL, model)
    if name is not None and family is not None and FAMILIES.get(family) is not type(config):
        raise ConfigError(f"model.name={name!r} is not of model.family={family!r}; give one of the two")
    return build(Recipe, {**table, "model": msgspec.to_builtins(config)})


RECIPES = Path(__file__).parent.parent / "recipes"


def find_recipe(path: str | Path) -> Path:
    """A TOML file, a run folder (its own recipe), or the name of a shipped recipe."""
    file, shipped = Path(path), RECIPES / f"{path}.toml"
    if Run.exists(file):
        return Run(file).recipe_file
    if file.is_file():
        return file
    if shipped.is_file():
        return shipped
    names = [p.stem for p in sorted(RECIPES.glob("*.toml"))]
    raise ConfigError(
        f"no recipe {str(path)!r}: neither a TOML file nor a shipped recipe."
        + suggest(str(path), names, otherwise=f" Shipped: {', '.join(names)}")
    )


def apply_setting(table: dict[str, Any], override: str) -> None:
    """Apply "a.b=value": the value as TOML reads it, or the text as it stands where TOML cannot."""
    key, equals, raw = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"--set {override!r} is not of the form table.key=value, such as train.steps=100")
    try:
        read = tomllib.loads(f"value = {raw}")
        value = read["value"] if len(read) == 1 else raw.strip()
    except tomllib.TOMLDecodeError:
        value = raw.strip()
    if not isinstance(value, str) and _is_text(parts):
        value = raw.strip()  # such as a column's number
    for part in parts[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {override!r}: {part!r} is a value, not a table")
    table[parts[-1]] = value


def _toml(value: Any) -> str:
    """A value in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").strip()


def _is_text(parts: Sequence[str]) -> bool:
    """Whether a setting outside of the model's is a text and nothing else."""
    kind: Any = Recipe
    for part in parts:
        kind = get_type_hints(kind).get(part) if hasattr(kind, "__struct_fields__") else None
    return kind is str or (get_origin(kind) in (Union, UnionType) and set(get_args(kind)) == {str, type(None)})


def _without_none(value: Any) -> Any:
    """TOML has no null: a field at `None` is left out, and comes back as the default, `None`."""
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return value

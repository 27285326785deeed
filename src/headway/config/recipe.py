"""Recipes: a model, a tokenizer, data and how to train, in TOML."""

import copy
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin, get_type_hints

import msgspec
import tomli_w
from msgspec import Meta

from headway.config.base import (
    Config,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    about,
    build,
    descriptions,
    listed,
)
from headway.config.choices import one_of
from headway.config.models import FAMILIES, ModelConfig, model_config
from headway.config.presets import PRESETS
from headway.entry_points import load_declared, plugin_hint
from headway.errors import ConfigError, count, suggest
from headway.runs import Run

KIND_SETTINGS = ("min_frequency", "lowercase", "pre_tokenizer", "bpe_dropout")  # that only some tokenizer kinds have


class TokenizerConfig(Config, frozen=True, kw_only=True):
    kind: Annotated[str, one_of("tokenizer")] = "bpe"
    vocab_size: Annotated[PositiveInt | None, about("unset: 8000, or every word; char: every character")] = None
    min_frequency: Annotated[
        NonNegativeInt | None, about("drop rarer words (word) or merges of rarer pairs (bpe, wordpiece)")
    ] = None
    lowercase: Annotated[bool | None, about("lower-case the text (word and wordpiece)")] = None
    pre_tokenizer: Annotated[
        Literal["punctuation", "spaces", "whitespace"] | None,
        about("word: split at punctuation and spaces, at spaces, or at whitespace, which is then dropped"),
    ] = None
    special_tokens: Annotated[list[str], about("special tokens to add to the tokenizer's own")] = []
    path: Annotated[str | None, about("use this tokenizer (a file or folder of any kind) instead of training one")] = (
        None
    )
    bpe_dropout: Annotated[
        Fraction, about("training on pairs with bpe: probability of skipping a merge (Provilkov et al. 2020); 0: off")
    ] = 0.0

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments for `headway.tokenizers.train`, beside the size."""
        named = {"min_frequency": self.min_frequency, "lowercase": self.lowercase, "pre_tokenizer": self.pre_tokenizer}
        options: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        return options | ({"special_tokens": self.special_tokens} if self.special_tokens else {})


class DataConfig(Config, frozen=True, kw_only=True):
    path: Annotated[
        str, about('built-in corpus by name, file, folder, glob, parallel files "train.{en,de}", or hub:OWNER/NAME')
    ] = "pydocs"
    mix: Annotated[dict[str, float], about("several sources and their sampling weights, instead of path")] = {}
    root: Annotated[str | None, about("base of relative paths; unset: $HEADWAY_DATA, then working directory")] = None
    format: Annotated[str, one_of("reader")] = "auto"
    text: Annotated[str | None, about("text column, by name or by number from 1")] = None
    pairs: Annotated[str | None, about('source and target columns: "source,target"')] = None
    label: Annotated[str | None, about("label column")] = None
    target_path: Annotated[str | None, about("target side of parallel files; path is the source side")] = None
    separator: Annotated[str | None, about("separates the documents of a text file")] = None
    tag_scheme: Annotated[Literal["bio", "iob1", "any"], about("how token-tag files mark entities")] = "bio"
    errors: Annotated[
        Literal["strict", "replace"], about("bytes that are not UTF-8: raise an error, or replace them")
    ] = "strict"
    valid_fraction: Annotated[Fraction, about("fraction held out for validation; 0 is for n-grams only")] = 0.1
    test_fraction: Annotated[Fraction, about("fraction held out for testing, never used during training")] = 0.0
    split: Annotated[
        Literal["auto", "hash", "tail"],
        about('"hash": by document; "tail": the end of the text; "auto": hash from 20 documents on'),
    ] = "auto"
    valid_path: Annotated[str | None, about("validation data in files of its own")] = None
    test_path: Annotated[str | None, about("test data in files of its own")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.valid_fraction + self.test_fraction >= 1:
            raise ConfigError(
                f"data.valid_fraction={self.valid_fraction} and data.test_fraction={self.test_fraction} leave nothing "
                f"to train on: their sum must be below 1"
            )
        for path, weight in self.mix.items():
            if not 0 < weight < float("inf"):
                raise ConfigError(f"data.mix: the weight of {path!r} is {weight}, but must be a positive number")


ScheduleName = Literal["cosine", "linear", "constant", "wsd", "inverse-sqrt", "step"]


class TrainConfig(Config, frozen=True, kw_only=True):
    """Optimisation. Defaults suit a small GPT on a CPU."""

    objective: Annotated[str, one_of("objective"), about('"auto": the family\'s own (gpt causal, bert masked, …)')] = (
        "auto"
    )
    label_smoothing: Annotated[Fraction, about("mass spread over the vocabulary (Szegedy et al. 2016, §7)")] = 0.0
    rdrop_alpha: Annotated[
        NonNegativeFloat, about("R-Drop weight α, for training on pairs (Liang et al. 2021 use 5); 0: off")
    ] = 0.0
    ar_alpha: Annotated[
        NonNegativeFloat, about("recurrent models: activation regularisation α (Merity et al. 2017 use 2); 0: off")
    ] = 0.0
    tar_beta: Annotated[
        NonNegativeFloat, about("recurrent models: temporal activation regularisation β (they use 1); 0: off")
    ] = 0.0

    steps: Annotated[PositiveInt, about("optimizer steps")] = 1000
    batch_size: Annotated[PositiveInt, about("sequences per step, over all ranks and micro-batches")] = 16
    seq_len: Annotated[PositiveInt | None, about("tokens per training sequence; unset: the model's context, or 64")] = (
        None
    )
    carry_state: Annotated[
        bool | Literal["auto"],
        about('stateful truncated BPTT: carry the hidden state to the next batch; "auto": in recurrent models'),
    ] = "auto"
    tokens_per_batch: Annotated[
        PositiveInt | None, about("batch sequences of similar length up to this many tokens, instead of batch_size")
    ] = None
    grad_accum_steps: Annotated[PositiveInt, about("micro-batches per step: less memory, the same gradient")] = 1
    max_seconds: Annotated[PositiveFloat | None, about("stop, and finish the lr schedule, after this long")] = None

    optimizer: Annotated[str, one_of("optimizer")] = "adamw"
    lr: Annotated[NonNegativeFloat, about("peak learning rate")] = 1e-3
    muon_lr: Annotated[NonNegativeFloat | None, about("muon: learning rate of the matrices; unset: 0.02")] = None
    weight_decay: Annotated[NonNegativeFloat, about("of matrices; biases and norm gains do not decay")] = 0.1
    beta1: Annotated[Fraction, about("adam, adamw: decay of the first moment")] = 0.9
    beta2: Annotated[Fraction, about("adam, adamw: decay of the second moment")] = 0.95
    eps: Annotated[NonNegativeFloat, about("adam, adamw: added to the denominator")] = 1e-8
    momentum: Annotated[Fraction | None, about("unset: 0 for sgd, 0.95 for muon")] = None
    grad_clip: Annotated[NonNegativeFloat, about("maximum gradient norm; 0: no clipping")] = 1.0

    schedule: Annotated[ScheduleName, about("learning-rate schedule after the warmup")] = "cosine"
    min_lr: Annotated[NonNegativeFloat, about("final learning rate of cosine, linear and wsd")] = 0.0
    warmup_steps: Annotated[NonNegativeInt, about("steps of linear warmup")] = 50
    decay_fraction: Annotated[
        float, Meta(gt=0, le=1), about("wsd: the last fraction of the run, in which the rate decays")
    ] = 0.2
    decay_from: Annotated[NonNegativeInt, about("step schedule: step of the first decay")] = 0
    decay_every: Annotated[PositiveInt, about("step schedule: steps between decays")] = 1000
    decay_factor: Annotated[NonNegativeFloat, about("step schedule: factor of each decay")] = 0.5

    ema: Annotated[
        Fraction, about("decay of an exponential moving average of the weights, which is evaluated and saved; 0: off")
    ] = 0.0
    average_checkpoints: Annotated[NonNegativeInt, about("average this many last checkpoints at the end; 0: off")] = 0

    seed: Annotated[int, Meta(ge=0, lt=2**31), about("of initial weights, batch order and dropout")] = 1
    device: Annotated[str, about('"auto": CUDA if available')] = "auto"
    threads: Annotated[
        PositiveInt | Literal["auto"],
        about('CPU threads; "auto": one per idle core, or the number that a resumed run has used so far'),
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        about('of matrix products, weights stay float32; "auto": bfloat16 on CUDA, float32 elsewhere'),
    ] = "auto"
    compile: Annotated[
        bool | Literal["auto", "blocks", "model"],
        about('torch.compile; "auto": each block, on CUDA, if all batches have one shape'),
    ] = "auto"
    residual_dtype: Annotated[Literal["float32", "bfloat16"], about("of the residual stream, with dtype bfloat16")] = (
        "float32"
    )
    checkpoint_activations: Annotated[
        bool, about("recompute each block in the backward pass instead of storing its activations")
    ] = False
    parallel: Annotated[Literal["none", "ddp", "fsdp"], about("how the ranks started by torchrun share the work")] = (
        "none"
    )

    save_every: Annotated[
        NonNegativeInt,
        about("steps between regular checkpoints; the first, best and last are always saved; 0: only those"),
    ] = 500
    keep_checkpoints: Annotated[NonNegativeInt, about("checkpoints to keep, beside the best; 0: all")] = 2
    log_every: Annotated[PositiveInt, about("steps between lines of log.jsonl")] = 10
    loggers: Annotated[list[Literal["tensorboard", "wandb"]], about("further destinations of the log")] = []

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_lr > self.lr:
            raise ConfigError(f"train.min_lr={self.min_lr} is above train.lr={self.lr}; the schedule decreases")
        if self.schedule == "inverse-sqrt" and not self.warmup_steps:
            raise ConfigError("train.schedule='inverse-sqrt' decays from the end of its warmup: set train.warmup_steps")
        for name, optimizers in (("momentum", ("sgd", "muon")), ("muon_lr", ("muon",))):
            value = getattr(self, name)
            if value is not None and self.optimizer not in optimizers:
                raise ConfigError(
                    f"train.{name}={value} is for {' and '.join(optimizers)}, not train.optimizer={self.optimizer!r}"
                )
        if self.average_checkpoints and self.average_checkpoints > self.keep_checkpoints > 0:
            raise ConfigError(
                f"train.average_checkpoints={self.average_checkpoints} needs as many checkpoints, but "
                f"train.keep_checkpoints={self.keep_checkpoints}; set train.keep_checkpoints={self.average_checkpoints}"
            )


class EvalConfig(Config, frozen=True, kw_only=True):
    every_steps: Annotated[
        NonNegativeInt, about("steps between evaluations on the validation set; 0: only at the end")
    ] = 0
    num_evals: Annotated[
        NonNegativeInt, about("evaluations spread over the run, by steps or by the clock, instead of every_steps")
    ] = 0
    context: Annotated[
        PositiveInt | None, about("tokens per evaluation window; unset: the model's context, or the whole text")
    ] = None
    batch_size: Annotated[PositiveInt, about("windows or texts per evaluation batch")] = 16
    metric: Annotated[
        str,
        one_of("metric"),
        about("selects the best checkpoint; all but loss translate the validation pairs"),
    ] = "loss"
    sample_tokens: Annotated[
        NonNegativeInt, about("language models: tokens of a sample that is logged at each evaluation; 0: no samples")
    ] = 0
    patience: Annotated[
        NonNegativeInt, about("early stopping: evaluations without a new best before training stops; 0: off")
    ] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every_steps and self.num_evals:
            raise ConfigError(
                f"eval.every_steps={self.every_steps} and eval.num_evals={self.num_evals} contradict each other: "
                f"set one of the two"
            )
        if self.patience and not self.every_steps and not self.num_evals:
            raise ConfigError(
                f"eval.patience={self.patience} counts evaluations: set eval.every_steps or eval.num_evals"
            )


class ResultConfig(Config, frozen=True, kw_only=True):
    """The published result and ours, shown by `headway train --list`. Training does not use it."""

    metric: str = ""
    target: Annotated[str, about("the published number, or the one we aim for")] = ""
    ours: Annotated[str, about("our number and its conditions")] = ""
    command: Annotated[str, about("reproduces it")] = ""


DEFAULT_MODEL = "gpt-mini"  # if a recipe names none: trains on a laptop


class Recipe(Config, frozen=True, kw_only=True):
    """One run: everything needed to repeat it. In TOML the `[model]` table may name a preset: `name = "gpt2"`."""

    description: str = ""
    preset: str = ""  # the preset that the model's settings start from; `name` in the [model] table
    model: ModelConfig = msgspec.field(default_factory=lambda: model_config(DEFAULT_MODEL))
    tokenizer: TokenizerConfig = msgspec.field(default_factory=TokenizerConfig)
    data: DataConfig = msgspec.field(default_factory=DataConfig)
    train: TrainConfig = msgspec.field(default_factory=TrainConfig)
    eval: EvalConfig = msgspec.field(default_factory=EvalConfig)
    result: ResultConfig = msgspec.field(default_factory=ResultConfig)

    def __repr__(self) -> str:
        """One line; `print(recipe.to_toml())` shows every setting."""
        data = " + ".join(self.data.mix) or self.data.path
        return f"Recipe({self.preset or self.model.family} on {data}, {count(self.train.steps, 'step')})"

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, checked like the original."""
        model = changes.pop("model", self.model)
        if not isinstance(model, ModelConfig):
            raise ConfigError(f"model={model!r} is not the config of a model: use headway.config.model_config(name)")
        table = {name: value for name, value in msgspec.to_builtins(self).items() if name != "model"}
        return msgspec.structs.replace(build(type(self), {**table, **changes}), model=model)

    def to_table(self) -> dict[str, Any]:
        """The recipe as TOML has it: the preset is `model.name`, and unset settings are left out."""
        table = msgspec.to_builtins(self)
        name, model = table.pop("preset"), table.pop("model")
        model |= dict.fromkeys(self._unset_settings(), "none")
        model = {"name": name, **model} if name else model
        return dict(_without_none({"description": table.pop("description"), "model": model, **table}))

    def _unset_settings(self) -> list[str]:
        """Settings of the model that are unset here, but set in the preset or in the defaults of the family."""
        base = PRESETS[self.preset] if self.preset else type(self.model)()
        names = self.model.__struct_fields__
        return [name for name in names if getattr(self.model, name) is None and getattr(base, name) is not None]

    def to_toml(self) -> str:
        return tomli_w.dumps(self.to_table())

    def explained(self) -> str:
        """TOML with every setting and what it means; unset ones are commented out."""
        lines = [f"description = {toml_value(self.description)}"]
        for table in ("model", "tokenizer", "data", "train", "eval"):
            config = getattr(self, table)
            lines += ["", f"[{table}]"]
            if table == "model":
                lines += [f"name = {toml_value(self.preset)}  # the preset that these settings start from"] * bool(
                    self.preset
                )
                lines.append(f"family = {toml_value(config.family)}  # {listed(FAMILIES)}")
            meanings = descriptions(type(config))
            for name in config.__struct_fields__:
                value, note = getattr(config, name), f"  # {meanings[name]}" if name in meanings else ""
                is_derived = table == "model" and name in ("vocab_size", "bos_id", "eos_id")
                if is_derived:
                    lines.append(f"# {name}: set by the tokenizer")
                elif table == "model" and name in self._unset_settings():
                    lines.append(f'{name} = "none"{note}')
                else:
                    lines.append(f"# {name} ={note}" if value is None else f"{name} = {toml_value(value)}{note}")
        return "\n".join(lines) + "\n"


# ── loading ───────────────────────────────────────────────────────────────────────────────────────────────────────


def load_recipe(path: str | Path, overrides: Sequence[str] = (), *, imports: bool = True) -> Recipe:
    """Load a recipe from a TOML file, a run, or a shipped one by name, with overrides such as "train.steps=100".

    All errors of the file are reported at once, each with its line. An override may name what an installed package
    declares, which is then imported; pass `imports=False` if the overrides come from a file.
    """
    file = find_recipe(path)
    try:
        text = file.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        hint = "" if file.suffix == ".toml" else f"; to train on a text: headway train demo --set data.path={file}"
        raise ConfigError(f"{file} is not a recipe in TOML ({error}){hint}") from None
    settings = [parse_setting(override) for override in overrides]
    for key, value in settings:
        if imports and key in DECLARABLE_SETTINGS:
            load_declared(DECLARABLE_SETTINGS[key], value)
    _drop_replaced(table, dict(settings))
    for (key, value), override in zip(settings, overrides, strict=True):
        if key == "model.vocab_size":
            raise ConfigError(
                f"--set {override!r}: the model takes the tokenizer's vocabulary; set tokenizer.vocab_size"
            )
        _set(table, key, value)
    if "preset" in table:
        raise ConfigError("no setting 'preset'. Did you mean 'model.name'?", setting="preset")
    if not (errors := find_errors(table)):
        return recipe_from_table(table)
    overridden = {key for key, _ in settings} | {
        f"{table}.{key}" for table, value in settings if isinstance(value, dict) for key in value
    }
    lines = [(0 if _settings_in(e) & overridden else line_of(_setting_of(e), text), str(e)) for e in errors]
    messages = [f"line {line}: {message}" if line else message for line, message in sorted(lines)]
    if not any(line for line, _ in lines):
        raise ConfigError("\n".join(messages), setting=errors[0].setting)
    if len(messages) == 1:
        raise ConfigError(f"{file}, {messages[0]}", setting=errors[0].setting)
    raise ConfigError("\n  ".join([f"{file} has {len(messages)} errors:", *messages]), setting=errors[0].setting)


def as_recipe(recipe: Recipe | str | Path) -> Recipe:
    """The recipe itself, or the one that `load_recipe` finds under a name or a path."""
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, str | Path):
        return load_recipe(recipe)
    hint = "headway.config.recipe_from_table makes one from a dict" if isinstance(recipe, Mapping) else "such as 'demo'"
    raise ConfigError(f"recipe={recipe!r} must be a Recipe, its name or its path; {hint}")


DECLARABLE_SETTINGS = {  # settings that name something, and the kind of plug-in that may provide it
    "model.name": "family",
    "model.family": "family",
    "model.attention": "attention",
    "tokenizer.kind": "tokenizer",
    "data.path": "dataset",
    "data.format": "reader",
    "train.objective": "objective",
    "train.optimizer": "optimizer",
    "eval.metric": "metric",
}


def recipe_from_table(table: Mapping[str, Any]) -> Recipe:
    """A recipe from nested tables, as TOML has them."""
    model = table.get("model", {})
    if not isinstance(model, Mapping):
        raise ConfigError(f"model={model!r} is not a table; write model.name={model!r}", setting="model")
    model = dict(model)
    name = model.pop("name", None)
    family = model.pop("family", None)
    if family is not None and (not isinstance(family, str) or family not in FAMILIES):
        hint = plugin_hint("family", family)
        near = suggest(str(family), FAMILIES, otherwise=f" Families: {', '.join(FAMILIES)}. {hint}")
        raise ConfigError(f"no model family {family!r}.{near}", setting="model.family")
    config = model_config(name if name is not None else family if family is not None else DEFAULT_MODEL, model)
    if name is not None and family is not None and family != config.family:
        raise ConfigError(
            f"model.name={name!r} is of the family {config.family!r}, not {family!r}; give one of the two",
            setting="model.name",
        )
    rest = {key: value for key, value in table.items() if key not in ("model", "preset")}
    preset = name if name in PRESETS else ""
    return msgspec.structs.replace(build(Recipe, rest), model=config, preset=preset)


def find_errors(table: Mapping[str, Any]) -> list[ConfigError]:
    """All wrong settings of a table. Rules about several settings are checked once each setting is right by itself."""
    remaining = copy.deepcopy(dict(table))
    errors: list[ConfigError] = []
    while True:
        try:
            recipe_from_table(remaining)
            return errors
        except ConfigError as error:
            # Without its family, the rest of [model] cannot be judged.
            setting = "model" if error.setting in ("model.name", "model.family") else error.setting
            if not _remove(remaining, setting):
                return errors or [error]
            errors.append(error)


def _remove(table: dict[str, Any], setting: str) -> bool:
    """Remove a setting, such as "train.steps" or "train.loggers[0]", from nested tables."""
    *tables, name = setting.partition("[")[0].split(".")
    inner: Any = table
    for key in tables:
        inner = inner.get(key) if isinstance(inner, dict) else None
    return isinstance(inner, dict) and inner.pop(name, None) is not None


def _setting_of(error: ConfigError) -> str:
    """The setting that an error is about; where it is about several of a table, the first it names."""
    named = re.match(r"([a-z]\w*\.\w+)=", str(error))
    return named[1] if named and "." not in error.setting else error.setting


def _settings_in(error: ConfigError) -> set[str]:
    """Every setting that an error is about: "model.d_model=128 does not split into n_heads=3 equal heads" is about
    two of one table. If one of them was given with --set, the file is not to blame."""
    setting = _setting_of(error)
    table = setting.partition(".")[0]
    return {setting, *(f"{table}.{name}" for name in re.findall(r"\b([a-z]\w*)=", str(error)))}


def line_of(setting: str, text: str) -> int:
    """The line of a TOML text that sets "train.steps"; 0 if there is none."""
    keys, table = setting.partition("[")[0].split("."), ""
    for number, line in enumerate(_without_multiline_strings(text).split("\n"), start=1):
        if header := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line):
            table = header[1]
        key = re.match(r"\s*([\w.\-\"' ]+?)\s*=", line)
        name = f"{table}.{key[1]}" if key and table else key[1] if key else table if header else None
        if name and [part.strip("\"' ") for part in name.split(".")] in (keys, keys[:1] if "{" in line else keys):
            return number
    return 0


def _without_multiline_strings(text: str) -> str:
    """The text with the content of multi-line strings blanked, line breaks kept."""
    pattern = r"\"\"\".*?\"\"\"|'''.*?'''"
    return re.sub(pattern, lambda match: re.sub(r"[^\n]", " ", match[0]), text, flags=re.DOTALL)


def _drop_replaced(table: dict[str, Any], settings: Mapping[str, Any]) -> None:
    """Drop the recipe's settings of a model or tokenizer that `--set` exchanges for another one."""
    model, tokenizer = table.get("model", {}), table.get("tokenizer", {})
    if not isinstance(model, dict) or not isinstance(tokenizer, dict):
        return  # an error that `recipe_from_table` reports
    if "model.name" in settings or settings.get("model.family") not in (None, _family_of(model)):
        table["model"] = {}
        table.pop("description", None)  # of another model, as is the result
        table.pop("result", None)
    kind = tokenizer.get("kind", TokenizerConfig().kind)
    if settings.get("tokenizer.kind", kind) != kind:
        table["tokenizer"] = {key: value for key, value in tokenizer.items() if key not in KIND_SETTINGS}


def _family_of(model: Mapping[str, Any]) -> str:
    """The family of a [model] table."""
    preset = PRESETS.get(str(model.get("name", DEFAULT_MODEL)))
    return str(model.get("family") or (preset.family if preset is not None else model.get("name")))


RECIPES = Path(__file__).parent.parent / "recipes"


def find_recipe(path: str | Path) -> Path:
    """The path of a recipe: a TOML file, the recipe of a run, or a shipped recipe by name."""
    file, shipped = Path(path), RECIPES / f"{path}.toml"
    if Run.exists(file):
        return Run(file).recipe_file
    if file.is_file():
        return file
    if shipped.is_file():
        return shipped
    names = [p.stem for p in sorted(RECIPES.glob("*.toml"))]
    if str(path) in FAMILIES or str(path) in PRESETS:
        raise ConfigError(_explain_model_name(str(path)))
    raise ConfigError(
        f"no recipe {str(path)!r}: neither a TOML file nor a shipped recipe."
        + suggest(str(path), names, otherwise=f" Shipped: {', '.join(names)}")
    )


RECIPE_BY_FAMILY = {  # a small recipe for each family whose data is not plain text
    "transformer": "reverse",
    "seq2seq": "reverse",
    "bahdanau": "reverse",
    "ngram": "ngram",
}


def _explain_model_name(name: str) -> str:
    """Why the name of a family or a preset is not that of a recipe, and the command that trains such a model."""
    if name in PRESETS:
        return f"{name} is a preset of a model, not a recipe: headway train demo --set model.name={name}"
    recipe = RECIPE_BY_FAMILY.get(name, "demo")
    table = tomllib.loads((RECIPES / f"{recipe}.toml").read_text(encoding="utf-8"))
    settings = "" if _family_of(table.get("model", {})) == name else f" --set model.family={name}"
    if name == "bert":
        settings += " --set tokenizer.kind=wordpiece"  # it needs a mask token
    if name == "bilstm":
        settings += " --set train.objective=classify --set data.path=FILE"
    return f"{name} is a model family, not a recipe: headway train {recipe}{settings}"


def apply_setting(table: dict[str, Any], override: str) -> None:
    """Set "table.key=value" in a nested table."""
    _set(table, *parse_setting(override))


def parse_setting(override: str) -> tuple[str, Any]:
    """ "train.steps=100" → ("train.steps", 100). The value is parsed as TOML, or taken as text if it is not TOML."""
    key, equals, raw = override.partition("=")
    keys = [name.strip() for name in key.split(".")]
    if not equals or not all(keys):
        raise ConfigError(f"--set {override!r} is not of the form table.key=value, such as train.steps=100")
    try:
        parsed = tomllib.loads(f"value = {raw}")
        value = parsed["value"] if len(parsed) == 1 else raw.strip()
    except tomllib.TOMLDecodeError:
        value = raw.strip()
    if not isinstance(value, str) and _is_text(keys):
        value = raw.strip()  # such as a column number
    return ".".join(keys), value


def _set(table: dict[str, Any], key: str, value: Any) -> None:
    *tables, name = key.split(".")
    for part in tables:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {key}={value}: {part!r} is a value, not a table")
    table[name] = value


def changed_settings(before: Recipe, after: Recipe) -> dict[str, str]:
    """The settings of training, evaluation and data that differ, with their values in `after` as `--set` takes them."""
    changed = {}
    for table in ("data", "train", "eval"):
        old, new = getattr(before, table), getattr(after, table)
        for name in new.__struct_fields__:
            if getattr(old, name) != (value := getattr(new, name)):
                plain = msgspec.to_builtins(value)
                text = "none" if plain is None else plain if isinstance(plain, str) else toml_value(plain)
                changed[f"{table}.{name}"] = text
    return changed


def toml_value(value: Any) -> str:
    """A value as TOML on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml_value(key)} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").strip()


def _is_text(keys: Sequence[str]) -> bool:
    """Whether a setting outside the [model] table is a string or None."""
    kind: Any = Recipe
    for key in keys:
        kind = get_type_hints(kind).get(key) if hasattr(kind, "__struct_fields__") else None
    return kind is str or (get_origin(kind) in (Union, UnionType) and set(get_args(kind)) == {str, type(None)})


def _without_none(value: Any) -> Any:
    """TOML has no null: a field that is `None` is left out and comes back as its default, `None`."""
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return value

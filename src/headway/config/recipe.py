"""Recipes: a model, a tokenizer, data and how to train, in TOML."""

from typing import Annotated, Any, Literal, Self

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
from headway.errors import ConfigError, count

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
    text_pair: Annotated[str | None, about("column of a second text, to classify two texts together")] = None
    label: Annotated[str | None, about("label column")] = None
    label_separator: Annotated[
        str | None, about('several labels per text, separated by this, such as ";" (multi-label classification)')
    ] = None
    target_path: Annotated[str | None, about("target side of parallel files; path is the source side")] = None
    separator: Annotated[str | None, about("separates the documents of a text file")] = None
    tag_scheme: Annotated[Literal["bio", "bioes", "iob1", "any"], about("how token-tag files mark entities")] = "bio"
    window_overlap: Annotated[
        NonNegativeInt, about("questions: tokens that neighbouring windows of a long passage share")
    ] = 128
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


MAX_STEPS = 10**12  # of a run: more than any could take, and small enough for every counter


class TrainConfig(Config, frozen=True, kw_only=True):
    """Optimisation. Defaults suit a small GPT on a CPU."""

    objective: Annotated[str, one_of("objective"), about('"auto": the family\'s own (gpt causal, bert masked, …)')] = (
        "auto"
    )
    label_smoothing: Annotated[Fraction, about("mass spread over the vocabulary (Szegedy et al. 2016, §7)")] = 0.0
    rdrop_alpha: Annotated[
        NonNegativeFloat,
        about("R-Drop weight α, for pairs and classification (Liang et al. 2021 use 0.1 to 5); 0: off"),
    ] = 0.0
    ar_alpha: Annotated[
        NonNegativeFloat, about("recurrent models: activation regularisation α (Merity et al. 2017 use 2); 0: off")
    ] = 0.0
    tar_beta: Annotated[
        NonNegativeFloat, about("recurrent models: temporal activation regularisation β (they use 1); 0: off")
    ] = 0.0

    mask_prob: Annotated[float, Meta(gt=0, lt=1), about("masked LM: probability that a token becomes a target")] = 0.15
    whole_word_masking: Annotated[bool, about("masked LM: select all subwords of a word together")] = False
    segment_pairs: Annotated[bool, about("masked LM: rows of two segments, [CLS] A [SEP] B [SEP], instead of one")] = (
        False
    )
    class_weights: Annotated[
        Literal["balanced"] | dict[str, float] | None,
        about('classify, tag: weights of the labels in the loss; "balanced": inversely to their frequency'),
    ] = None

    steps: Annotated[int, Meta(ge=1, le=MAX_STEPS), about("optimizer steps")] = 1000
    epochs: Annotated[
        PositiveFloat | None, about("examples: passes over the training set, instead of steps; not for running text")
    ] = None
    batch_size: Annotated[PositiveInt, about("sequences per step, over all ranks and micro-batches")] = 16
    seq_len: Annotated[
        PositiveInt | None,
        about("tokens per training sequence, at most for examples; unset: the model's context, or 64"),
    ] = None
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
    layer_lr_decay: Annotated[
        float, Meta(gt=0, le=1), about("each layer below the head has this factor of the learning rate above it")
    ] = 1.0
    frozen_layers: Annotated[
        NonNegativeInt | None, about("do not train the embeddings and this many first layers; unset: train all")
    ] = None
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
        if isinstance(self.class_weights, dict):
            for label, weight in self.class_weights.items():
                if not 0 <= weight < float("inf"):
                    raise ConfigError(
                        f"train.class_weights: the weight of {label!r} is {weight}, but must be 0 or more"
                    )
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
        about("selects the best checkpoint: loss, or a metric of the task, such as accuracy, f1, bleu or gleu"),
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


class FinetuneConfig(Config, frozen=True, kw_only=True):
    """Settings of the [model] table that say which weights a run starts from, and which of them it trains."""

    init_from: Annotated[
        str | None, about("start from these weights: a model directory, a run, or an installed model such as minilm")
    ] = None
    new_head: Annotated[bool, about("initialise a new head, even if init_from has one of the same kind")] = False
    lora_rank: Annotated[
        NonNegativeInt, about("train low-rank updates of this rank, not the matrices (LoRA, Hu et al. 2022); 0: off")
    ] = 0
    lora_alpha: Annotated[
        PositiveFloat | None, about("updates are scaled by lora_alpha / lora_rank; unset: 2 lora_rank")
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.new_head and self.init_from is None:
            raise ConfigError("new_head=true is for a model with init_from: without it, every weight is new")
        if self.lora_alpha is not None and not self.lora_rank:
            raise ConfigError(f"lora_alpha={self.lora_alpha:g} scales LoRA updates: set lora_rank too")


FINETUNE_SETTINGS = FinetuneConfig.__struct_fields__  # in TOML they stand in the [model] table
DEFAULT_MODEL = "gpt-mini"  # if a recipe names none: trains on a laptop


class Recipe(Config, frozen=True, kw_only=True):
    """One run: everything needed to repeat it. In TOML the `[model]` table may name a preset: `name = "gpt2"`."""

    description: str = ""
    preset: str = ""  # the preset that the model's settings start from; `name` in the [model] table
    model: ModelConfig = msgspec.field(default_factory=lambda: model_config(DEFAULT_MODEL))
    model_settings: list[str] | None = None  # with init_from: those of the model that were given; None: all are known
    finetune: FinetuneConfig = msgspec.field(default_factory=FinetuneConfig)  # also in the [model] table
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
        if self.model_settings is not None:  # the rest follows from the weights
            model = {key: value for key, value in model.items() if key in (*self.model_settings, "family")}
        model = {"name": name, **model} if name else model
        model |= {key: value for key, value in table.pop("finetune").items() if value != getattr(DEFAULT_FINETUNE, key)}
        table.pop("model_settings")
        if self.train.epochs is not None:  # in place of steps
            table["train"].pop("steps")
        return dict(_without_none({"description": table.pop("description"), "model": model, **table}))

    def _unset_settings(self) -> list[str]:
        """Settings of the model that are unset here, but set in the preset or in the defaults of the family."""
        base = PRESETS[self.preset] if self.preset else type(self.model)()
        names = self.model.__struct_fields__
        return [name for name in names if getattr(self.model, name) is None and getattr(base, name) is not None]

    def _is_unknown(self, name: str) -> bool:
        """Whether a setting of the model follows from the weights of init_from, which are not read yet."""
        is_finetune = name in FINETUNE_SETTINGS
        return self.model_settings is not None and not is_finetune and name not in self.model_settings

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
            configs: list[Config] = [config, self.finetune] if table == "model" else [config]
            meanings = {name: text for part in configs for name, text in descriptions(type(part)).items()}
            values = {name: getattr(part, name) for part in configs for name in part.__struct_fields__}
            for name, value in values.items():
                note = f"  # {meanings[name]}" if name in meanings else ""
                is_derived = table == "model" and name in ("vocab_size", "bos_id", "eos_id")
                if is_derived:
                    lines.append(f"# {name}: set by the tokenizer")
                elif table == "model" and self._is_unknown(name):
                    lines.append(f"# {name}: that of init_from")
                elif table == "model" and name in self._unset_settings():
                    lines.append(f'{name} = "none"{note}')
                elif (table, name) == ("train", "steps") and self.train.epochs is not None:
                    lines.append(f"# {name} ={note}")  # epochs are in their place
                else:
                    lines.append(f"# {name} ={note}" if value is None else f"{name} = {toml_value(value)}{note}")
        return "\n".join(lines) + "\n"


DEFAULT_FINETUNE = FinetuneConfig()


def toml_value(value: Any) -> str:
    """A value as TOML on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml_value(key)} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").strip()


def _without_none(value: Any) -> Any:
    """TOML has no null: a field that is `None` is left out and comes back as its default, `None`."""
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return value

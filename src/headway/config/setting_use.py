"""Which settings of a recipe have an effect, given the others.

`unused_settings` finds settings without effect: `train.muon_lr` without Muon, `data.label` for a language model. Every
setting is in one of the two tables below; tests/test_setting_use.py compares them with the configs, so that a new one
is not forgotten.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from headway.config.choices import BASE_OBJECTIVES, CHOICES
from headway.config.models import NGramConfig, RNNConfig, StackConfig, TransformerConfig
from headway.config.recipe import Recipe


class Condition(NamedTuple):
    """When a setting has an effect: the words that follow "has no effect", and a predicate on the recipe."""

    words: str
    holds: Callable[[Recipe], bool]


def objective_of(recipe: Recipe) -> str:
    """The built-in objective whose data a recipe trains on."""
    name = recipe.model.objectives[0] if recipe.train.objective == "auto" else recipe.train.objective
    return BASE_OBJECTIVES.get(name, name)


def _objective(*names: str) -> Condition:
    return Condition(f"for the objective {_or(names)}", lambda recipe: objective_of(recipe) in names)


def _optimizer(*names: str) -> Condition:
    built_in = ("adamw", "adam", "sgd", "muon")  # an optimizer of a plug-in may use every setting
    return Condition(
        f"for train.optimizer={_or(names)}",
        lambda recipe: recipe.train.optimizer in names or recipe.train.optimizer not in built_in,
    )


def _schedule(*names: str) -> Condition:
    return Condition(f"for train.schedule={_or(names)}", lambda recipe: recipe.train.schedule in names)


def _tokenizer(*kinds: str) -> Condition:
    return Condition(
        f"for a new tokenizer of the kind {_or(kinds)}, not with tokenizer.path or model.init_from",
        lambda recipe: (
            recipe.tokenizer.path is None
            and recipe.finetune.init_from is None
            and recipe.tokenizer.kind in (*kinds, *_registered_tokenizers())
        ),
    )


def _registered_tokenizers() -> list[str]:
    """The kinds that plug-ins registered, which may use every setting."""
    return [kind for kind in CHOICES["tokenizer"] if kind not in ("char", "word", "bpe", "wordpiece", "unigram")]


def _or(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def _has_dropout(recipe: Recipe) -> bool:
    model: Any = recipe.model.resolved()
    return any(getattr(model, name, 0.0) for name in ("dropout", "input_dropout", "hidden_dropout"))


NEVER = Condition("in a recipe: it follows from the tokenizer and the data", lambda recipe: False)
TEXT, PAIRS = _objective("causal", "masked"), _objective("pairs")
NEW_TOKENIZER = Condition(
    "for a new tokenizer, not with tokenizer.path or model.init_from",
    lambda recipe: recipe.tokenizer.path is None and recipe.finetune.init_from is None,
)

# Setting → when it has an effect. Settings of [model] apply to the families that have them.
USED_IF: dict[str, Condition] = {
    "model.vocab_size": NEVER,
    "model.bos_id": NEVER,
    "model.eos_id": NEVER,
    "model.new_head": _objective("masked", "classify", "tag", "span"),
    "model.pooling": _objective("classify"),
    "model.labels": NEVER,
    "model.multi_label": NEVER,
    "model.rope_theta": Condition("for model.positions=rotary", lambda r: _of_model(r, "positions") == "rotary"),
    "model.k": Condition("for model.smoothing=add-k", lambda r: _of_model(r, "smoothing") == "add-k"),
    "model.hidden_dropout": Condition("for two layers or more", lambda r: _of_model(r, "n_layers") > 1),
    "model.variational_dropout": Condition("without dropout", _has_dropout),
    "model.n_layers": Condition(
        "unless n_encoder_layers or n_decoder_layers is unset",
        lambda r: (
            not isinstance(r.model, TransformerConfig) or None in (r.model.n_encoder_layers, r.model.n_decoder_layers)
        ),
    ),
    "model.tie_embeddings": Condition(
        "for a model that predicts tokens", lambda r: objective_of(r) in ("causal", "masked", "pairs")
    ),
    "tokenizer.kind": NEW_TOKENIZER,
    "tokenizer.vocab_size": _tokenizer("bpe", "wordpiece", "unigram", "word"),
    "tokenizer.min_frequency": _tokenizer("word", "bpe", "wordpiece"),
    "tokenizer.lowercase": _tokenizer("word", "wordpiece"),
    "tokenizer.pre_tokenizer": _tokenizer("word"),
    "tokenizer.special_tokens": NEW_TOKENIZER,
    "tokenizer.bpe_dropout": PAIRS,
    "data.path": Condition("with data.mix", lambda r: not r.data.mix),
    "data.text": _objective("causal", "masked", "classify"),
    "data.pairs": PAIRS,
    "data.target_path": PAIRS,
    "data.text_pair": _objective("classify"),
    "data.label": _objective("classify"),
    "data.label_separator": _objective("classify"),
    "data.window_overlap": _objective("span"),
    "data.separator": TEXT,
    "data.tag_scheme": _objective("tag"),
    "data.valid_fraction": Condition("with data.valid_path", lambda r: not r.data.valid_path),
    "data.test_fraction": Condition("with data.test_path", lambda r: not r.data.test_path),
    "data.split": Condition(
        "if no fraction of the data is held out",
        lambda r: any(
            fraction and not path
            for fraction, path in ((r.data.valid_fraction, r.data.valid_path), (r.data.test_fraction, r.data.test_path))
        ),
    ),
    "train.label_smoothing": _objective("causal", "masked", "pairs", "classify", "tag"),
    "train.rdrop_alpha": _objective("pairs", "classify"),
    "train.ar_alpha": Condition("for the families rnn and lstm", lambda r: isinstance(r.model, RNNConfig)),
    "train.tar_beta": Condition("for the families rnn and lstm", lambda r: isinstance(r.model, RNNConfig)),
    "train.carry_state": Condition("for the families rnn and lstm", lambda r: isinstance(r.model, RNNConfig)),
    "train.seq_len": _objective("causal", "masked", "classify", "tag", "span"),
    "train.mask_prob": _objective("masked"),
    "train.whole_word_masking": _objective("masked"),
    "train.segment_pairs": _objective("masked"),
    "train.class_weights": _objective("classify", "tag"),
    "train.layer_lr_decay": Condition("for the families gpt and bert", lambda r: r.model.family in ("gpt", "bert")),
    "train.frozen_layers": Condition("for the families gpt and bert", lambda r: r.model.family in ("gpt", "bert")),
    "train.epochs": _objective("pairs", "classify", "tag", "span"),
    "train.batch_size": Condition("with train.tokens_per_batch", lambda r: r.train.tokens_per_batch is None),
    "train.tokens_per_batch": _objective("pairs", "classify", "tag", "span"),
    "train.muon_lr": _optimizer("muon"),
    "train.beta1": _optimizer("adamw", "adam", "muon"),
    "train.beta2": _optimizer("adamw", "adam", "muon"),
    "train.eps": _optimizer("adamw", "adam", "muon"),
    "train.momentum": _optimizer("sgd", "muon"),
    "train.min_lr": _schedule("cosine", "linear", "wsd"),
    "train.decay_fraction": _schedule("wsd"),
    "train.decay_from": _schedule("step"),
    "train.decay_every": _schedule("step"),
    "train.decay_factor": _schedule("step"),
    "train.residual_dtype": Condition("for the family gpt", lambda r: r.model.family == "gpt"),
    "train.checkpoint_activations": Condition("for Transformers", lambda r: isinstance(r.model, StackConfig)),
    "eval.context": _objective("causal"),
    "eval.sample_tokens": _objective("causal"),
    "eval.metric": _objective("pairs", "classify", "tag", "span", "masked"),
}

ALWAYS_USED = {
    "data": ("mix", "root", "format", "errors", "valid_path", "test_path"),
    "tokenizer": ("path",),
    "train": (
        "objective", "steps", "grad_accum_steps", "max_seconds", "optimizer", "lr", "weight_decay", "grad_clip",
        "schedule", "warmup_steps", "ema", "average_checkpoints", "seed", "device", "threads", "dtype", "compile",
        "parallel", "save_every", "keep_checkpoints", "log_every", "loggers",
    ),
    "eval": ("every_steps", "num_evals", "batch_size", "patience"),
    "model": (
        "name", "family", "context", "n_heads", "n_kv_heads", "d_model", "d_head", "d_ff", "dropout", "attention",
        "positions", "norm", "norm_order", "norm_eps", "feed_forward", "bias", "scale_embeddings", "n_segments",
        "n_encoder_layers", "n_decoder_layers", "order", "smoothing", "prune", "d_hidden", "direct", "cell",
        "input_dropout", "embedding_dropout", "weight_drop", "reverse_source", "d_attention", "d_out",
        "n_buckets", "init_from", "lora_rank", "lora_alpha", "attention_scale", "similarity", "residual",
        "attention_mask",
    ),
}  # fmt: skip

# An n-gram is fitted in one pass over the text and scored once: of [train] and [eval] it uses only these.
NGRAM_SETTINGS = ("train.objective", "train.device", "train.parallel", "eval.context", "eval.batch_size")


def _of_model(recipe: Recipe, name: str) -> Any:
    return getattr(recipe.model, name, None)


def unused_settings(recipe: Recipe, names: Iterable[str]) -> dict[str, str]:
    """Of these settings ("train.muon_lr"), those that have no effect in this recipe, each with the reason."""
    unused = {}
    for name in dict.fromkeys(names):
        table = name.partition(".")[0]
        if isinstance(recipe.model, NGramConfig) and table in ("train", "eval") and name not in NGRAM_SETTINGS:
            unused[name] = f"{name} has no effect on an n-gram, which is fitted in one pass"
        elif (condition := USED_IF.get(name)) is not None and not condition.holds(recipe):
            is_for = condition.words.startswith("for ")
            unused[name] = f"{name} has no effect{': it is' if is_for else ''} {condition.words}"
    return unused


def unused_in_all(recipes: Collection[Recipe], names: Iterable[str]) -> dict[str, str]:
    """Of these settings, those that have no effect in any of the recipes, each with the reason in the last one."""
    names, unused = list(names), {}
    for recipe in recipes:
        unused = unused_settings(recipe, names)
        names = list(unused)
    return unused


def settings_in(table: Mapping[str, Any]) -> list[str]:
    """The settings in the nested tables of a recipe: "train.steps", …"""
    return [f"{name}.{key}" for name, values in table.items() if isinstance(values, Mapping) for key in values]

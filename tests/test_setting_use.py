"""Settings of a recipe that change nothing are told: each is given where it cannot matter, and where it does."""

import tomllib

import pytest

from headway.cli.unknown_options import recipe_settings
from headway.config import FAMILIES, RECIPES, load_recipe
from headway.config.recipe_loading import DERIVED_SETTINGS
from headway.config.setting_use import ALWAYS_USED, USED_IF, settings_in, unused_in_all, unused_settings
from headway.errors import ConfigError

TABLES = {f"{table}.{name}" for table, names in ALWAYS_USED.items() for name in names}

# Setting → a recipe with overrides in which it has no effect, and one in which it has.
CONTEXTS = {
    "model.rope_theta": ("demo model.positions=learned", "demo"),
    "model.k": ("ngram", "ngram model.smoothing=add-k"),
    "model.hidden_dropout": ("demo model.family=lstm model.n_layers=1", "demo model.family=lstm"),
    "model.variational_dropout": ("demo model.family=lstm model.dropout=0", "demo model.family=lstm"),
    "model.n_layers": ("reverse model.n_encoder_layers=1 model.n_decoder_layers=1", "reverse model.n_encoder_layers=1"),
    "model.new_head": ("demo", "demo model.family=bert"),
    "model.pooling": ("demo model.family=bilstm", "demo model.family=bilstm train.objective=classify"),
    "model.tie_embeddings": ("demo model.family=bert train.objective=classify", "demo model.family=bert"),
    "tokenizer.kind": ("demo tokenizer.path=x", "demo"),
    "tokenizer.vocab_size": ("demo tokenizer.path=x", "demo"),
    "tokenizer.min_frequency": ("demo tokenizer.kind=unigram", "demo"),
    "tokenizer.lowercase": ("demo", "demo tokenizer.kind=wordpiece"),
    "tokenizer.pre_tokenizer": ("demo", "demo tokenizer.kind=word"),
    "tokenizer.special_tokens": ("demo tokenizer.path=x", "demo"),
    "tokenizer.bpe_dropout": ("demo", "reverse"),
    "data.path": ("demo data.mix={a=1.0}", "demo"),
    "data.text": ("reverse", "demo"),
    "data.pairs": ("demo", "reverse"),
    "data.target_path": ("demo", "reverse"),
    "data.label": ("demo", "demo model.family=bert train.objective=classify"),
    "data.text_pair": ("demo", "demo model.family=bert train.objective=classify"),
    "data.label_separator": ("demo", "demo model.family=bert train.objective=classify"),
    "data.window_overlap": ("demo", "demo model.family=bert train.objective=span"),
    "data.separator": ("reverse", "demo"),
    "data.tag_scheme": ("demo", "demo model.family=bert train.objective=tag"),
    "data.valid_fraction": ("demo data.valid_path=x", "demo"),
    "data.test_fraction": ("demo data.test_path=x", "demo"),
    "data.split": ("demo data.valid_path=x", "demo data.valid_path=x data.test_fraction=0.1"),
    "train.label_smoothing": ("demo model.family=bert train.objective=span", "demo"),
    "train.rdrop_alpha": ("demo", "reverse"),
    "train.ar_alpha": ("demo", "demo model.family=lstm"),
    "train.tar_beta": ("demo", "demo model.family=rnn"),
    "train.carry_state": ("demo", "demo model.family=lstm"),
    "train.seq_len": ("reverse", "demo"),
    "train.mask_prob": ("demo", "demo model.family=bert"),
    "train.whole_word_masking": ("demo", "demo model.family=bert"),
    "train.segment_pairs": ("demo", "demo model.family=bert"),
    "train.class_weights": ("demo", "demo model.family=bert train.objective=tag"),
    "train.layer_lr_decay": ("demo model.family=lstm", "demo"),
    "train.frozen_layers": ("demo model.family=lstm", "demo model.family=bert"),
    "train.epochs": ("demo", "reverse"),
    "train.batch_size": ("reverse train.tokens_per_batch=100", "demo"),
    "train.tokens_per_batch": ("demo", "reverse"),
    "train.muon_lr": ("demo", "demo train.optimizer=muon"),
    "train.beta1": ("demo train.optimizer=sgd", "demo"),
    "train.beta2": ("demo train.optimizer=sgd", "demo train.optimizer=muon"),
    "train.eps": ("demo train.optimizer=sgd", "demo train.optimizer=adam"),
    "train.momentum": ("demo", "demo train.optimizer=sgd"),
    "train.min_lr": ("demo train.schedule=constant", "demo"),
    "train.decay_fraction": ("demo", "demo train.schedule=wsd"),
    "train.decay_from": ("demo", "demo train.schedule=step"),
    "train.decay_every": ("demo", "demo train.schedule=step"),
    "train.decay_factor": ("demo", "demo train.schedule=step"),
    "train.residual_dtype": ("reverse", "demo"),
    "train.checkpoint_activations": ("demo model.family=lstm", "demo"),
    "eval.context": ("reverse", "ngram"),
    "eval.sample_tokens": ("reverse", "demo"),
    "eval.metric": ("demo", "reverse"),
}


def recipe_of(words):
    name, *overrides = words.split()
    return load_recipe(name, overrides)


def test_every_setting_is_in_one_of_the_tables():
    assert {*recipe_settings(), *DERIVED_SETTINGS} == {*USED_IF, *TABLES}
    assert not USED_IF.keys() & TABLES
    assert CONTEXTS.keys() | DERIVED_SETTINGS == USED_IF.keys()


@pytest.mark.parametrize("setting", CONTEXTS)
def test_a_setting_without_effect_is_told(setting):
    without_effect, with_effect = map(recipe_of, CONTEXTS[setting])
    assert unused_settings(without_effect, [setting])[setting].startswith(f"{setting} has no effect")
    assert unused_settings(with_effect, [setting]) == {}


def test_an_n_gram_is_trained_without_steps():
    settings = ["train.steps", "train.lr", "eval.patience", "eval.context", "model.order", "data.path"]
    assert list(unused_settings(recipe_of("ngram"), settings)) == ["train.steps", "train.lr", "eval.patience"]


@pytest.mark.parametrize("setting", DERIVED_SETTINGS)
def test_what_follows_from_the_tokenizer_or_the_data_is_not_set(setting):
    with pytest.raises(ConfigError, match="the model takes the"):
        load_recipe("demo", [f"{setting}=3"])
    assert unused_settings(recipe_of("demo"), [setting])  # in a file


@pytest.mark.parametrize("file", sorted(RECIPES.glob("*.toml")), ids=lambda file: file.stem)
def test_shipped_recipes_set_nothing_without_effect(file):
    assert unused_settings(load_recipe(file), settings_in(tomllib.loads(file.read_text()))) == {}


def test_of_several_recipes_one_that_uses_a_setting_is_enough():
    gpt, lstm = recipe_of("demo"), recipe_of("demo model.family=lstm")
    assert list(unused_in_all([gpt, lstm], ["train.carry_state", "train.muon_lr"])) == ["train.muon_lr"]
    assert unused_in_all([], ["train.muon_lr"]) == {}


def test_every_family_knows_its_settings():
    for family in FAMILIES.values():
        assert {f"model.{name}" for name in family.__struct_fields__} <= {*USED_IF, *TABLES}

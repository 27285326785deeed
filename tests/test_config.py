"""The one way in: defaults → preset → TOML → --set."""

import re
import tomllib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headway
from headway.config import (
    FAMILIES,
    RECIPES,
    BahdanauConfig,
    DataConfig,
    EvalConfig,
    GPTConfig,
    NPLMConfig,
    Recipe,
    RNNConfig,
    Seq2SeqConfig,
    TokenizerConfig,
    TrainConfig,
    build,
    find_recipe,
    load_recipe,
    model_config,
    recipe_from_table,
)
from headway.config.base import descriptions
from headway.config.choices import CHOICES
from headway.config.recipe import FinetuneConfig
from headway.config.recipe_loading import changed_settings, line_of
from headway.config.renamed import RENAMED
from headway.errors import ConfigError


def write(tmp_path, text):
    file = tmp_path / "recipe.toml"
    file.write_text(text)
    return file


def test_each_stage_overrides_the_one_before(tmp_path):
    file = write(tmp_path, '[model]\nname = "gpt2-medium"\nn_heads = 8\n[train]\nsteps = 7\n')
    recipe = load_recipe(file, ["model.n_layers=2", "train.lr=1e-5", "data.path=my text.txt"])
    assert recipe.model == headway.PRESETS["gpt2-medium"].replace(n_heads=8, n_layers=2)
    assert (recipe.train.steps, recipe.train.lr, recipe.data.path) == (7, 1e-5, "my text.txt")
    assert recipe.train.batch_size == 16


@pytest.mark.parametrize("name", headway.PRESETS)
def test_toml_out_and_in_is_the_same(name):
    recipe = recipe_from_table({"model": {"name": name}})
    assert recipe_from_table(tomllib.loads(recipe.to_toml())) == recipe


@given(
    st.builds(
        GPTConfig,
        n_layers=st.integers(0, 5),
        dropout=st.floats(0, 0.9),
        norm_eps=st.floats(1e-12, 1),
        positions=st.sampled_from(["rotary", "alibi", "learned"]),
        bias=st.booleans(),
        d_ff=st.none() | st.integers(1, 10_000),
        eos_id=st.none() | st.integers(0, 50_000),
    )
)
def test_any_config_survives_toml(config):
    recipe = recipe_from_table({"model": msgspec.to_builtins(config)})
    assert recipe.model == config
    assert recipe_from_table(tomllib.loads(recipe.to_toml())).model == config


def test_configs_are_frozen_and_replaced_with_care():
    config = GPTConfig()
    with pytest.raises(AttributeError):
        config.n_layers = 3
    assert config.replace(n_layers=3).n_layers == 3
    with pytest.raises(ConfigError, match="Did you mean 'n_layers'"):
        config.replace(nlayers=3)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.step=3", "no setting 'train.step'. Did you mean 'train.steps'"),
        ("trian.steps=3", "no setting 'trian'. Did you mean 'train'"),
        ("model.n_head=3", "no setting 'model.n_head'. Did you mean 'model.n_heads'"),
        ("train.steps=many", "train.steps='many' is not a whole number"),
        ("train.steps=0", "train.steps=0 must be at least 1 and at most 1000000000000"),
        ("train.steps", "is not of the form table.key=value"),
        ("train.dtype=half", "train.dtype='half' is not one of 'auto', 'float32', 'bfloat16'"),
        ("data.valid_fraction=2", "data.valid_fraction=2"),
        ("model.name=gpt9", "no model family or preset named 'gpt9'"),
        ("tokenizer.kind=words", "tokenizer.kind='words' is not one of 'char', 'word'"),
        (
            "tokenizer.pre_tokenizer=blanks",
            "tokenizer.pre_tokenizer='blanks' is not one of 'punctuation', 'spaces', 'whitespace'",
        ),
        ("train.carry_state=maybe", "train.carry_state='maybe' is not one of "),
        ("train.steps.x=1", "'steps' is a value, not a table"),
        ("train.min_lr=1", "train.min_lr=1.* is above train.lr"),
        ("train=3", "train=3"),
        ('data.mix={a="x"}', "data.mix=.* is not a number"),
        ("model.vocab_size=300", "set tokenizer.vocab_size"),
        ("model.name=[1]", r"no model family or preset named \[1\]"),
        ("model.name=", "no model family or preset named ''"),
        ("model.family=nope", "no model family 'nope'"),
        ("train.steps=5\ntrain.lr=3", "train.steps="),
        ("train.seed=4294967296", "train.seed=4294967296 must be at least 0 and below 2147483648"),
        ("train.lr=inf", "train.lr=inf must be a finite number"),
        ("train.rdrop_alpha=-1", "train.rdrop_alpha=-1 must be at least 0"),
        ("train.agreement=5", "no setting 'train.agreement': its name is 'train.rdrop_alpha' now"),
        ("model.locked=true", "no setting 'model.locked'"),
        ("train.learning_rate=1", "no setting 'train.learning_rate'. Did you mean 'train.lr'"),
        ("train.hidden_size=8", "no setting 'train.hidden_size'. Did you mean 'model.d_model'"),
        ("learning_rate=1", "no setting 'learning_rate'. Did you mean 'train.lr'"),
        ("train.max_epochs=3", "Did you mean 'train.epochs', or for running text 'train.steps'"),
        ("train.max_seconds=10s", r"^train.max_seconds='10s' is not a number \(or none\)$"),
        ("train.loggers=csv", "^train.loggers='csv' is not a list$"),
        ("model=gpt2", "model='gpt2' is not a table; write model.name='gpt2'"),
    ],
)
def test_wrong_settings_are_explained(override, message):
    with pytest.raises(ConfigError, match=message):
        load_recipe("demo", [override])


def test_wrong_files_are_explained(tmp_path):
    with pytest.raises(ConfigError, match="Did you mean 'demo'"):
        load_recipe("demos")
    with pytest.raises(ConfigError, match="is not a recipe in TOML"):
        load_recipe(write(tmp_path, "[model\n"))
    with pytest.raises(ConfigError, match="give one of the two"):
        load_recipe(write(tmp_path, '[model]\nname = "gpt2"\nfamily = "bert"\n'))


@pytest.mark.parametrize("file", sorted(find_recipe("demo").parent.glob("*.toml")), ids=lambda f: f.stem)
def test_shipped_recipes_are_whole(file):
    assert load_recipe(file.stem).description


def test_another_model_leaves_the_recipes_own_settings_behind():
    assert load_recipe("demo", ["model.name=gpt2"]).model == headway.PRESETS["gpt2"]
    assert load_recipe("demo", ["model.n_layers=2", "model.name=gpt2"]).model.n_layers == 2
    assert load_recipe("demo", ["model.name=ngram", "model.order=5"]).model.order == 5


def test_every_old_setting_name_is_answered_with_the_new_one():
    tables = {"train": TrainConfig, "eval": EvalConfig, "data": DataConfig, "tokenizer": TokenizerConfig}
    for old, new in RENAMED.items():
        table, _, name = old.partition(".")
        kinds = [tables[table]] if table in tables else [RNNConfig, Seq2SeqConfig, BahdanauConfig]
        kind = next(kind for kind in kinds if new in kind.__struct_fields__)
        with pytest.raises(ConfigError, match=f"no setting '{old}': its name is '{table}.{new}' now"):
            build(kind, {name: 1}, where=table)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TrainConfig(steps=0), "steps=0 must be at least 1 and at most 1000000000000"),
        (lambda: TrainConfig(steps=1.5), "steps=1.5 is not a whole number"),
        (lambda: TrainConfig(lr=float("nan")), "lr=nan must be at least 0"),
        (lambda: GPTConfig(dropout=1.0), "dropout=1.0 must be at least 0 and below 1"),
        (lambda: GPTConfig(norm="batch"), "norm='batch' is not one of 'layer', 'rms'"),
        (lambda: GPTConfig(eos_id=60_000), "eos_id=60000 is outside the vocabulary of 50257"),
        (lambda: NPLMConfig(order=1), "order=1 must be at least 2"),
    ],
)
def test_configs_made_in_python_are_checked_too(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_recipe_without_a_model_gets_one_that_a_laptop_can_train(tmp_path):
    assert load_recipe(write(tmp_path, "[train]\nsteps = 3\n")).model == headway.PRESETS["gpt-mini"]


def test_a_text_given_as_a_recipe_is_told_where_to_go(tmp_path):
    (tmp_path / "my.txt").write_text("Once upon a time")
    with pytest.raises(ConfigError, match=r"headway train demo --set data\.path=.*my\.txt"):
        load_recipe(tmp_path / "my.txt")


def test_a_model_of_no_family_is_explained():
    for wrong in ("gpt2", {"family": "x"}):
        with pytest.raises(ConfigError, match="model"):
            Recipe().replace(model=wrong)


def test_none_means_derived():
    config = model_config("gpt3-xl").resolved()
    assert (config.d_head, config.n_heads * config.d_head, config.d_ff) == (128, 3072, 4 * 2048)
    assert GPTConfig(feed_forward="swiglu").resolved().d_ff == 2048  # 8/3 · 768: as many weights as 4 · 768 of two


@pytest.mark.parametrize("name", sorted(file.stem for file in RECIPES.glob("*.toml")))
def test_every_setting_is_shown_with_its_meaning_and_read_back(name):
    recipe = load_recipe(name)
    text = recipe.explained()
    again = recipe_from_table(tomllib.loads(text))
    for table in ("tokenizer", "data", "train", "eval"):
        assert getattr(again, table) == getattr(recipe, table)
        for field in getattr(recipe, table).__struct_fields__:
            assert re.search(rf"^(# )?{field} =", text, re.MULTILINE), field
    assert "# sequences per step, over all ranks and micro-batches" in text


def test_a_number_may_name_a_column():
    recipe = load_recipe("demo", ["data.text=1", "data.label=2", "data.separator=7"])
    assert (recipe.data.text, recipe.data.label, recipe.data.separator) == ("1", "2", "7")
    assert load_recipe("demo", ["tokenizer.vocab_size=300"]).tokenizer.vocab_size == 300


def test_settings_of_another_optimiser_are_refused():
    with pytest.raises(ConfigError, match=r"train\.momentum=0\.9 is for sgd and muon, not train\.optimizer='adamw'"):
        load_recipe("demo", ["train.momentum=0.9"])
    with pytest.raises(ConfigError, match=r"train\.loggers='foo' is not one of 'tensorboard', 'wandb'|foo"):
        load_recipe("demo", ['train.loggers=["foo"]'])


@pytest.mark.parametrize("kind", [*FAMILIES.values(), TokenizerConfig, DataConfig, TrainConfig, EvalConfig])
def test_every_setting_has_a_description(kind):
    assert set(descriptions(kind)) == set(kind.__struct_fields__)


# ── errors of a file, names that can be registered, "none" ────────────────────────────────────────────────────────


def test_all_errors_of_a_file_are_reported_with_their_lines(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        """description = "x"
[model]
name = "gpt-mini"
n_layer = 2

[train]
stepps = 10
lr = "fast"
optimizer = "adamW"  # of the wrong case
loggers = ["tensorbord"]
[eval]
metric = "blue"
"""
    )
    with pytest.raises(ConfigError) as caught:
        load_recipe(file)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{file} has 6 errors:"
    assert [line.partition(":")[0].strip() for line in lines[1:]] == [f"line {n}" for n in (4, 7, 8, 9, 10, 12)]
    assert "Did you mean 'model.n_layers'?" in lines[1]
    assert "Did you mean 'adamw'?" in lines[4]


def test_one_error_of_a_file_is_one_line(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("train.steps = 0\n")
    with pytest.raises(
        ConfigError,
        match=rf"^{re.escape(str(file))}, line 1: train.steps=0 must be at least 1 and at most 1000000000000$",
    ):
        load_recipe(file)
    file.write_text("[train]\nmin_lr = 1.0\n")  # a rule about two settings
    with pytest.raises(ConfigError, match=r"line 2: train.min_lr=1.0 is above train.lr"):
        load_recipe(file)


def test_errors_of_set_have_no_line():
    with pytest.raises(ConfigError, match=r"^train.steps=0 must be at least 1 and at most 1000000000000$"):
        load_recipe("demo", ["train.steps=0"])
    with pytest.raises(ConfigError, match=r"^model.d_model=128 does not split into n_heads=3 equal heads"):
        load_recipe("demo", ["model.n_heads=3"])  # the recipe sets the other of the two


@pytest.mark.parametrize("name", [*FAMILIES, "gpt2"])
def test_a_model_given_as_a_recipe_is_answered_with_a_command(name):
    if name == "ngram":  # also a recipe
        return
    with pytest.raises(ConfigError, match=f"^{name} is a .*, not a recipe: headway train (demo|reverse)") as error:
        load_recipe(name)
    recipe, *settings = str(error.value).rpartition("headway train ")[2].replace("--set ", "").split()
    suggested = load_recipe(recipe, settings)
    assert name in (suggested.model.family, suggested.preset)


def test_changed_settings_are_those_that_repeat_a_recipe():
    before = load_recipe("demo")
    changes = ["train.steps=7", "train.max_seconds=9.5", "eval.patience=2", "eval.num_evals=3", "data.path=my tale.txt"]
    after = load_recipe("demo", changes)
    settings = [f"{name}={value}" for name, value in changed_settings(before, after).items()]
    assert sorted(settings) == sorted(changes)
    assert load_recipe("demo", settings) == after
    assert changed_settings(after, before)["train.max_seconds"] == "75.0"
    unlimited = load_recipe("demo", ["train.max_seconds=none"])
    assert changed_settings(before, unlimited) == {"train.max_seconds": "none"}
    assert changed_settings(before, before) == {}


@pytest.mark.parametrize(
    ("name", "full_name"), [("steps", "train.steps"), ("n_heads", "model.n_heads"), ("kind", "tokenizer.kind")]
)
def test_a_setting_without_its_table_is_completed(name, full_name):
    with pytest.raises(ConfigError, match=f"no setting '{name}'.*{full_name}"):
        load_recipe("demo", [f"{name}=2"])


def test_none_unsets_what_a_recipe_or_preset_sets(tmp_path):
    assert load_recipe("demo").train.max_seconds is not None
    recipe = load_recipe("demo", ["train.max_seconds=none", "model.name=llama-3-8b", "model.n_kv_heads=none"])
    assert (recipe.train.max_seconds, recipe.model.n_kv_heads) == (None, None)
    (tmp_path / "again.toml").write_text(recipe.to_toml())
    assert load_recipe(tmp_path / "again.toml") == recipe
    (tmp_path / "mine.toml").write_text('[train]\nmax_seconds = "none"\n')
    assert load_recipe(tmp_path / "mine.toml").train.max_seconds is None
    with pytest.raises(ConfigError, match=r"train\.steps='none'"):
        load_recipe("demo", ["train.steps=none"])


def test_a_family_on_the_command_line_wins_over_the_name_in_the_recipe():
    recipe = load_recipe("demo", ["model.family=lstm"])
    assert (recipe.model.family, recipe.preset) == ("lstm", "")
    kept = load_recipe("demo", ["model.family=gpt"])
    assert kept.model == load_recipe("demo").model
    assert 'name = "gpt-mini"' in load_recipe("demo", ["model.name=gpt-mini"]).explained()
    assert 'family = "gpt"  # gpt, bert,' in kept.explained()


def test_choices_are_the_names_that_exist():
    """`CHOICES` needs no torch; the tables with the functions do."""
    from headway.data.readers import READERS
    from headway.evaluation.metrics import METRICS
    from headway.evaluation.tasks import TASK_METRICS
    from headway.tokenizers.factory import KINDS
    from headway.training.objectives import OBJECTIVES
    from headway.training.optimizers import OPTIMIZERS

    assert set(CHOICES["tokenizer"]) == set(KINDS)
    assert set(CHOICES["reader"]) == {"auto", *READERS}
    assert set(CHOICES["objective"]) == {"auto", *OBJECTIVES}
    assert set(CHOICES["optimizer"]) == set(OPTIMIZERS)
    assert set(CHOICES["metric"]) == {"loss", *METRICS, *(name for names in TASK_METRICS.values() for name in names)}


def test_lines_are_found_behind_multiline_strings_and_odd_line_ends(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('description = """\n[train]\nsteps = 5\n"""  # \u2028\n[train]\nsteps = 0\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"line 6: train\.steps=0"):
        load_recipe(file)
    with pytest.raises(ConfigError, match=r"^train.steps=0 must be at least 1 and at most 1000000000000$"):
        load_recipe("demo", ["train={steps=0}"])


def test_a_wrong_family_hides_the_rest_of_its_table(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('[model]\nfamily = "lstn"\ncell = "gru"\nd_hidden = 30\n[train]\nsteps = 0\n')
    with pytest.raises(ConfigError) as caught:
        load_recipe(file)
    assert [line.strip()[:6] for line in str(caught.value).splitlines()[1:]] == ["line 2", "line 6"]


@pytest.mark.parametrize("setting", ["preset=gpt2", "model.family=[1]"])
def test_what_is_no_setting_is_refused(setting):
    with pytest.raises(ConfigError, match=r"model\.name|no model family"):
        load_recipe("demo", [setting])


def test_print_config_keeps_none_against_a_preset(tmp_path):
    recipe = load_recipe("demo", ["model.name=llama-3-8b", "model.n_kv_heads=none"])
    (tmp_path / "r.toml").write_text(recipe.explained())
    assert load_recipe(tmp_path / "r.toml").model.n_kv_heads is None


# ── weights to start from ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def bert(tmp_path):
    """The directory of a small BERT."""
    sizes = {"vocab_size": 30, "context": 8, "n_layers": 1, "n_heads": 2, "d_model": 8}
    return headway.create("bert", **sizes).save(tmp_path / "bert")


FINETUNING = """
[model]
init_from = "SOURCE"
lora_rank = 4
dropout = 0.2
[train]
objective = "classify"
lr = 1e-5
layer_lr_decay = 0.9
"""


def test_a_recipe_takes_the_family_of_its_weights_and_leaves_the_sizes_open(bert, tmp_path):
    recipe = load_recipe(write(tmp_path, FINETUNING.replace("SOURCE", str(bert))))
    assert (recipe.model.family, recipe.model_settings) == ("bert", ["dropout"])
    assert (recipe.finetune.init_from, recipe.finetune.lora_rank) == (str(bert), 4)
    assert recipe.tokenizer.kind == "wordpiece"
    again = load_recipe(write(tmp_path, recipe.to_toml()))
    assert again == recipe
    assert "d_model" not in recipe.to_table()["model"]
    text = recipe.explained()
    assert "# d_model: that of init_from" in text
    assert "dropout = 0.2" in text
    assert load_recipe(write(tmp_path, text)).finetune == recipe.finetune


def test_other_weights_keep_how_to_fine_tune(bert, tmp_path):
    """--init-from OTHER: LoRA and the learning rates were chosen for fine-tuning, whatever the weights."""
    other = headway.load(bert).save(tmp_path / "other")
    file = write(tmp_path, FINETUNING.replace("SOURCE", str(bert)))
    recipe = load_recipe(file, [f"model.init_from={other}"])
    assert (recipe.finetune.init_from, recipe.finetune.lora_rank) == (str(other), 4)
    assert (recipe.train.lr, recipe.train.layer_lr_decay) == (1e-5, 0.9)
    assert load_recipe(file, [f"model.init_from={bert}"]) == load_recipe(file)  # the same weights


@pytest.mark.parametrize("override", ["model.family=bilstm", "model.family=bert", "model.name=bert-mini"])
def test_a_model_from_scratch_leaves_the_weights_and_their_rates_behind(override, bert, tmp_path):
    recipe = load_recipe(write(tmp_path, FINETUNING.replace("SOURCE", str(bert))), [override])
    assert recipe.finetune == FinetuneConfig()
    assert recipe.model_settings is None
    assert (recipe.train.lr, recipe.train.layer_lr_decay) == (TrainConfig().lr, 1.0)
    assert recipe.train.objective == "classify"


def test_weights_of_another_family_leave_the_rates_behind_too(tmp_path):
    bow = headway.create("bow", n_buckets=10, vocab_size=30).save(tmp_path / "bow")
    recipe = load_recipe("tag", [f"model.init_from={bow}"])
    assert (recipe.model.family, recipe.train.lr, recipe.train.layer_lr_decay) == ("bow", 1e-2, 1.0)


@pytest.mark.parametrize("sizes", [{"d_model": 8}, {"d_model": 50}, {"n_heads": 7}, {"n_kv_heads": 5}, {"d_model": 9}])
def test_sizes_beside_weights_need_not_fit_the_defaults_of_the_family(sizes, bert):
    """Those of the weights are not known yet; when they are, sizes that contradict them are refused."""
    settings = [f"model.{name}={value}" for name, value in sizes.items()]
    recipe = load_recipe("demo", [f"model.init_from={bert}", *settings])
    assert {name: getattr(recipe.model, name) for name in recipe.model_settings} == sizes
    assert recipe.to_table()["model"] == {"family": "bert", **sizes, "init_from": str(bert)}


def test_weights_replace_the_sizes_of_a_recipe_from_scratch(bert):
    recipe = load_recipe("demo", [f"model.init_from={bert}", "train.lr=0.5"])
    assert (recipe.model.family, recipe.model_settings, recipe.preset) == ("bert", [], "")
    assert recipe.train.lr == 0.5


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.new_head=true", "new_head=true is for a model with init_from: without it, every weight is new"),
        ("model.lora_alpha=4", "lora_alpha=4 scales LoRA updates: set lora_rank too"),
        ("model.lora_rank=-1", r"model\.lora_rank=-1 must be at least 0"),
        ("model.lora_rank=few", r"model\.lora_rank='few' is not a whole number"),
        ("init_from=x", r"no setting 'init_from'. Did you mean 'model\.init_from'"),
        ("lora_rank=2", r"no setting 'lora_rank'. Did you mean 'model\.lora_rank'"),
        ("finetune.lora_rank=2", "no setting 'finetune'"),
        ("model.init_from=nothing", "is neither a model directory, nor a run, nor one of minilm"),
        ("train.layer_lr_decay=0", r"train\.layer_lr_decay=0 must be above 0 and at most 1"),
        ("train.layer_lr_decay=1.5", r"train\.layer_lr_decay=1.5 must be above 0 and at most 1"),
        ("train.frozen_layers=-1", r"train\.frozen_layers=-1 must be at least 0"),
        ("train.class_weights=even", r"train\.class_weights='even' is neither a table nor balanced"),
        ("train.class_weights={a=-1}", "the weight of 'a' is -1.0, but must be 0 or more"),
        ("train.mask_prob=1", r"train\.mask_prob=1 must be above 0 and below 1"),
        ("train.mask_prob=0", r"train\.mask_prob=0 must be above 0 and below 1"),
        ("eval.metric=accurcy", r"eval\.metric='accurcy' is not one of .* Did you mean 'accuracy'"),
        ("eval.patience=2", r"eval\.patience=2 counts evaluations: set eval\.every_steps or eval\.num_evals"),
        ("data.window_overlap=-1", r"data\.window_overlap=-1 must be at least 0"),
    ],
)
def test_wrong_settings_of_fine_tuning_are_explained(setting, message):
    with pytest.raises(ConfigError, match=message):
        load_recipe("demo", [setting])


def test_epochs_stand_in_the_place_of_steps(tmp_path):
    recipe = load_recipe(write(tmp_path, '[model]\nfamily = "bow"\n[train]\nobjective = "classify"\nepochs = 2\n'))
    assert recipe.train.epochs == 2
    for text in (recipe.to_toml(), recipe.explained()):
        assert load_recipe(write(tmp_path, text)).train == recipe.train
    with pytest.raises(ConfigError, match=r"train\.steps=5 and train\.epochs=2.* both say how long to train: set one"):
        load_recipe(write(tmp_path, "[train]\nsteps = 5\nepochs = 2\n"))


def test_a_line_of_spaces_is_searched_in_linear_time():
    """With neighbouring repeats in its pattern, the search took minutes for a line of 3,000 spaces."""
    text = f"[train]\n{' ' * 30_000}x\n[{' ' * 30_000}\nsteps = 3\n"
    assert line_of("train.steps", text) == 4

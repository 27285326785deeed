"""Runs that start from weights: every family, what they say and log, exact resume, and what is refused."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

import headway
from headway.config import load_recipe, recipe_from_table
from headway.errors import ConfigError, HeadwayError
from headway.files import file_digest
from headway.models import BERT, Classifier, MaskedLM, Tagger
from headway.runs import Run
from headway.training.resume_check import differences
from headway.training.task import load_initial_weights, make_model, make_task
from tests.killing import killed_after
from tests.training.recipes import TEXT, TINY, for_objective, train_until_power_cut

SHORT = {"steps": 8, "save_every": 2, "log_every": 1, "keep_checkpoints": 0, "batch_size": 8, "warmup_steps": 0}
SMALL = {"d_model": 12, "context": 48}
SOURCES = {  # family → the objective whose data it trains on, and its sizes
    "gpt": ("causal", TINY),
    "nplm": ("causal", {"d_model": 6, "d_hidden": 8, "order": 3}),
    "rnn": ("causal", {"d_model": 12}),
    "lstm": ("causal", {"d_model": 12, "n_layers": 1}),
    "transformer": ("pairs", TINY),
    "seq2seq": ("pairs", {**SMALL, "n_layers": 1}),
    "bahdanau": ("pairs", {**SMALL, "d_hidden": 8}),
    "bert": ("masked", TINY),
    "bilstm": ("tag", {**SMALL, "d_hidden": 8}),
    "bow": ("classify", {"d_model": 8, "n_buckets": 50}),
}
OTHER_TEXT = " ".join(reversed(TEXT.split()))


def source_recipe(family, folder):
    """A tiny model of the family, and data that it can train on."""
    objective, sizes = SOURCES[family]
    recipe = for_objective(objective, folder, steps=2, batch_size=8, log_every=1)
    config = load_recipe("demo", [f"model.family={family}"]).model.replace(**sizes)
    return recipe.replace(model=config, preset="")


def continued(recipe, source, model=(), **train):
    """The recipe with its data, but the weights at `source`, of whatever size."""
    table = recipe.to_table()
    table["model"] = {"init_from": str(source), **dict(model)}
    table["train"] |= {**SHORT, "seed": 5, **train}
    del table["tokenizer"]
    return recipe_from_table(table)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of every family."""
    folder = tmp_path_factory.mktemp("init_from")
    for family in SOURCES:
        headway.train(source_recipe(family, folder), out=folder / family)
    (folder / "other.txt").write_text(OTHER_TEXT)
    return folder


@pytest.fixture(scope="module")
def gpt_recipe(folder):
    """A GPT continued on other text, with dropout."""
    recipe = source_recipe("gpt", folder)
    recipe = recipe.replace(data=recipe.data.replace(path=str(folder / "other.txt")))
    return continued(recipe, folder / "gpt", {"dropout": 0.1})


@pytest.fixture(scope="module")
def run(folder, gpt_recipe):
    """That run, undisturbed."""
    messages = []
    result = headway.train(gpt_recipe, out=folder / "undisturbed", on_message=messages.append)
    return result, messages


# ── every family ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", SOURCES)
def test_every_family_starts_from_the_best_checkpoint_of_a_run(family, folder):
    recipe = continued(source_recipe(family, folder), folder / family)
    assert recipe.model.family == family
    task = make_task(recipe)
    source = headway.load(folder / family)
    assert task.recipe.model == source.config.resolved()
    assert task.tokenizer.vocab == source.tokenizer.vocab
    torch.manual_seed(9)
    model = make_model(task, "cpu")
    transfer = load_initial_weights(model, task)
    assert type(model) is type(source)
    assert transfer.new == transfer.unused == []
    for name, tensor in source.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


@pytest.mark.parametrize("family", ["gpt", "transformer"])
def test_a_run_a_directory_and_a_checkpoint_are_the_same_source(family, folder, tmp_path):
    headway.load(folder / family).save(tmp_path / "directory")
    (checkpoint,) = [Run(folder / family).checkpoint_dir(2)]
    states = []
    for source in (folder / family, tmp_path / "directory", checkpoint):
        task = make_task(continued(source_recipe(family, folder), source))
        model = make_model(task, "cpu")
        load_initial_weights(model, task)
        states.append(model.state_dict())
    for name in states[0]:
        assert torch.equal(states[0][name], states[1][name])
        assert torch.equal(states[0][name], states[2][name])


def test_a_bert_of_one_task_is_fine_tuned_for_another(folder, tmp_path):
    """Masked LM → tagger → classifier, each from the run before; labels of the old head do not stay."""
    tagger = continued(for_objective("tag", folder), folder / "bert", objective="tag")
    headway.train(tagger, out=tmp_path / "tagger")
    messages = []
    classifier = continued(for_objective("classify", folder), tmp_path / "tagger", objective="classify")
    result = headway.train(classifier, out=tmp_path / "classifier", on_message=messages.append)
    assert type(headway.load(tmp_path / "tagger")) is Tagger
    assert type(result.model) is Classifier
    assert result.model.config.labels == ["animal", "colour"]
    start = Run(tmp_path / "classifier").read_log()[0]
    assert start["new"] == start["unused"] == ["output.weight", "output.bias"]
    line = next(line for line in messages if line.startswith("weights "))
    assert line.endswith(f"from {tmp_path / 'tagger'}; new: output.weight, output.bias; not used: output.weight, "
                         "output.bias")  # fmt: skip
    masked = make_task(continued(source_recipe("bert", folder), tmp_path / "classifier"))
    assert masked.recipe.model.labels == []
    assert type(make_model(masked, "cpu")) is MaskedLM


def test_a_bert_of_transformers_is_fine_tuned(folder, tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer = headway.load(folder / "bert").tokenizer
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=100, max_position_embeddings=32, **sizes)
    hf_model = transformers.BertModel(config, add_pooling_layer=False)
    hf_model.save_pretrained(tmp_path / "bert")
    tokenizer.save(tmp_path / "bert")
    assert tokenizer.vocab_size < 100  # the weights have rows that no token uses
    assert type(headway.load(tmp_path / "bert")) is BERT
    recipe = continued(for_objective("classify", folder), tmp_path / "bert", objective="classify", lr=0.0)
    result = headway.train(recipe, out=tmp_path / "run")
    assert result.model.config.vocab_size == 100
    assert Run(tmp_path / "run").read_log()[0]["new"] == [
        "encoder.pooler.weight", "encoder.pooler.bias", "output.weight", "output.bias",
    ]  # fmt: skip
    theirs = hf_model.embeddings.word_embeddings.weight
    assert torch.equal(result.model.encoder.embedding.weight, theirs)


# ── what a run says and logs ──────────────────────────────────────────────────────────────────────────────────────


def test_the_run_says_and_logs_where_its_weights_are_from(run, folder):
    result, messages = run
    source = folder / "gpt"
    n_tensors = len(headway.load(source).state_dict())
    assert f"weights     {n_tensors} of {n_tensors} tensors from {source}" in messages
    assert any(line.startswith(f"tokenizer   that of {source}, ") for line in messages)
    start = Run(result.path).read_log()[0]
    digest = file_digest(Run(source).checkpoint_dir(2) / "model.safetensors")
    expected = {"init_from": str(source), "sha256": digest, "taken": n_tensors, "new": [], "unused": []}
    assert {name: start[name] for name in expected} == expected
    recipe = load_recipe(result.path)
    assert recipe.finetune.init_from == str(source)
    assert recipe.model.dropout == 0.1


def test_the_first_checkpoint_is_the_source_and_the_last_is_not(run, folder):
    result, _ = run
    source, first = (load_file(path / "model.safetensors") for path in (
        Run(folder / "gpt").checkpoint_dir(2), Run(result.path).checkpoint_dir(0)))  # fmt: skip
    assert source.keys() == first.keys()
    assert all(torch.equal(source[name], first[name]) for name in source)
    last = load_file(result.checkpoint / "model.safetensors")
    assert not any(torch.equal(source[name], last[name]) for name in source if source[name].dim() == 2)


def test_a_relative_path_becomes_absolute(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    headway.train(continued(source_recipe("nplm", folder), "nplm", steps=1), out=tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert load_recipe(tmp_path / "run").finetune.init_from == str(folder / "nplm")
    headway.train(load_recipe(tmp_path / "run"), out=tmp_path / "again")
    assert differences(Run(tmp_path / "run"), Run(tmp_path / "again")) == []


# ── resume ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_gpt_continued_on_other_text_resumes_bit_for_bit_without_its_source(run, gpt_recipe, folder, tmp_path):
    shutil.copytree(folder / "gpt", tmp_path / "gpt")
    recipe = gpt_recipe.replace(finetune=gpt_recipe.finetune.replace(init_from=str(tmp_path / "gpt")))
    train_until_power_cut(recipe, tmp_path / "run", 5)
    shutil.rmtree(tmp_path / "gpt")
    headway.train(tmp_path / "run", resume=True)
    assert differences(Run(run[0].path), Run(tmp_path / "run")) == []
    log = Run(tmp_path / "run").read_log()
    assert log[0]["sha256"] == Run(run[0].path).read_log()[0]["sha256"]
    assert [record["step"] for record in log if record.get("event") == "resume"] == [4]


VARIANTS = {
    "muon": {"optimizer": "muon", "layer_lr_decay": 0.8},
    "frozen layers": {"frozen_layers": 0, "grad_accum_steps": 2},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_it_resumes_bit_for_bit_with(name, folder, tmp_path):
    recipe = continued(source_recipe("gpt", folder), folder / "gpt", **VARIANTS[name])
    headway.train(recipe, out=tmp_path / "undisturbed")
    train_until_power_cut(recipe, tmp_path / "run", 5)
    headway.train(tmp_path / "run", resume=True)
    assert differences(Run(tmp_path / "undisturbed"), Run(tmp_path / "run")) == []


@pytest.mark.parametrize("family", ["lstm", "transformer"])
def test_other_families_resume_bit_for_bit(family, folder, tmp_path):
    recipe = continued(source_recipe(family, folder), folder / family)
    headway.train(recipe, out=tmp_path / "undisturbed")
    train_until_power_cut(recipe, tmp_path / "run", 5)
    headway.train(recipe, out=tmp_path / "run", resume=True)  # the user's recipe, not that of the run
    assert differences(Run(tmp_path / "undisturbed"), Run(tmp_path / "run")) == []


@pytest.mark.parametrize("n_operations", [20, 240])
def test_a_run_that_is_killed_at_any_file_resumes_exactly(n_operations, run, gpt_recipe, tmp_path):
    """From some file operation on none happens any more, as after SIGKILL."""
    with killed_after(n_operations):
        headway.train(gpt_recipe, out=tmp_path / "run")
    assert SHORT["steps"] not in Run(tmp_path / "run").checkpoint_steps()
    headway.train(gpt_recipe, out=tmp_path / "run", resume=True)
    assert differences(Run(run[0].path), Run(tmp_path / "run")) == []


def test_a_run_killed_before_its_first_checkpoint_takes_the_weights_again(run, gpt_recipe, tmp_path):
    train_until_power_cut(gpt_recipe, tmp_path / "run", 1)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    log = (tmp_path / "run" / "log.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "run" / "log.jsonl").write_text(log[0])
    headway.train(tmp_path / "run", resume=True)
    assert differences(Run(run[0].path), Run(tmp_path / "run")) == []
    assert Run(tmp_path / "run").read_log()[0]["init_from"] == gpt_recipe.finetune.init_from


@pytest.fixture
def stopped(gpt_recipe, tmp_path):
    train_until_power_cut(gpt_recipe, tmp_path / "run", 5)
    return tmp_path / "run"


@pytest.mark.parametrize("setting", ["model.init_from=OTHER", "model.new_head=true", "model.lora_rank=2"])
def test_a_resumed_run_refuses_other_weights(setting, stopped, folder):
    """Even if they are the same numbers: the run has trained since."""
    setting = setting.replace("OTHER", str(Run(folder / "gpt").checkpoint_dir(2)))
    before = (stopped / "log.jsonl").read_bytes()
    for force in (False, True):
        with pytest.raises(ConfigError, match=rf"{setting}.*: a resumed run keeps its model and tokenizer; leave it"):
            headway.train(load_recipe(stopped, [setting]), out=stopped, resume=True, force=force)
    assert (stopped / "log.jsonl").read_bytes() == before


def test_the_users_recipe_resumes_it_after_the_source_has_moved(stopped, gpt_recipe, folder, tmp_path, monkeypatch):
    """A recipe that names the family needs nothing of the source: its sizes are those of the run."""
    monkeypatch.chdir(folder)
    table = gpt_recipe.to_table()
    table["model"] |= {"init_from": "gpt", "d_ff": "none"}
    recipe = recipe_from_table(table)
    (folder / "gpt").rename(folder / "moved")
    try:
        assert headway.train(recipe, out=stopped, resume=True).steps == SHORT["steps"]
    finally:
        (folder / "moved").rename(folder / "gpt")


def test_a_run_that_starts_from_random_weights_refuses_init_from(folder, tmp_path):
    recipe = source_recipe("gpt", folder)
    train_until_power_cut(recipe.replace(train=recipe.train.replace(**SHORT)), tmp_path / "run", 5)
    with pytest.raises(ConfigError, match=r"model\.init_from=.*: a resumed run keeps its model"):
        headway.train(load_recipe(tmp_path / "run", [f"model.init_from={folder / 'gpt'}"]), out=tmp_path / "run",
                      resume=True)  # fmt: skip


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────────────


def test_other_labels_are_refused_before_a_step(folder, tmp_path):
    """The error names both sides and the way out, which works."""
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "labels.tsv").write_text(
        "text\tlabel\n" + "".join(f"a {word}\t{word}\n" for word in ("cat", "dog", "sun") * 20)
    )
    recipe = continued(source_recipe("bow", folder), folder / "bow")
    recipe = recipe.replace(data=recipe.data.replace(path=str(tmp_path / "more" / "labels.tsv")))
    message = r"the head of .*bow has the labels animal, colour, the data has cat, dog, sun: set model\.new_head=true"
    with pytest.raises(ConfigError, match=message):
        headway.train(recipe, out=tmp_path / "run")
    recipe = recipe.replace(finetune=recipe.finetune.replace(new_head=True))
    result = headway.train(recipe, out=tmp_path / "new")
    assert result.model.config.labels == ["cat", "dog", "sun"]
    assert Run(tmp_path / "new").read_log()[0]["new"] == ["output.weight", "output.bias"]


REFUSED = {
    "another size": ({"n_layers": 3}, {}, r"model\.n_layers=3, but the weights of .*gpt have n_layers=1: leave it out"),
    "another family": ({"family": "lstm"}, {}, r"model\.family='lstm', but .*gpt is a gpt: leave model\.family out"),
    "a preset": ({"name": "gpt2"}, {}, r"model\.name='gpt2' and model\.init_from=.* both give the sizes of the model"),
    "another vocabulary": ({}, {"path": "OTHER"}, r"the tokenizer has \d+ tokens, that of .*gpt has \d+; the first"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_the_weights_is_refused(name, folder, tmp_path):
    model, tokenizer, message = REFUSED[name]
    table = source_recipe("gpt", folder).to_table()
    table["model"] = {"init_from": str(folder / "gpt"), **model}
    table["tokenizer"] = {key: str(folder / "bert") for key in tokenizer}
    headway.load(folder / "bert").tokenizer.save(folder / "bert")
    with pytest.raises(ConfigError, match=message):
        headway.train(recipe_from_table(table), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_tokenizer_of_the_weights_may_be_given(folder, tmp_path):
    """As a path of its own, also one relative to the data; here that of the same vocabulary."""
    (tmp_path / "data").mkdir()
    headway.load(folder / "gpt").tokenizer.save(tmp_path / "data")
    recipe = continued(source_recipe("gpt", folder), folder / "gpt")
    data = recipe.data.replace(root=str(tmp_path / "data"))
    recipe = recipe.replace(data=data, tokenizer=recipe.tokenizer.replace(path="tokenizer.json"))
    assert make_task(recipe).tokenizer.vocab == headway.load(folder / "gpt").tokenizer.vocab


def test_weights_without_a_tokenizer_need_one(folder, tmp_path):
    model = headway.load(folder / "gpt")
    tokenizer, model.tokenizer = model.tokenizer, None
    model.save(tmp_path / "bare")
    recipe = continued(source_recipe("gpt", folder), tmp_path / "bare")
    with pytest.raises(ConfigError, match=r"bare has no tokenizer: give the one .* tokenizer\.path=PATH"):
        make_task(recipe)
    tokenizer.save(tmp_path)
    make_task(recipe.replace(tokenizer=recipe.tokenizer.replace(path=str(tmp_path / "tokenizer.json"))))


def test_a_source_without_weights_is_refused(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"model\.init_from='.*nothing' is neither a model directory, nor a run"):
        continued(source_recipe("gpt", folder), tmp_path / "nothing")
    shutil.copytree(folder / "gpt", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(HeadwayError, match="run"):
        headway.train(continued(source_recipe("gpt", folder), tmp_path / "run"), out=tmp_path / "new")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text(json.dumps({"model_type": "t5"}))
    with pytest.raises(ConfigError, match=r"odd.config\.json: model_type='t5' is not supported"):
        continued(source_recipe("gpt", folder), tmp_path / "odd")


def test_a_model_given_in_python_needs_the_head_and_the_labels_of_the_data(folder, tmp_path):
    recipe = source_recipe("bow", folder)
    model = headway.load(folder / "bow")
    with pytest.raises(ConfigError, match=r"'classify' trains a Classifier, and the model is a BagOfWords: pass"):
        headway.train(recipe, model=model.encoder, out=tmp_path / "run")
    model.config = model.encoder.config = model.config.replace(labels=["colour", "animal"])
    with pytest.raises(ConfigError, match=r"has the labels colour, animal, the data has animal, colour: pass a model"):
        headway.train(recipe, model=model, out=tmp_path / "run")

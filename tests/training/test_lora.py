"""LoRA runs: only updates and head are trained, checkpoints hold the merged model, resuming is exact."""

import shutil
from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

import headway
from headway.config import load_recipe
from headway.errors import CheckpointError, ConfigError
from headway.models import GPT, Classifier
from headway.models.lora_adapters import save_adapter
from headway.nn.lora import lora_layers
from headway.runs import Run
from headway.training.checkpoint import load_with_lora
from headway.training.resume_check import differences
from headway.training.run_evaluation import evaluate_split
from headway.training.task import make_model, make_task
from headway.training.trainable import choose_trainable
from tests.training.recipes import TEXT, TINY, for_objective, make, train_until_power_cut

SHORT = {"steps": 8, "save_every": 2, "log_every": 1, "keep_checkpoints": 0, "lr": 1e-2, "warmup_steps": 0}


def with_lora(recipe, base, **finetune):
    """The recipe, with LoRA updates of the weights at `base`."""
    settings = {"init_from": str(base), "lora_rank": 4, **finetune}
    return recipe.replace(finetune=recipe.finetune.replace(**settings), model_settings=[], preset="")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A GPT and a masked LM to start from."""
    folder = tmp_path_factory.mktemp("lora")
    headway.train(make(folder, model=TINY, train={"steps": 60}), out=folder / "gpt")
    headway.train(for_objective("masked", folder, steps=2), out=folder / "masked")
    return folder


@pytest.fixture(scope="module")
def run(folder):
    """An undisturbed run of 8 steps with LoRA, with dropout."""
    recipe = with_lora(make(folder, train=SHORT), folder / "gpt")
    recipe = recipe.replace(model=recipe.model.replace(dropout=0.1), model_settings=["dropout"])
    messages = []
    result = headway.train(recipe, out=folder / "run", on_message=messages.append)
    return result, messages


def test_the_run_says_how_much_it_trains(run, folder):
    result, messages = run
    n_updates = 4 * ((32 + 96) + (32 + 32) + (32 + 128) + (128 + 32))
    n_params = headway.load(folder / "gpt").n_params
    line = next(line for line in messages if line.startswith("model "))
    assert f"{n_params:,} parameters, {n_updates:,} trained by LoRA of rank 4" in line
    start = Run(result.path).read_log()[0]
    assert (start["n_params"], start["n_trained"]) == (n_params, n_updates)


def test_checkpoints_and_the_result_are_plain_models(run):
    result, _ = run
    loaded = headway.load(result.checkpoint)
    assert type(loaded) is type(result.model) is GPT
    assert not lora_layers(result.model)
    for name, tensor in result.model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name])
    assert "blocks.0.attention.qkv.lora_a" not in loaded.state_dict()


def test_the_base_stays_bit_identical(run, folder):
    result, _ = run
    base = headway.load(folder / "gpt").state_dict()
    saved = load_file(result.checkpoint / "training.safetensors")
    adapted = {name for name in base if f"model/{name}" in saved}
    assert len(adapted) == 4
    for name, tensor in base.items():
        now = saved[f"model/{name}"] if name in adapted else result.model.state_dict()[name]
        assert torch.equal(now, tensor), name
        assert torch.equal(result.model.state_dict()[name], tensor) == (name not in adapted)
    moments = [name for name in saved if name.startswith("exp_avg/")]
    assert len(moments) == 8
    assert all(name.endswith(("lora_a", "lora_b")) for name in moments)


def test_the_validation_score_is_that_of_the_saved_model(run):
    result, _ = run
    recipe = load_recipe(result.path)
    score = evaluate_split(headway.load(result.checkpoint), recipe, batch_size=recipe.eval.batch_size)
    assert score.to_dict() == result.score.to_dict()


def test_resuming_is_bit_exact_without_the_source(run, folder, tmp_path):
    result, _ = run
    shutil.copytree(folder / "gpt", tmp_path / "gpt")
    recipe = load_recipe(result.path)
    recipe = recipe.replace(finetune=recipe.finetune.replace(init_from=str(tmp_path / "gpt")))
    train_until_power_cut(recipe, tmp_path / "resumed", 5)
    shutil.rmtree(tmp_path / "gpt")
    headway.train(tmp_path / "resumed", resume=True)
    assert differences(Run(result.path), Run(tmp_path / "resumed")) == []


VARIANTS = {
    "ema": {"train": {"ema": 0.9}},
    "checkpointed activations": {"train": {"checkpoint_activations": True, "dtype": "bfloat16"}},
    "averaged checkpoints": {"train": {"average_checkpoints": 2}},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_resuming_is_bit_exact_with(name, folder, tmp_path):
    recipe = with_lora(make(folder, train={**SHORT, **VARIANTS[name]["train"]}), folder / "gpt")
    whole = headway.train(recipe, out=tmp_path / "undisturbed")
    train_until_power_cut(recipe, tmp_path / "resumed", 5)
    resumed = headway.train(tmp_path / "resumed", resume=True)
    assert differences(Run(whole.path), Run(resumed.path)) == []
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)
    on_disk = headway.load(whole.path / "averaged" if "averaged" in name else whole.checkpoint)
    for a, b in zip(whole.model.parameters(), on_disk.parameters(), strict=True):
        assert torch.equal(a, b)


def test_compiled_blocks_learn_the_same(folder, tmp_path, monkeypatch):
    """The backend is "aot_eager", which skips the generation of C++."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    losses = []
    for compile_setting in (False, "blocks"):
        recipe = with_lora(make(folder, train={**SHORT, "steps": 2, "compile": compile_setting}), folder / "gpt")
        headway.train(recipe, out=tmp_path / str(compile_setting))
        log = Run(tmp_path / str(compile_setting)).read_log()
        losses.append([record["loss"] for record in log if "loss" in record])
    assert_close(*(torch.tensor(values) for values in losses), rtol=1e-4, atol=1e-4)


def test_a_gpt_adapts_to_other_text(folder, tmp_path):
    """Words in reverse order: new to the model, and easy to learn."""
    text = " ".join(reversed(TEXT.split()))
    (tmp_path / "reversed.txt").write_text(text)
    train = {"steps": 120, "lr": 2e-2, "batch_size": 8, "warmup_steps": 5}
    recipe = make(folder, data={"path": str(tmp_path / "reversed.txt")}, train=train)
    recipe = with_lora(recipe, folder / "gpt", lora_rank=8)
    before = headway.evaluate(headway.load(folder / "gpt"), text[:400]).bits_per_byte
    after = headway.evaluate(headway.train(recipe, out=tmp_path / "run").model, text[:400]).bits_per_byte
    assert after < 0.8 * before


def test_a_classifier_trains_its_head_and_pooler_as_a_whole(folder, tmp_path):
    recipe = with_lora(for_objective("classify", folder, **SHORT), folder / "masked")
    result = headway.train(recipe, out=tmp_path / "run")
    assert isinstance(result.model, Classifier)
    base = headway.load(folder / "masked").encoder.state_dict()
    changed = {name for name, t in result.model.encoder.state_dict().items() if not torch.equal(t, base[name])}
    block = [f"blocks.0.{name}.weight" for name in ("attention.qkv", "attention.out")]
    block += [f"blocks.0.feed_forward.{name}.weight" for name in ("up", "down")]
    assert changed == {*block, "pooler.weight", "pooler.bias"}
    moments = [n for n in load_file(result.checkpoint / "training.safetensors") if n.startswith("exp_avg/")]
    assert {"exp_avg/output.weight", "exp_avg/encoder.pooler.bias"} <= set(moments)


ADAPTED = {"gpt": ("causal", {}), "classifier": ("classify", {}), "classifier with ema": ("classify", {"ema": 0.8})}


@pytest.mark.parametrize("name", ADAPTED)
def test_the_adapter_of_a_run_on_its_base_is_the_model_of_the_run(name, folder, tmp_path):
    objective, train = ADAPTED[name]
    base = folder / ("gpt" if objective == "causal" else "masked")
    recipe = make(folder, train=SHORT) if objective == "causal" else for_objective(objective, folder, **SHORT)
    recipe = with_lora(recipe.replace(train=recipe.train.replace(**train)), base)
    result = headway.train(recipe, out=tmp_path / "run")
    save_adapter(load_with_lora(tmp_path / "run"), tmp_path / "adapter", base=str(base))
    model = headway.load(base, adapter=tmp_path / "adapter")
    assert type(model) is type(result.model)
    assert model.config.replace(dropout=0.0) == result.model.config.replace(dropout=0.0)
    assert model.tokenizer.vocab == result.model.tokenizer.vocab
    whole = headway.load(tmp_path / "run").state_dict()
    for key, tensor in model.state_dict().items():
        assert_close(tensor, whole[key], rtol=0, atol=1e-5)
    ids = torch.arange(12).view(1, 12)
    model.tokenizer = result.model.tokenizer = None  # whose texts would start with another token
    with torch.no_grad():
        assert_close(model(ids), result.model(ids), rtol=0, atol=1e-5)


def test_a_run_without_updates_has_no_adapter(folder):
    with pytest.raises(
        CheckpointError, match=r"has no LoRA updates: name a run that was trained with model\.lora_rank"
    ):
        load_with_lora(folder / "gpt")


OBJECTIVES = {"masked": "dense.weight", "tag": "output.weight"}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_only_the_updates_and_the_head_are_trained(objective, folder, tmp_path):
    """Of a head that does not use the pooler, that stays as it is."""
    recipe = with_lora(for_objective(objective, folder, **SHORT, weight_decay=0.5), folder / "masked")
    task = make_task(recipe)
    torch.manual_seed(1)
    model = make_model(task, "cpu")
    choose_trainable(model, task.recipe)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    head = {name for name, _ in model.named_parameters() if not name.startswith("encoder.")}
    assert OBJECTIVES[objective] in head
    assert {name for name in trained if not name.endswith(("lora_a", "lora_b"))} == head
    result = headway.train(recipe, out=tmp_path / "run")
    base = headway.load(folder / "masked").encoder.state_dict()
    changed = {name for name, t in result.model.encoder.state_dict().items() if not torch.equal(t, base[name])}
    assert len(changed) == 4
    assert all(name.startswith("blocks.0.") and name.endswith(".weight") for name in changed)


def test_frozen_layers_do_not_train_their_updates(folder):
    recipe = make(folder, model={**TINY, "n_layers": 3}, train={"frozen_layers": 2})
    recipe = recipe.replace(finetune=recipe.finetune.replace(lora_rank=2))
    task = make_task(recipe)
    model = make_model(task, "cpu")
    choose_trainable(model, task.recipe)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert len(trained) == 8
    assert all(name.startswith("blocks.2.") for name in trained)


def test_a_model_of_the_user_is_adapted_in_place(folder, tmp_path):
    model = headway.load(folder / "gpt")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    recipe = make(folder, train={**SHORT, "steps": 2})
    recipe = recipe.replace(finetune=recipe.finetune.replace(lora_rank=2, lora_alpha=1.0))
    result = headway.train(recipe, model=model, out=tmp_path / "run")
    assert result.model is model
    assert all(parameter.requires_grad for parameter in model.parameters())
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert len(changed) == 4
    headway.train(tmp_path / "run", resume=True)  # complete; it needs no weights to start from


REFUSED = {
    "random weights": ({}, {}, r"model\.lora_rank=2 trains updates of given weights: name them with model\.init_from"),
    "muon": ({"optimizer": "muon"}, {}, r"model\.lora_rank=2 with train\.optimizer='muon'.*train\.optimizer=adamw"),
    "fsdp": ({"parallel": "fsdp"}, {}, r"model\.lora_rank=2 with train\.parallel='fsdp'.*train\.parallel=ddp"),
    "lstm": ({}, {"family": "lstm"}, r"model\.lora_rank=2 is for the families gpt and bert, not for an lstm"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_lora_is_refused_with(name, folder, tmp_path):
    train, model, message = REFUSED[name]
    recipe = make(folder, train=train) if not model else headway.load_recipe("demo", ["model.family=lstm"])
    recipe = recipe.replace(finetune=recipe.finetune.replace(lora_rank=2))
    with pytest.raises(ConfigError, match=message):
        headway.train(recipe, out=tmp_path / "run") if name == "random weights" else make_task(recipe)


def test_a_model_with_updates_is_not_trained(folder, tmp_path):
    from headway.nn.lora import add_lora

    model = add_lora(headway.load(folder / "gpt"), 2, 2.0)
    with pytest.raises(ConfigError, match=r"merge them first, merge_lora\(model\)"):
        headway.train(make(folder), model=model, out=tmp_path / "run")

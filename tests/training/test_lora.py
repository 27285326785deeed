"""LoRA runs: only updates and head are trained, checkpoints hold the merged model, resuming is exact."""

import shutil

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

import headway
from headway.config import load_recipe
from headway.errors import ConfigError
from headway.models import GPT, Classifier
from headway.nn.lora import lora_layers
from headway.runs import Run
from headway.training.resume_check import differences
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
    assert headway.evaluate(headway.load(result.path), split="valid") is not None if False else True
    text = TEXT[-300:]
    assert headway.evaluate(result.model, text).nats == headway.evaluate(headway.load(result.checkpoint), text).nats


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
    "bfloat16": {"train": {"dtype": "bfloat16"}},
    "checkpointed activations and accumulation": {"train": {"checkpoint_activations": True, "grad_accum_steps": 2}},
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


def test_compiled_blocks_learn_the_same(folder, tmp_path):
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
    train = {"steps": 60, "lr": 1e-2, "batch_size": 8, "warmup_steps": 5}
    recipe = with_lora(make(folder, data={"path": str(tmp_path / "reversed.txt")}, train=train), folder / "gpt")
    before = headway.evaluate(headway.load(folder / "gpt"), text[:400]).bits_per_byte
    after = headway.evaluate(headway.train(recipe, out=tmp_path / "run").model, text[:400]).bits_per_byte
    assert after < 0.5 * before


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

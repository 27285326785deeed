"""headway train, eval and demo."""

import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import torch
import transformers

import headway
from tests.cli.conftest import TINY
from tests.cli.running import run
from tests.training.recipes import for_objective


@pytest.fixture(autouse=True)
def _in_workspace(workspace, monkeypatch):
    monkeypatch.chdir(workspace)


def test_transformers_opens_a_checkpoint():
    folder = "runs/demo/checkpoints/step-3"
    theirs, ours = transformers.AutoModelForCausalLM.from_pretrained(folder), headway.load("runs/demo")
    ids = ours.tokenizer.encode("The statement")
    assert transformers.AutoTokenizer.from_pretrained(folder).encode("The statement") == ids
    torch.testing.assert_close(theirs(torch.tensor([ids])).logits, ours(torch.tensor([ids])), rtol=1e-4, atol=1e-4)


def test_train_chooses_a_free_folder_and_prints_json(capsys, tmp_path, monkeypatch):
    command = f"train demo --set data.path={Path('my.txt').absolute()} {TINY} --json --device cpu"
    monkeypatch.chdir(tmp_path)
    first, second = (json.loads(run(f"{command} --dtype {dtype}", capsys)[1]) for dtype in ("float32", "auto"))
    assert (first["run"], second["run"]) == ("runs/demo", "runs/demo-2")
    assert first["bits_per_byte"] == second["bits_per_byte"]
    assert os.path.isfile(os.path.join(first["checkpoint"], "model.safetensors"))


def test_resume_continues_a_run_with_more_steps(capsys, tmp_path):
    assert run(f"train demo --out {tmp_path}/run --set data.path=my.txt {TINY}", capsys)[0] == 0
    code, out, err = run(f"train {tmp_path}/run --resume --set train.steps=5", capsys)
    assert code == 0
    assert "resuming    after step 3" in err
    assert "5 steps in" in out
    code, _, err = run(f"train {tmp_path}/run --resume --set train.lr=0.5", capsys)
    assert code == 0
    assert f"to train longer: headway train {tmp_path}/run --resume --set train.lr=0.5 --set train.steps=10" in err
    assert "; train.lr=0.5 was not used; to train longer" in err


def test_force_resumes_with_another_evaluation_or_without_checkpoints(capsys, tmp_path):
    command = f"train {tmp_path}/run --resume --set train.steps=5"
    assert run(f"train demo --out {tmp_path}/run --set data.path=my.txt {TINY}", capsys)[0] == 0
    code, _, err = run(f"{command} --set eval.context=4", capsys)
    assert code == 2
    assert "eval.context=4 changed since" in err
    code, _, err = run(f"{command} --set eval.context=4 --force", capsys)
    assert code == 0
    assert "evaluation  changed (eval.context=4): the best score is reset" in err
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    code, _, err = run(command, capsys)
    assert code == 1
    assert f"or start over: headway train {tmp_path}/run --resume --force" in err
    code, _, err = run(f"{command} --force", capsys)
    assert code == 0
    assert "start over" in err
    code, _, err = run(f"train {tmp_path}/run --resume --set train.steps=2", capsys)
    assert code == 2
    assert "train.steps=2 is below the 5 steps" in err
    code, _, err = run(f"train demo --force --out {tmp_path}/new", capsys)
    assert code == 2
    assert "has no effect without --resume" in err


@pytest.mark.parametrize(
    ("objective", "command"), [("causal", "generate"), ("pairs", "translate"), ("classify", "classify")]
)
def test_a_run_ends_with_a_command_that_works(objective, command, tmp_path, capsys):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(for_objective(objective, tmp_path, steps=1).to_toml())
    code, out, err = run(f"train {recipe} --out {tmp_path / 'run'}", capsys)
    assert code == 0, err
    assert "; 1 step in 0:0" in out
    assert "try:" not in out  # a hint is no result
    (hint,) = re.findall(r"^try:   headway (.*)$", err, re.MULTILINE)
    assert hint.startswith(f"{command} {tmp_path / 'run'}")
    code, out, err = run(hint, capsys)
    assert code == 0, err
    assert out


def test_several_processes_without_a_kind_of_parallelism_get_one_message(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    code, out, err = run(f"train demo --out {tmp_path / 'run'}", capsys)
    expected = "torchrun started 2 processes, but with train.parallel=none each would train the same model; add --set"
    assert (code, out) == (2, "")
    assert expected in err.replace("\n", " ")
    assert json.loads((tmp_path / "error.json").read_text())["message"]["message"].startswith(expected)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("headway.cli.train.SECONDS_FOR_FIRST_RANK", 0.0)
    assert run(f"train demo --out {tmp_path / 'run'}", capsys) == (2, "", "")
    assert not (tmp_path / "run").exists()


def test_print_config_prints_every_setting(capsys):
    code, out, _ = run("train demo --print-config --set train.steps=7", capsys)
    assert code == 0
    assert "steps = 7" in out
    assert "[eval]\nevery_steps = 0" in out
    assert json.loads(run("train demo --print-config --json", capsys)[1])["data"]["path"] == "pydocs"


def test_recipes_are_listed_with_their_results(capsys):
    assert "\ndemo " in run("train --list", capsys)[1]
    recipes = json.loads(run("train --list --json", capsys)[1])
    assert {"demo", "shakespeare-char", "gpt2-124m", "enwik8-byte", "wikitext2-gpt"} <= set(recipes)
    published = [recipe for name, recipe in recipes.items() if name not in ("pairs", "classify", "tag", "answer")]
    assert all(recipe["metric"] and recipe["ours"] and recipe["target"] for recipe in published)


def test_eval_scores_the_validation_split_or_a_file(capsys):
    code, out, _ = run("eval runs/demo --json", capsys)
    assert code == 0
    log = [json.loads(line) for line in Path("runs/demo/log.jsonl").read_text().splitlines()]
    assert json.loads(out)["bits_per_byte"] == pytest.approx(log[-1]["bits_per_byte"], rel=1e-6)
    code, out, _ = run("eval runs/demo my.txt --context 16", capsys)
    assert code == 0
    assert re.search(r"bits per byte +\d\.\d{4}\nnats per token +\d\.\d{4}", out)
    assert "16 tokens, consecutive" in out


def test_lr_find_suggests_a_command_with_the_given_settings(capsys, tmp_path):
    (tmp_path / "my tales.txt").write_text("The cat sat on the mat. " * 50)
    setting = shlex.quote(f"data.path={tmp_path / 'my tales.txt'}")
    code, out, err = run(f"lr-find demo --steps 10 --set {setting} --set train.lr=3 {TINY}", capsys)
    assert code == 0, err
    command = out.splitlines()[-1]
    assert re.search(rf"headway train demo --set {re.escape(setting)} {TINY} --set train.lr=\S+$", command)
    assert run(f"{command.partition(' ')[2]} --out {tmp_path / 'run'}", capsys)[0] == 0


def test_another_family_and_a_risen_loss_are_noted(capsys, tmp_path):
    settings = "--set data.path=my.txt --set model.d_model=16 --set train.steps=6 --set tokenizer.vocab_size=5000"
    wild = "--set train.lr=50 --set train.warmup_steps=0"
    code, _, err = run(f"train demo --set model.family=rnn {settings} {wild} --out {tmp_path / 'a'}", capsys)
    assert code == 0
    assert "model.family=rnn replaces the recipe's model, gpt-mini" in err
    assert re.search(r"the training loss rose from \S+ to \S+: try a smaller train.lr than 50", err)
    assert "tokens of 5,000 asked for: the text has no more pairs to merge" in err
    code, _, err = run(f"train demo {settings} --set train.batch_size=2 --out {tmp_path / 'b'}", capsys)
    assert code == 0
    assert "replaces" not in err
    assert "rose" not in err


@pytest.mark.parametrize("objective", ["masked", "pairs", "classify", "tag", "span"])
def test_eval_scores_every_objective_as_training_did(objective, tmp_path, capsys):
    result = headway.train(for_objective(objective, tmp_path, steps=2), out=tmp_path / "run")
    code, out, err = run(f"eval {tmp_path / 'run'} --json --device cpu", capsys)
    assert code == 0, err
    assert json.loads(out)["nats_per_target"] == pytest.approx(result.score.nats_per_target, rel=1e-5)
    assert "nats per target" in run(f"eval {tmp_path / 'run'} --device cpu", capsys)[1]


def test_demo_compares_before_after_and_a_trigram(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("The cat sat on the mat. " * 50)
    document = json.loads(run(f"demo --out second --set data.path=FILE {TINY} --json", capsys)[1])
    assert document["gpt_bits_per_byte"] < document["untrained_bits_per_byte"]
    code, out, err = run(f"demo {TINY}", capsys)
    assert code == 0
    for expected in ("Before training, it wrote:", "seconds of training, it writes:", "trigram", "GPT, untrained"):
        assert expected in out
    assert "tokens/s" in err
    # The suggested commands need no optional dependency.
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    commands = re.findall(r"^    \S*headway (.+?)  ", out.split("Next:")[1], re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        options = TINY if shlex.split(command)[0] == "train" else ""
        code, out, err = run(f"{command} {options}", capsys)
        assert code == 0, err
        assert out

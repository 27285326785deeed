"""An option that a command does not have is answered with the one that was meant."""

import re

import pytest

from headway.cli.unknown_options import OLD_NAMES, matching_settings, recipe_settings
from headway.config.renamed import SYNONYMS as SETTING_SYNONYMS
from tests.cli.running import run
from tests.cli.test_help import COMMANDS


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("train demo --steps 20", "a setting of the recipe is set with --set train.steps=20"),
        ("train demo --steps=20", "a setting of the recipe is set with --set train.steps=20"),
        ("train demo --lr 1e-3", "a setting of the recipe is set with --set train.lr=1e-3"),
        ("train demo --learning-rate 1e-3", "a setting of the recipe is set with --set train.lr=1e-3"),
        ("train demo --min-lr -1", "a setting of the recipe is set with --set train.min_lr=-1"),
        ("train demo --model.n-layers 2", "a setting of the recipe is set with --set model.n_layers=2"),
        ("train demo --n_layers 2", "a setting of the recipe is set with --set model.n_layers=2"),
        ("train demo --n-layer 2", "did you mean --set model.n_layers=2?"),
        ("train demo --accumulate 2", "a setting of the recipe is set with --set train.grad_accum_steps=2"),
        ("train demo --context", "set with --set model.context=VALUE or --set eval.context=VALUE"),
        ("train demo --data tales.txt", "a setting of the recipe is set with --set data.path=tales.txt"),
        ("train demo --hidden-size 64", "a setting of the recipe is set with --set model.d_model=64"),
        ("train demo --epochs 3", "use --set train.epochs=N for examples, --set train.steps=N for running text"),
        ("train --recipe demo", "the recipe is an argument: headway train demo"),
        ("lr-find demo --batch-size 2", "a setting of the recipe is set with --set train.batch_size=2"),
        ("generate runs/demo --temp 0.5", "did you mean --temperature?"),
        ("generate runs/demo --temprature 0.5", "did you mean --temperature?"),
        ("generate runs/demo --topk 5", "did you mean --top-k"),
        ("generate runs/demo -top-k 5", "did you mean --top-k?"),
        ("generate runs/demo --max-tokens 5", "did you mean --max-new-tokens?"),
        ("generate runs/demo --top_k 5", "did you mean --top-k?"),
        ("generate runs/demo --max_length 5", "did you mean --max-new-tokens?"),
        ("generate runs/demo --length 5", "did you mean --max-new-tokens?"),
        ("generate runs/demo --prompt 'Once more'", 'prompt is an argument: headway generate runs/demo "Once more"'),
        ("show sampling runs/demo --top-k 8", "a setting of a sampler is set with --set top_k=8"),
        ("generate runs/demo --top-k-min-keep 2", "a setting of a sampler is set with --set top_k_min_keep=2"),
        ("generate runs/demo --order top_k", "its name is --sampler-order now"),
        ("generate runs/demo --lr 1", "it is a setting of training: headway train RECIPE --set train.lr=1"),
        ("eval runs/demo --part test", "its name is --split now"),
        ("eval runs/demo --top-p 0.5", "it is an option of headway generate, headway translate and headway show"),
        ("show curves runs/demo --quantity lr", "its name is --metric now"),
        ("data my.txt --frobnicate", "headway data --help lists the options"),
        ("--seed 1", "it is an option of"),
    ],
)
def test_the_answer_names_the_right_option(command, answer, capsys):
    code, out, err = run(command, capsys)
    assert (code, out) == (2, "")
    option = re.search(r"(?<=\s)-[\w.-]+|^--\w+", command)[0]
    assert f"no option {option[:2] if option == '-top-k' else option};" in err
    assert answer in err


def test_an_option_of_every_command_stands_after_it(capsys):
    code, _, err = run("--plugin mine runs", capsys)
    assert code == 2
    assert "no option --plugin of headway itself; it stands after the command: headway COMMAND --plugin" in err


def test_old_flags_lead_to_flags_that_exist():
    flags = {flag for command in COMMANDS.values() for parameter in command.params for flag in parameter.opts}
    assert set(OLD_NAMES.values()) <= flags


def test_a_setting_is_found_with_and_without_its_table():
    settings = recipe_settings()
    assert {"train.steps", "model.n_layers", "data.path", "tokenizer.kind", "eval.every_steps"} <= {*settings}
    for setting in settings:
        assert matching_settings(setting) == [setting]
        assert setting in matching_settings(setting.partition(".")[2]) or setting.startswith("model.")
    assert matching_settings("nonsense") == []


def test_the_names_of_other_tools_lead_to_settings_that_exist():
    assert {*SETTING_SYNONYMS.values()} <= {*recipe_settings()}
    assert not {*SETTING_SYNONYMS} & {setting.partition(".")[2] for setting in recipe_settings()}

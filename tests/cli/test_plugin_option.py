"""--plugin MODULE, which every command has, and HEADWAY_PLUGINS."""

import json
import os
import subprocess
import sys

import pytest

from headway.cli import help
from headway.cli.options import program
from tests.cli.running import run
from tests.cli.test_help import COMMANDS

PLUGIN = """
import headway
from headway.sampling.parameters import NumberParam

def only_even(logits, strength):
    logits = logits.clone()
    logits[:, 1::2] -= strength
    return logits

headway.register("sampler", "only_even", only_even, parameters={"strength": NumberParam("penalty", 0, off=0)})
"""


@pytest.fixture(autouse=True)
def folder(workspace, tmp_path, monkeypatch):
    os.symlink(workspace / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWAY_PLUGINS", raising=False)
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_plugins(name, capsys):
    (option,) = [parameter for parameter in COMMANDS[name].params if "--plugin" in parameter.opts]
    assert option.rich_help_panel == help.GENERAL


def test_plugins_are_imported_before_the_command_and_named_for_its_processes(folder, capsys, monkeypatch):
    for name in ("first_plugin", "second_plugin"):
        (folder / f"{name}.py").write_text("import os\nos.environ['LOADED'] += __name__ + ' '\n")
    monkeypatch.setenv("LOADED", "")
    monkeypatch.setenv("HEADWAY_PLUGINS", "first_plugin")
    seen = []
    monkeypatch.setattr("headway.cli.train._list_recipes", lambda json: seen.append(os.environ["HEADWAY_PLUGINS"]))
    try:
        code, _, err = run("train --list --plugin second_plugin", capsys)
        assert code == 0, err
        assert os.environ["LOADED"] == "first_plugin second_plugin "
        assert seen == ["first_plugin,second_plugin"]
        assert os.environ["HEADWAY_PLUGINS"] == "first_plugin"
    finally:
        sys.modules.pop("first_plugin", None)
        sys.modules.pop("second_plugin", None)


def test_suggested_commands_repeat_the_plugins(folder, capsys):
    for name in ("third_plugin", "my plugin"):
        (folder / f"{name}.py").write_text("")
    (folder / "empty").mkdir()
    try:
        _, _, err = run("runs empty --plugin third_plugin --plugin './my plugin.py'", capsys)
        assert "start one: headway train demo --plugin third_plugin --plugin './my plugin.py'" in err
        _, _, err = run("train demo --out runs/demo --plugin third_plugin", capsys)
        assert "to resume it: headway train runs/demo --resume --plugin third_plugin" in err
    finally:
        sys.modules.pop("third_plugin", None)
    assert "start one: headway train demo\n" in run("runs empty", capsys)[2]


@pytest.mark.parametrize(
    ("script", "expected"),
    [("bin/headway", "bin/headway"), ("../headway", "../headway"), ("../../../x/headway", "headway")],
)
def test_a_suggested_command_begins_with_a_short_name(script, expected, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("sys.argv", [os.path.abspath(script)])
    assert program() == expected


def test_a_missing_plugin_is_an_error(capsys):
    code, out, err = run("train --list --plugin no_such_plugin", capsys)
    assert (code, out) == (2, "")
    assert "no plug-in 'no_such_plugin'" in err


def test_a_registered_sampler_is_set_by_name(folder):
    (folder / "even.py").write_text(PLUGIN)
    command = "generate runs/demo The --max-new-tokens 5 --seed 1 --json --plugin even --set only_even=1000"
    # In a process of its own: what is registered stays registered.
    done = subprocess.run([sys.executable, "-m", "headway", *command.split()], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(id % 2 == 0 for id in json.loads(done.stdout)["texts"][0]["ids"])

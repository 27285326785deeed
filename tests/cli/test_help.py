"""Help texts: each command says in one sentence what it does, every option is described, every example runs."""

import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from headway.cli import VERBS, app
from headway.cli.sampler_options import COMMON_FLAGS, flag_help
from headway.cli.show import SUBCOMMANDS
from headway.data.synthetic_tasks import task_pairs
from headway.sampling.specs import FLAT_NAMES, SAMPLER_SPECS, SHARED_PARAMETERS
from headway.training import resume_check
from tests.cli.conftest import TINY
from tests.cli.running import run, train_until


def commands(group, path=()):
    """Every command by its name, such as "tokenizer train"."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


HEADWAY = app.parser
GROUPS = {"headway": HEADWAY, **{name: c for name, c in HEADWAY.commands.items() if hasattr(c, "commands")}}
COMMANDS = dict(commands(HEADWAY))


def examples_of(command):
    return re.findall(r"^ +headway (.+)$", command.help, re.MULTILINE)


EXAMPLES = [example for command in COMMANDS.values() for example in examples_of(command)]


def is_imperative_sentence(text):
    first_word = text.split()[0]
    return first_word.istitle() and not first_word.endswith(("s", "ing")) and text.endswith(".")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_starts_with_an_imperative_sentence_and_has_an_example(name):
    text = COMMANDS[name].help
    assert is_imperative_sentence(text.split("\n\n")[0].replace("\n", " "))
    assert re.search(r"^Examples?:\n", text, re.MULTILINE)
    assert examples_of(COMMANDS[name])


@pytest.mark.parametrize("name", GROUPS)
def test_listed_commands_have_one_short_sentence_on_one_line(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert is_imperative_sentence(GROUPS[name].help)
    listing = run("--help" if name == "headway" else f"{name} --help", capsys)[1]
    for command in GROUPS[name].commands:
        (summary,) = re.findall(rf"^  {command} +(.+)$", listing, re.MULTILINE)
        assert is_imperative_sentence(summary), summary


@pytest.mark.parametrize(("name", "table"), [("headway", VERBS), ("show", SUBCOMMANDS)])
def test_every_command_stands_in_a_section_of_the_table(name, table, capsys):
    """A command added in another way than by the table would stand under "Commands"."""
    listing = run("--help" if name == "headway" else f"{name} --help", capsys)[1]
    headings = re.findall(r"^(\w.+):$", listing, re.MULTILINE)
    assert [heading for heading in headings if heading not in ("Options", "Examples")] == [*table]
    listed = re.findall(r"^  ([a-z][a-z-]+)  +[A-Z]", listing, re.MULTILINE)
    assert listed == [name for commands in table.values() for name, *_ in commands]
    assert {*listed} == {*GROUPS[name].commands}


def test_help_names_the_five_things_to_do():
    assert [*VERBS] == ["Train", "Use", "Look inside", "Check", "Data"]


@pytest.mark.parametrize("name", [name for name in GROUPS if name != "headway"])
def test_a_group_ends_with_examples_of_its_commands(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    examples = re.findall(r"^  headway (.+)$", run(f"{name} --help", capsys)[1].partition("Examples:")[2], re.MULTILINE)
    assert len(examples) >= 3
    assert {*examples} <= {*EXAMPLES}


def test_headings_are_bold_in_a_terminal_only(capsys, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b" not in run("show --help", capsys)[1]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert "\n\x1b[1mAttention\x1b[0m:\n" in run("show --help", capsys)[1]


@pytest.mark.parametrize("name", [*COMMANDS, *GROUPS])
def test_help_fits_80_columns_and_nothing_is_cut_off(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    command = COMMANDS.get(name) or GROUPS[name]
    code, out, _ = run(f"{'' if name == 'headway' else name} --help", capsys)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    shown = " ".join(out.replace(" \\\n", " ").split())
    for parameter in command.params:
        if not getattr(parameter, "hidden", False):
            assert " ".join(parameter.help.split()) in shown, parameter.name
    for example in examples_of(command) if name in COMMANDS else []:
        assert f"headway {example}" in shown  # long ones are continued on the next line


def test_generate_shows_the_common_options_first(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = run("generate --help", capsys)[1]
    assert len(out.splitlines()) <= 66
    assert re.findall(r"^(\w[\w ]+):$", out, re.MULTILINE) == [
        "Arguments", "Options", "Search", "Files", "Output", "Loading", "General", "Examples"
    ]  # fmt: skip
    assert "--dry-multiplier X" not in out
    samplers = run("generate --help-samplers", capsys)[1]
    assert max(map(len, samplers.splitlines())) <= 80
    for option in HEADWAY.commands["generate"].params:
        if option.name in FLAT_NAMES or option.name in SHARED_PARAMETERS:
            assert option.opts[0] in samplers


@pytest.mark.parametrize("name", [name for name in COMMANDS if any(p.required for p in COMMANDS[name].params)])
def test_a_missing_argument_is_named_in_a_few_lines(name, capsys):
    code, out, err = run(name, capsys)
    assert (code, out) == (2, "")
    assert "Missing argument" in err
    assert len(err.splitlines()) <= 5


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_description(name):
    for parameter in COMMANDS[name].params:
        assert parameter.help, parameter.name
        assert parameter.help.endswith((".", "…")), parameter.help


def shortened(example, words):
    """The example with fewer steps, so that all examples together run in seconds."""
    if words[0] in ("train", "demo") and not {"--resume", "--list"} & set(words):
        return f"{example} {TINY}"
    if words[0] == "sweep" and "--resume" not in words:
        varied = [word.partition("=")[0] for flag, word in pairwise(words) if flag in ("--grid", "--range")]
        fixed = [setting for setting in TINY.split("--set ")[1:] if setting.partition("=")[0] not in varied]
        return f"{example} --set data.path=my.txt " + " ".join(f"--set {setting}" for setting in fixed)
    if words[:2] == ["check", "resume"]:
        return f"{example} --set data.path=my.txt {TINY}"
    return f"{example} --seconds 0.2" if words[0] == "compare" and "--seconds" in words else example


def copy_workspace(workspace, folder, example):
    """The workspace without the runs that the example does not name; with all if it names their folder."""
    runs = set(re.findall(r"runs/([\w-]+)", example))
    has_all_runs = re.search(r"\bruns(?![\w/-])", example)

    def other_runs(path, names):
        return [name for name in names if path == str(workspace / "runs") and not has_all_runs and name not in runs]

    shutil.copytree(workspace, folder, ignore=other_runs)


def output_of(words):
    """The file or folder that an example creates, if it names one."""
    if words[0] == "convert":
        return Path(words[2])
    return Path(words[words.index("--out") + 1]) if "--out" in words else None


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_runs(example, workspace, tmp_path, monkeypatch, capsys):
    copy_workspace(workspace, tmp_path / "workspace", example)
    monkeypatch.chdir(tmp_path / "workspace")
    monkeypatch.setattr(resume_check, "_run_process", train_until)
    monkeypatch.setitem(task_pairs.__kwdefaults__, "n", 500)  # pairs of a synthetic task, in place of 20,000
    words = shlex.split(example)
    output = output_of(words)
    if output is not None and output.exists():
        shutil.rmtree(output) if output.is_dir() else output.unlink()
    code, out, err = run(shortened(example, words), capsys)
    assert code == 0, err
    assert out or (output is not None and output.exists())


@pytest.mark.parametrize("verb", ["generate", "translate"])
def test_sampler_flags_are_those_of_the_sampler_table(verb):
    """Every parameter of the table that is a flag has one, with its range and off value, and no other flag sets one."""
    flags = {parameter.name: parameter for parameter in COMMANDS[verb].params}
    table = {
        spec.flat_name(name): parameter
        for spec in SAMPLER_SPECS.values()
        for name, parameter in spec.parameters.items()
        if parameter.flag
    }
    for name, parameter in (table | SHARED_PARAMETERS).items():
        assert f"--{name.replace('_', '-')}" in flags[name].opts
        assert name in COMMON_FLAGS or flags[name].help.endswith(flag_help(parameter))
    assert FLAT_NAMES.keys() & flags.keys() <= table.keys()


def test_a_command_imports_no_other_command():
    """Importing and building all of them took two thirds of the time that `headway cost` takes."""
    code = "import sys; from headway.cli import app; app(['cost', 'gpt2'], standalone_mode=False); print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    imported = output.splitlines()[-1].split()
    modules = {module for commands in VERBS.values() for _, _, module in commands}
    assert {name for name in modules if f"headway.cli.{name}" in imported} == {"cost"}

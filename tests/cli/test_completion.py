"""Shell completion, as the shell asks for it."""

import os
import subprocess
import sys

import pytest

from headway.cli.completion import complete_recipe, complete_run, complete_sampler_setting, complete_setting


def test_names_are_completed(workspace, monkeypatch):
    monkeypatch.chdir(workspace)
    assert complete_recipe("dem") == ["demo"]
    assert complete_recipe("runs/d") == ["runs/demo"]
    assert {"runs/demo", "runs/mine", "runs/reverse", "runs/words"} < set(complete_run(""))
    assert complete_run("runs/m") == ["runs/mine"]
    assert complete_setting("train.warm") == ["train.warmup_steps="]
    assert "model.name=gpt2" in complete_setting("model.name=gpt")
    assert "top_p=" in complete_sampler_setting("top_")


@pytest.mark.parametrize(("line", "expected"), [("train de", "demo"), ("gen", "generate"), ("train --pri", "--print-")])
def test_the_shell_gets_completions_without_torch(line, expected):
    script = "import sys; from headway.cli import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    words = f"headway {line}"
    environment = {
        **os.environ,
        "_HEADWAY_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(expected)

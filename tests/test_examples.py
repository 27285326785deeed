"""Code that users read runs as it stands: examples and doctests. tests/docs/ runs the README and the docs."""

import doctest
import importlib
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import headway
from headway.data.synthetic_tasks import task_pairs

ROOT = Path(__file__).parent.parent
OWN_TEXT = ROOT / "examples" / "own_text.py"


def test_own_text_learns_dates(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(task_pairs.__kwdefaults__, "n", 500)  # pairs, in place of 20,000
    monkeypatch.setattr("sys.argv", [str(OWN_TEXT), "--steps", "5", "--out", str(tmp_path / "run")])
    runpy.run_path(str(OWN_TEXT), run_name="__main__")
    out = capsys.readouterr().out
    assert "bits per byte" in out
    assert re.search(r"\d+ of 20 correct", out)
    assert headway.load(tmp_path / "run").has_tokenizer


def test_own_text_takes_a_file(tmp_path):
    (tmp_path / "my.txt").write_text("All work and no play makes a dull text. " * 40)
    command = [sys.executable, OWN_TEXT, tmp_path / "my.txt", "--steps", "5"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "bits per byte" in process.stdout


def test_the_tree_of_the_readme_is_the_tree():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "headway"
    for file in package.rglob("*.py"):
        if file.name not in ("__init__.py", "__main__.py") and package / "cli" not in file.parents:
            assert file.name in text, f"{file.relative_to(package)} is not in the README's tree"
    for name in set(re.findall(r"\b\w+\.py\b", text.split("```text\nsrc/headway/")[1].split("```")[0])) - {"golden.py"}:
        assert list(package.rglob(name)), f"the README's tree names {name}, which is not there"


@pytest.mark.parametrize(
    "name",
    [
        "config.models",
        "data.synthetic_tasks",
        "evaluation.metrics",
        "models.registry",
        "nn.masks",
        "nn.padding",
        "sampling.stop_strings",
        "tokenizers.base",
    ],
)
def test_doctests_hold(name):
    module = importlib.import_module(f"headway.{name}")
    n_failed, n_tests = doctest.testmod(module, extraglobs={"headway": headway})
    assert n_tests
    assert not n_failed

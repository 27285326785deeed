"""Examples and the README's Python run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import headway
from headway import tokenizers

ROOT = Path(__file__).parent.parent


def test_own_text_learns_dates(tmp_path):
    command = [sys.executable, ROOT / "examples" / "own_text.py", "--steps", "60", "--out", tmp_path / "run"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "bits per byte" in done.stdout
    assert re.search(r"\d+ of 20 right", done.stdout)


def test_own_text_takes_a_file(tmp_path):
    (tmp_path / "my.txt").write_text("All work and no play makes a dull text. " * 40)
    command = [sys.executable, ROOT / "examples" / "own_text.py", tmp_path / "my.txt", "--steps", "5"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "bits per byte" in done.stdout


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with a model at runs/demo, where the README's code runs."""
    monkeypatch.chdir(tmp_path)
    model = headway.create("gpt-tiny", vocab_size=300)
    model.tokenizer = tokenizers.train("bpe", ["The statement is a statement."] * 9, 300)
    model.save("runs/demo")
    return tmp_path


def test_the_python_of_the_readme_runs(home, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    space = {"torch": torch}
    exec(blocks[0], space)
    assert capsys.readouterr().out
    assert (home / "my-model" / "config.json").is_file()
    space |= {"ids": torch.randint(300, (2, 5)), "rows": torch.tensor([1, 1, 0])}
    exec(blocks[1], space)
    assert space["state"].length.tolist() == [5, 5, 5]


@pytest.mark.parametrize("page", ["tokenizers", "data", "training", "decoding", "translation"])
def test_the_python_of_the_docs_runs(page, home):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, {})


def test_the_tree_of_the_readme_is_the_tree():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    package = ROOT / "src" / "headway"
    for file in package.rglob("*.py"):
        if file.name not in ("__init__.py", "__main__.py") and file.parent.name != "cli":
            assert file.name in text, f"{file.relative_to(package)} is not in the README's tree"
    for name in set(re.findall(r"\b\w+\.py\b", text.split("```text\nsrc/headway/")[1].split("```")[0])) - {"golden.py"}:
        assert list(package.rglob(name)), f"the README's tree names {name}, which is not there"


def test_every_doctest_holds():
    import doctest
    import importlib

    for name in ("config.models", "nn.masks", "models.registry", "tokenizers.base", "data.tasks"):
        module = importlib.import_module(f"headway.{name}")
        failed, tried = doctest.testmod(module, extraglobs={"headway": headway})
        assert tried, name
        assert not failed, name

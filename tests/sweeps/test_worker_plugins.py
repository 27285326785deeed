"""Plug-ins in sweeps: only names that are given in this call import code, and workers know what their parent knows."""

import json
import subprocess
import sys

import pytest

import headway
from headway.errors import ConfigError
from headway.sweeps.jobs import WORKER
from tests.plugin_registries import restored_registries
from tests.training.recipes import make

PLUGIN = """
import os, headway, torch
open(os.environ["IMPORTED"], "a").write("imported\\n")
headway.register("optimizer", "mine", lambda model, config: torch.optim.SGD(model.parameters(), lr=config.lr))
"""
GRID = {"train.optimizer": ["mine", "adamw"]}


@pytest.fixture
def recipe(tmp_path):
    train = {"steps": 2, "batch_size": 2, "warmup_steps": 1, "threads": 1}
    return make(tmp_path, model={"d_model": 16, "n_heads": 2, "n_layers": 1}, train=train)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package that declares the optimizer `mine`; the file that its import writes."""
    site = tmp_path / "site"
    metadata = site / "yours-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "yours.py").write_text(PLUGIN)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: yours\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[headway]\noptimizer.mine = yours\n")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("IMPORTED", str(tmp_path / "imported"))
    monkeypatch.delenv("HEADWAY_PLUGINS", raising=False)
    return tmp_path / "imported"


def test_a_stored_sweep_imports_nothing(recipe, package, tmp_path):
    with restored_registries():
        headway.sweep(recipe, grid={"train.optimizer": ["sgd", "adamw"]}, out=tmp_path / "out", quiet=True)
        file = tmp_path / "out" / "sweep.json"
        file.write_text(file.read_text().replace('"sgd"', '"mine"'))
        for jobs in (1, 2):
            with pytest.raises(ConfigError, match="installed package yours has it: add --plugin yours"):
                headway.sweep(tmp_path / "out", resume=True, jobs=jobs, quiet=True)
        assert not package.exists()


def test_a_declared_name_is_imported_here_and_in_the_workers(recipe, package, tmp_path):
    with restored_registries():
        result = headway.sweep(recipe, grid=GRID, jobs=2, out=tmp_path / "out", quiet=True)
        assert [point.status for point in result.points] == ["finished", "finished"]
        assert package.read_text() == "imported\n" * 2  # the worker that trains with adamw needs no plug-in


def test_what_is_registered_in_this_process_alone_is_refused_for_workers(recipe, tmp_path, monkeypatch):
    monkeypatch.delenv("HEADWAY_PLUGINS", raising=False)
    with restored_registries():
        headway.register("optimizer", "mine", lambda model, config: None)
        with pytest.raises(ConfigError, match=r"the optimizer 'mine' is registered in this process alone.*use jobs=1"):
            headway.sweep(recipe, grid=GRID, jobs=2, out=tmp_path / "out", quiet=True)
        assert not (tmp_path / "out").exists()


def test_a_worker_takes_plugins_of_the_working_directory_but_no_module_that_hides_another(tmp_path, monkeypatch):
    (tmp_path / "tokenizers.py").write_text("raise RuntimeError('hidden')\n")
    (tmp_path / "mine.py").write_text(PLUGIN)
    recipe = {"train": {"optimizer": "mine"}, "data": {"path": str(tmp_path / "missing.txt")}}
    toml = "\n".join(f"[{table}]\n" + "".join(f"{k} = '{v}'\n" for k, v in s.items()) for table, s in recipe.items())
    monkeypatch.setenv("HEADWAY_PLUGINS", "mine")
    monkeypatch.setenv("IMPORTED", str(tmp_path / "imported"))
    order = json.dumps({"recipe": toml, "out": str(tmp_path / "out")}) + "\n"
    with subprocess.Popen(
        [sys.executable, *WORKER], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        worker.stdin.write(order)
        worker.stdin.flush()
        answer = json.loads(worker.stdout.readline())
        worker.stdin.close()
    assert "missing.txt" in answer["failure"]  # the recipe was read, with the plug-in; its data is not there
    assert (tmp_path / "imported").exists()

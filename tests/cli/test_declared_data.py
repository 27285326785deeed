"""`headway data NAME` imports the installed package that declares a dataset or a reader which the user names."""

import json

import pytest

from tests.cli.running import run
from tests.plugin_registries import restored_registries

PLUGIN = """
import headway
headway.register("dataset", "poems", lambda: ["roses are red", "violets are blue"])
headway.register("reader", "shout", lambda file, options: iter([file.read_text().upper()]))
"""


@pytest.fixture(autouse=True)
def package(tmp_path, monkeypatch):
    metadata = tmp_path / "yours-1.0.dist-info"
    metadata.mkdir()
    (tmp_path / "yours.py").write_text(PLUGIN)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: yours\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[headway]\ndataset.poems = yours\nreader.shout = yours\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("one text")
    with restored_registries():
        yield


@pytest.mark.parametrize(
    ("arguments", "samples"),
    [("poems", ["roses are red", "violets are blue"]), ("a.txt --format shout", ["ONE TEXT"])],
)
def test_a_declared_name_is_imported(arguments, samples, capsys):
    code, out, err = run(f"data {arguments} --json", capsys)
    assert code == 0, err
    assert json.loads(out)["samples"] == samples

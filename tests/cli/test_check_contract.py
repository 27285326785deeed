"""headway check contract: models by path, family, preset and plug-in; exit codes; JSON."""

import json

import pytest

from tests.cli.running import run
from tests.plugin_registries import restored_registries

PLUGIN = """
import headway
from headway.config import RNNConfig
from headway.models.rnn import RNN

class BatchDependentConfig(RNNConfig, frozen=True, kw_only=True, tag="batch-dependent"):
    pass

class BatchDependent(RNN):
    def unembed(self, hidden):
        return super().unembed(hidden - hidden.mean(dim=0))

headway.register("family", "batch-dependent", BatchDependent, config=BatchDependentConfig)
"""


def test_a_stored_model_a_family_and_a_preset_pass(workspace, monkeypatch, capsys):
    monkeypatch.chdir(workspace)
    for model in ("runs/demo", "runs/reverse", "runs/words", "nplm", "llama-3-405b"):
        code, out, err = run(f"check contract {model} --only leak,batch,padding,step", capsys)
        assert code == 0, out + err
        assert out.splitlines()[-1].endswith("5 properties hold")


def test_a_family_of_a_plugin_with_a_defect_fails(tmp_path, monkeypatch, capsys):
    (tmp_path / "contract_plugin.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with restored_registries():
        code, out, _ = run("check contract batch-dependent --plugin contract_plugin --json", capsys)
    assert code == 1
    report = json.loads(out)
    assert report["passed"] is False
    failed = [result for result in report["results"] if result["status"] == "failed"]
    assert failed[0]["name"] == "batch"
    assert failed[0]["difference"] > report["atol"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "gptt",
            "gptt is neither a model directory nor a run: no model family or preset named 'gptt'. Did you mean 'gpt'?",
        ),
        ("gptt", "A family of your own needs --plugin MODULE."),
        ("gpt --only laek", "no property named 'laek'. Did you mean 'leak'?"),
        ("gpt --batch-size 1", "--batch-size"),
        ("gpt --atol -1", "--atol"),
    ],
)
def test_misuse_has_exit_code_2(arguments, message, capsys):
    code, _, err = run(f"check contract {arguments}", capsys)
    assert code == 2
    assert message in " ".join(err.replace("│", " ").split())

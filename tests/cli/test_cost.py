"""headway cost, headway models, headway show model."""

import json
import subprocess
import sys

import pytest

from tests.cli.running import run


def cost(command, capsys):
    code, out, err = run(f"cost {command} --json", capsys)
    assert code == 0, err
    return json.loads(out)["models"]


def test_the_lectures_figures_as_json(capsys):
    [report] = cost("gpt2 --seq-len 1024", capsys)
    rows = {row["name"]: row["flops"] for row in report["forward"]["rows"]}
    assert rows["Q/K/V projections"] == 3_623_878_656
    assert rows["feed-forward"] == 9_663_676_416
    assert report["forward"]["flops"] == 291_648_307_200
    assert report["decode"]["flops"] == 284_812_800
    assert report["state"]["bytes"] == 75_497_472


def test_settings_change_the_model(capsys):
    [report] = cost("transformer --set vocab_size=40000 --set model.n_layers=6", capsys)
    assert report["parameters"]["total"] == 64_618_496
    assert report["parameters"]["groups"]["encoder"]["total"] == 18_914_304


def test_a_window_leaves_the_scores_inside_it(capsys):
    """Prefill of 1,024 tokens and one step that attends to 128: 12 layers × 4 d FLOPs per score."""
    flops = {}
    for window in ("", "--window 128"):
        [report] = cost(f"gpt2 --seq-len 1024 --new-tokens 2 {window}", capsys)
        flops[window] = report["generation_flops"]
    n_fewer = 1024 * (1024 - 128) + 1025 - 128
    assert flops[""] - flops["--window 128"] == 12 * 4 * 768 * n_fewer


def test_several_models_stand_side_by_side(capsys):
    code, out, _ = run("cost gpt2 lstm ngram --seq-len 512", capsys)
    assert code == 0
    assert out.splitlines()[2].split() == ["gpt2", "lstm", "ngram"]
    assert max(map(len, out.splitlines())) <= 80


def test_a_device_adds_bounds(capsys):
    [report] = cost("llama-2-7b --device h200 --batch-size 64 --seq-len 4096 --num-devices 8", capsys)
    assert report["dtype"] == "bfloat16"
    assert report["device"]["bandwidth"] == 4.8e12
    assert {row["bound_by"] for row in report["decode"]["rows"]} == {"memory"}
    assert report["max_sequences"] == (141e9 - 2 * 6_738_415_616) // (2 * 4096 * 4096 * 32 * 2)
    assert report["max_tokens_per_second"] < 64 * 4.8e12 / (2 * 6_600_000_000)


def test_costs_of_recipes_runs_and_directories(workspace, monkeypatch, capsys):
    monkeypatch.chdir(workspace)
    by_name = {report["name"]: report for report in cost("runs/demo demo reverse", capsys)}
    assert by_name["runs/demo"]["family"] == by_name["demo"]["family"] == "gpt"
    assert by_name["reverse"]["source_len"] == by_name["reverse"]["seq_len"]


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("cost gpt22", 2, "Did you mean 'gpt2'?"),
        ("cost t5-small", 2, "t5-small cannot be built: Headway lacks bucketed relative position biases"),
        ("show model palm-540b", 2, "cannot be built: Headway lacks"),
        ("cost gpt2 --batch 4", 2, "did you mean --batch-size?"),
        ("cost gpt2 --set n_layers", 2, "such as n_layers=2"),
        ("cost gpt2 lstm --set n_heads=4", 2, "lstm: no setting"),
        ("cost gpt2 --device h20", 2, "Did you mean 'H200'?"),
        ("cost gpt2 --seq-len -3", 2, "-3 is not at least 1"),
        ("cost gpt2 --set n_layer=2", 2, "n_layers"),
        ("cost gpt2 --dtype int8", 2, "float32"),
        ("cost gpt2 --plot x.png", 2, "add --device NAME or --measure"),
        ("cost gpt2 lstm --plot x.png --device h200", 2, "takes one model"),
        ("cost ngram --device h200 --plot x.png", 1, "nothing to plot"),
        ("cost lstm --window 4", 2, "none of these models has a KV cache"),
        ("cost gpt2 --device h200 --dtype float64", 2, "choose from bfloat16, float32"),
        ("cost ngram --measure", 1, "no matrix products to measure"),
        (
            "cost transformer-mini --set positions=learned --measure --seq-len 8 --source-len 999",
            1,
            "lower --source-len",
        ),
        ("models lstm", 1, "no preset has lstm in its name or family. lstm is a family: `headway cost lstm`"),
        ("cost lstm --growth", 1, "growth compares a GPT with an LSTM"),
        ("cost llama-2-7b --measure --batch-size 100000", 2, "lower --batch-size or --seq-len"),
        ("models nothing-like-this", 1, "no preset has nothing-like-this"),
        ("show model gpt22", 2, "Did you mean 'gpt2'?"),
    ],
)
def test_mistakes_are_answered_with_a_way_out(command, code, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    got, _, err = run(command, capsys)
    assert (got, message in " ".join(err.split())) == (code, True), err


def test_counting_does_not_import_torch():
    for words in (["cost", "llama-3-70b", "--device", "h200", "--batch-size", "8", "--seq-len", "8192"], ["models"]):
        code = f"import sys\nfrom headway.cli import main\ntry:\n    main({words!r})\nexcept SystemExit:\n    pass\n"
        code += "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0, words


def test_the_roofline_is_drawn(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    for model in ("gpt2", "lstm"):
        code, _, err = run(f"cost {model} --seq-len 256 --device a100 --plot {tmp_path / model}.png", capsys)
        assert code == 0, err
        assert (tmp_path / f"{model}.png").stat().st_size > 10_000


def test_measured_beside_predicted(capsys):
    """Times depend on the machine, so they are not compared: rows, and memory that is exact."""
    code, out, _ = run("cost gpt-tiny --measure --seq-len 16 --json", capsys)
    assert code == 0
    [report] = json.loads(out)["models"]
    names = [row["name"].strip() for row in report["rows"]]
    assert names[0] == "forward pass"
    assert {"feed-forward", "prefill", "decode step", "forward and backward"} <= set(names)
    assert all(row["measured_seconds"] > 0 and row["predicted_seconds"] > 0 for row in report["rows"])


def test_growth_with_length(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "growth.png"
    code, out, _ = run(f"cost gpt-tiny --growth --seq-len 32 --plot {picture} --json", capsys)
    assert code == 0
    growth = json.loads(out)
    assert [line["lengths"] for line in growth["generation"] + growth["one_pass"]] == [[16, 32]] * 4
    assert growth["lstm_parameters"] == pytest.approx(173_824, rel=0.02)
    assert picture.stat().st_size > 10_000


def test_models_lists_presets_and_what_cannot_be_built(capsys):
    code, out, _ = run("models --json", capsys)
    assert code == 0
    by_name = {row["name"]: row for row in json.loads(out)["models"]}
    assert by_name["gpt2-xl"]["heads"] == 25
    assert by_name["gpt3-175b"]["parameters"] == 174_604_259_328
    assert by_name["bert-large"]["parameters"] == 335_141_888
    assert by_name["palm-540b"]["reason"]
    _, out, _ = run("models llama palm", capsys)
    assert "65,285,660,672" in out
    assert "palm-540b" in out
    assert "gpt2" not in out


def test_show_model_lists_what_is_learned(capsys):
    code, out, _ = run("show model gpt2 --json", capsys)
    assert code == 0
    summary = json.loads(out)
    assert summary["parameters"] == 124_439_808
    assert {"name": "blocks.*.attention.qkv.weight", "shape": [2304, 768], "layers": 12, "parameters": 21_233_664} in (
        summary["learned"]
    )
    _, out, _ = run("show model transformer", capsys)
    assert "sinusoidal positions" in out

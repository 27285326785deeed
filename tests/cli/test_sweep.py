"""headway sweep, headway runs and headway show curves, from the command line."""

import json
import os
import shutil

import pytest

from tests.cli.conftest import TINY
from tests.cli.running import run

SMALL = " ".join(part for part in TINY.split("--set ") if not part.startswith("model.n_layers")).split()
SETTINGS = " ".join(f"--set {part}" for part in SMALL) + " --set data.path=my.txt"


@pytest.fixture(scope="module")
def swept(workspace, tmp_path_factory):
    """A folder with a sweep of three runs, one of which fails."""
    from tests.cli.running import exit_code

    folder = tmp_path_factory.mktemp("swept") / "workspace"
    shutil.copytree(workspace, folder)
    before = os.getcwd()
    os.chdir(folder)
    try:
        assert exit_code(f"sweep demo --grid train.lr=1e-3,3e-3,1e12 {SETTINGS} --out runs/rates") == 0
    finally:
        os.chdir(before)
    return folder


def test_a_sweep_prints_one_table_and_is_resumed_by_its_folder(swept, monkeypatch, capsys):
    monkeypatch.chdir(swept)
    code, out, err = run("sweep runs/rates --resume", capsys)
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "demo: 3 runs, 2 finished"
    assert lines[3].startswith("best")
    assert lines[5].split()[0] == "1e+12"
    assert lines[-1].startswith("failed: lr=1e+12: the ")
    assert "finished    lr=0.001, earlier" in err
    assert "run 3 of 3  lr=1e+12" in err
    assert (swept / "runs/rates/sweep.png").is_file()
    code, out, _ = run("sweep runs/rates --resume --json", capsys)
    points = json.loads(out)["points"]
    assert [point["status"] for point in points] == ["finished", "finished", "failed"]
    assert points[0]["score"] < points[1]["score"]


def test_misuse_is_explained(swept, monkeypatch, capsys):
    monkeypatch.chdir(swept)
    for command, message in [
        ("sweep demo", "nothing to vary: add --grid"),
        ("sweep demo --grid train.lr", "--grid 'train.lr' is not of the form"),
        ("sweep demo --grid train.lr=1,2 --jobs 0", "0 is not at least 1"),
        ("sweep demo --range train.lr=1e-4..1e-2", "say how many points to draw with --random N"),
        ("sweep runs/rates", "runs/rates is a sweep, not a recipe; to continue it, add --resume"),
        ("sweep runs/rates --resume --grid train.lr=1,2", "does not apply to runs/rates, a sweep"),
        ("runs nothing", "nothing is not a folder"),
        ("show curves runs/rates -x minutes", "minutes"),
    ]:
        code, _, err = run(command, capsys)
        assert code == 2, command
        assert message in err


def test_runs_are_listed_filtered_and_sorted(swept, monkeypatch, capsys):
    monkeypatch.chdir(swept)
    code, out, _ = run("runs", capsys)
    assert code == 0
    names = [line.split()[0] for line in out.splitlines()]
    rates = ["rates/lr=0.001", "rates/lr=0.003", "rates/lr=1e+12"]
    others = [folder.name for folder in (swept / "runs").iterdir() if folder.name not in ("lr", "rates")]
    assert names == ["name", *sorted([*others, "lr/lr=0.001", *rates])]
    code, out, _ = run("runs --filter status=finished --filter family=gpt --sort score --columns name,score,lr", capsys)
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["name", "score", "lr"]
    assert [row[1] for row in rows[1:]] == sorted((row[1] for row in rows[1:]), key=float)
    code, out, _ = run("runs runs/rates --filter status=failed --json", capsys)
    (failed,) = json.loads(out)["runs"]
    assert (failed["name"], failed["score"]) == ("lr=1e+12", None)
    code, out, err = run("runs --filter family=nplm", capsys)
    assert (code, out) == (0, "")
    assert f"none of {len(names) - 1} runs" in err


def test_curves_of_a_sweep(swept, monkeypatch, capsys):
    monkeypatch.chdir(swept)
    code, out, _ = run("show curves runs/rates --out curves.png", capsys)
    assert code == 0
    assert out.startswith("loss in nats per token by training steps")
    assert "lr=0.003, validation: last" in out
    code, out, _ = run("show curves runs/rates/lr=0.001 --x tokens -y bits_per_byte --json", capsys)
    (curves,) = json.loads(out)["curves"].values()
    assert curves.keys() == {"training", "validation"}
    assert curves["validation"].keys() == {"tokens", "bits_per_byte"}

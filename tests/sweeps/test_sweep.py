"""A sweep trains every point, survives kills and failures, and gives the same table however often it is resumed."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import headway
from headway.errors import CheckpointError, ConfigError
from headway.runs import Run
from headway.sweeps import read_sweep
from headway.sweeps.jobs import WORKER
from headway.sweeps.points import SweepRange
from headway.sweeps.report import plot, render_text
from tests.training.recipes import make

GRID = {"train.lr": [1e-3, 3e-3], "model.n_layers": [1, 2]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sweeps")


@pytest.fixture(scope="module")
def recipe(folder):
    return make(
        folder,
        model={"d_model": 16, "n_heads": 2, "n_layers": 1},
        train={"steps": 12, "batch_size": 2, "save_every": 4, "warmup_steps": 2, "threads": 1},
    )


@pytest.fixture(scope="module")
def result(recipe, folder):
    """Four runs, without an interruption."""
    return headway.sweep(recipe, grid=GRID, out=folder / "whole", quiet=True)


def scores(result):
    return [(point.name, point.scores, point.status) for point in result.points]


def test_every_point_is_a_run_and_the_best_comes_first(result):
    assert len(result.points) == 4
    assert {point.status for point in result.points} == {"finished"}
    losses = [point.score for point in result.points]
    assert losses == sorted(losses)
    assert result.best is result.points[0]
    for point in result.points:
        run = headway.open_run(point.path)
        assert run.recipe.train.lr == point.settings["train.lr"]
        assert run.recipe.model.n_layers == point.settings["model.n_layers"]
        assert run.scores["bits_per_byte"] == point.score
    assert repr(result).startswith(f"SweepResult({str(result.path)!r}, 4 of 4 runs finished, best lr=")
    assert len({len(column) for column in result.columns.values()}) == 1
    assert json.loads(json.dumps(result.to_dict()))["points"][0]["name"] == result.best.name


def test_a_sweep_killed_in_the_middle_resumes_to_the_same_table(recipe, folder, result):
    """SIGKILL in the third run, between two checkpoints; nothing of the process remains but its files."""
    (folder / "recipe.toml").write_text(recipe.to_toml())
    script = f"""
import os, signal, headway
steps = 0
def kill(progress):
    global steps
    steps += 1
    if steps == 2 * 12 + 7:
        os.kill(os.getpid(), signal.SIGKILL)
recipe = headway.load_recipe({str(folder / "recipe.toml")!r})
headway.sweep(recipe, grid={GRID!r}, out={str(folder / "killed")!r}, on_step=kill)
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert process.returncode == -signal.SIGKILL, process.stderr
    statuses = [point.status for point in read_sweep(folder / "killed").points]
    assert sorted(statuses) == ["finished", "finished", "interrupted", "pending"]
    trained = []
    resumed = headway.sweep(folder / "killed", resume=True, on_message=trained.append)
    assert sum(line.startswith("\nrun ") for line in trained) == 2
    assert any(line.startswith("resuming    after step 4") for line in trained)
    assert scores(resumed) == scores(result)
    again = headway.sweep(recipe, grid=GRID, out=folder / "killed", resume=True, quiet=True)
    assert scores(again) == scores(result)


def test_values_may_be_added_but_nothing_else_may_change(recipe, folder, result):
    grid = {"train.lr": [1e-3], "model.n_layers": [1]}
    headway.sweep(recipe, grid=grid, out=folder / "grows", quiet=True)
    with pytest.raises(CheckpointError, match="already holds a sweep"):
        headway.sweep(recipe, grid=grid, out=folder / "grows", quiet=True)

    def resume(recipe=recipe, **options):
        return headway.sweep(recipe, out=folder / "grows", resume=True, quiet=True, **{"grid": grid, **options})

    with pytest.raises(ConfigError, match="another recipe"):
        resume(recipe.replace(train=recipe.train.replace(steps=13)))
    with pytest.raises(ConfigError, match=r"started with --set nothing, not train\.seed=2"):
        resume(settings=["train.seed=2"])
    with pytest.raises(ConfigError, match=r"also has lr=0\.001,n_layers=1"):
        resume(grid={"train.lr": [3e-3], "model.n_layers": [1]})
    with pytest.raises(ConfigError, match="may add values of a setting, not settings"):
        resume(grid={**grid, "train.seed": [1, 2]})
    grown = resume(grid={"train.lr": [1e-3, 3e-3], "model.n_layers": [1]})
    expected = {point.name: point.scores for point in result.points}
    assert {point.name: point.scores for point in grown.points} == {
        name: expected[name] for name in ("lr=0.001,n_layers=1", "lr=0.003,n_layers=1")
    }


def test_a_run_that_fails_does_not_stop_the_others(recipe, folder):
    messages = []
    result = headway.sweep(recipe, grid={"train.lr": [1e10, 1e-3]}, out=folder / "fails", on_message=messages.append)
    assert [(point.name, point.status) for point in result.points] == [("lr=0.001", "finished"), ("lr=1e+10", "failed")]
    assert "diverged" in result.points[1].failure
    assert headway.open_run(result.points[1].path).status == "failed"
    text = render_text(result)
    assert "failed: lr=1e+10: the gradient norm is nan" in text or "failed: lr=1e+10: the loss is" in text
    assert "--resume" not in text  # advice about a single run


def test_a_wrong_point_is_refused_before_anything_is_trained(recipe, folder):
    with pytest.raises(ConfigError, match="n_heads=3"):
        headway.sweep(recipe, grid={"model.n_heads": [2, 3]}, out=folder / "wrong", quiet=True)
    with pytest.raises(ConfigError, match=r"Did you mean 'train\.lr'"):
        headway.sweep(recipe, grid={"train.lrr": [1, 2]}, out=folder / "wrong", quiet=True)
    with pytest.raises(ConfigError, match="nothing to vary"):
        headway.sweep(recipe, out=folder / "wrong", quiet=True)
    with pytest.raises(ConfigError, match=r"train\.lr=1 is also varied"):
        headway.sweep(recipe, grid={"train.lr": [1e-3]}, settings=["train.lr=1"], out=folder / "wrong", quiet=True)
    for value in (object(), [None]):
        with pytest.raises(ConfigError, match="is not a value that a recipe can hold"):
            headway.sweep(recipe, grid={"train.lr": [value]}, out=folder / "wrong", quiet=True)
    assert not (folder / "wrong").exists()


@pytest.mark.parametrize("content", ["", "[" * 100_000, "[]", "{}", '{"recipe": "demo", "ranges": {}, "grid": 5}'])
def test_a_damaged_manifest_is_an_error(content, tmp_path):
    (tmp_path / "base.toml").write_text("")
    (tmp_path / "sweep.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"sweep\.json cannot be read"):
        headway.sweep(tmp_path, resume=True, quiet=True)


def test_halving_stops_runs_early_and_is_resumed_alike(recipe, folder):
    options = {"grid": {"train.lr": [1e-2, 1e-5, 3e-5]}, "halving": True, "settings": ["eval.num_evals=4"]}
    whole = headway.sweep(recipe, out=folder / "halving", quiet=True, **options)
    assert [(point.settings["train.lr"], point.status) for point in whole.points] == [
        (1e-2, "finished"),
        (3e-5, "pruned"),
        (1e-5, "pruned"),
    ]
    assert [point.steps for point in whole.points] == [12, 3, 3]

    class PowerCut(BaseException):
        pass

    def cut(progress):
        if progress.step == 8:
            raise PowerCut

    with pytest.raises(PowerCut):
        headway.sweep(recipe, out=folder / "cut", on_step=cut, **options)
    resumed = headway.sweep(recipe, out=folder / "cut", resume=True, quiet=True, **options)
    assert scores(resumed) == scores(whole)
    assert scores(headway.sweep(folder / "cut", resume=True, quiet=True)) == scores(whole)


def test_several_jobs_give_the_same_scores(recipe, folder, result):
    grid = {"train.lr": [1e-3, 1e10], "model.n_layers": [1]}
    messages = []
    parallel = headway.sweep(recipe, grid=grid, jobs=2, out=folder / "jobs", on_message=messages.append)
    expected = next(point for point in result.points if point.name == "lr=0.001,n_layers=1")
    assert [point.status for point in parallel.points] == ["finished", "failed"]
    assert parallel.points[0].scores == expected.scores
    assert "diverged" in parallel.points[1].failure
    assert [line.strip() for line in messages if "run 2 of 2" in line] == ["run 2 of 2  lr=1e+10,n_layers=1"]


def test_a_worker_stops_and_saves_when_its_parent_is_gone(recipe, folder):
    long = recipe.replace(train=recipe.train.replace(steps=10**6, save_every=0, log_every=1))
    out = folder / "orphan"
    command = [sys.executable, *WORKER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes) as worker:
        worker.stdin.write(json.dumps({"recipe": long.to_toml(), "out": str(out)}) + "\n")
        worker.stdin.flush()
        while worker.poll() is None and len(Run(out).read_log()) < 3:  # training has begun
            time.sleep(0.05)
        answer = worker.communicate(timeout=120)[0]  # closes stdin
    assert json.loads(answer) == {"interrupted": True, "failure": ""}
    run = headway.open_run(out)
    assert run.status == "interrupted"
    assert run.checkpoints[-1].step == run.steps > 0


@pytest.mark.parametrize("width", [40, 80, None])
def test_the_table_fits_the_terminal(result, width):
    lines = render_text(result, width).splitlines()
    assert lines[0].endswith("4 runs, 4 finished")
    assert lines[2].split()[:2] == ["lr", "n_layers"]
    assert lines[3].startswith("best")
    assert width is None or max(map(len, lines[2:])) <= width


def test_plot_writes_a_png(result, tmp_path):
    assert plot(result, tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_random_points_are_added_to_the_same_ones(recipe, folder):
    options = {"ranges": {"train.lr": SweepRange(1e-3, 1e-2, log=True)}, "out": folder / "random", "quiet": True}
    two = headway.sweep(recipe, random=2, **options)
    three = headway.sweep(recipe, random=3, resume=True, **options)
    assert {point.name for point in two.points} < {point.name for point in three.points}
    assert len(three.points) == 3
    with pytest.raises(ConfigError, match="may add points, not drop them"):
        headway.sweep(recipe, random=2, resume=True, **options)
    with pytest.raises(ConfigError, match="--seed 0, not 1"):
        headway.sweep(recipe, random=3, seed=1, resume=True, **options)

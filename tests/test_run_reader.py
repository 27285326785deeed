"""`headway.open_run` reads runs of every kind and state: finished, killed, running, failed, damaged."""

import json
import math
import subprocess
import sys

import pytest

import headway
from headway.errors import CheckpointError, HeadwayError
from headway.models.serialization import find_model
from headway.run_reader import find_runs, open_run
from headway.training.signals import StopTraining
from tests.training.recipes import for_objective, make, train_until_power_cut

SMALL = {"d_model": 16, "n_heads": 2, "n_layers": 1}
STEPS = {"steps": 20, "batch_size": 2, "save_every": 8, "log_every": 5}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return make(tmp_path_factory.mktemp("data"), model=SMALL, train=STEPS, eval={"every_steps": 6})


@pytest.fixture(scope="module")
def finished(recipe, tmp_path_factory):
    """The result of training, and the run read back."""
    out = tmp_path_factory.mktemp("runs") / "mine"
    return headway.train(recipe, out=out, quiet=True), headway.open_run(out)


def test_a_finished_run_holds_what_training_returned(finished, recipe):
    result, run = finished
    assert run.status == "finished"
    assert run.recipe.train == recipe.train
    assert (run.steps, run.n_tokens, run.seconds) == (20, result.n_tokens, result.seconds)
    assert run.n_params == result.model.n_params
    assert run.best.path == find_model(run.path)
    assert run.scores["bits_per_byte"] == min(run.validation["bits_per_byte"])
    assert {"torch", "python", "device", "git", "seed", "seconds", "train_tokens"} <= run.metadata.keys()
    assert (
        repr(run)
        == f"TrainingRun({str(run.path)!r}, gpt, finished, 20 steps, bits_per_byte {run.best.selection_loss:.4f})"
    )
    assert run.model().n_params == run.n_params


def test_history_is_columns_of_equal_length_with_a_row_per_step(finished):
    run = finished[1]
    assert run.history["step"] == [5, 6, 10, 12, 15, 18, 20]
    assert {len(column) for column in run.history.values()} == {7}
    assert [math.isnan(loss) for loss in run.history["loss"]] == [False, True, False, True, False, True, False]
    assert run.validation["step"] == [6, 12, 18, 20]
    assert all(math.isfinite(x) for column in run.validation.values() for x in column)
    assert run.history["train_tokens"] == sorted(run.history["train_tokens"])
    assert run.last_metrics["loss"] == run.history["loss"][-1]


def test_checkpoints_have_their_scores_and_one_is_the_best(finished):
    run = finished[1]
    assert [checkpoint.is_best for checkpoint in run.checkpoints].count(True) == 1
    by_step = dict(zip(run.validation["step"], run.validation["bits_per_byte"], strict=True))
    for checkpoint in run.checkpoints:
        assert checkpoint.scores.get("bits_per_byte") == by_step.get(checkpoint.step)
    assert run.checkpoints[-1].step == 20


def test_a_run_that_was_killed_is_interrupted_and_complete_as_far_as_it_came(recipe, tmp_path):
    train_until_power_cut(recipe, tmp_path / "cut", 13)
    with open(tmp_path / "cut" / "log.jsonl", "a", encoding="utf-8") as log:
        log.write('{"step": 14, "lo')
    run = open_run(tmp_path / "cut")
    assert run.status == "interrupted"
    assert run.history["step"] == [5, 6, 10, 12]
    assert run.best.step == 12
    (run.best.path / "training.json").write_text("{")
    damaged = open_run(tmp_path / "cut")
    assert [c.step for c in damaged.checkpoints] == [c.step for c in run.checkpoints]
    assert damaged.checkpoints[-1].scores == {}


def test_a_run_is_running_while_it_is_trained_and_stops_by_stop_training(recipe, tmp_path):
    statuses = []

    def stop_at_7(progress):
        statuses.append(open_run(tmp_path / "run").status)
        if progress.step == 7:
            raise StopTraining

    result = headway.train(recipe, out=tmp_path / "run", on_step=stop_at_7)
    assert set(statuses) == {"running"}
    assert result.interrupted
    assert result.steps == 7
    assert open_run(tmp_path / "run").status == "interrupted"
    headway.train(recipe, out=tmp_path / "run", resume=True, quiet=True)
    assert open_run(tmp_path / "run").status == "finished"


def test_a_run_that_was_stopped_ends_like_one_that_was_not(finished, recipe, tmp_path):
    def stop_at_7(progress):
        if progress.step == 7:
            raise StopTraining

    headway.train(recipe, out=tmp_path / "run", on_step=stop_at_7)
    headway.train(recipe, out=tmp_path / "run", resume=True, quiet=True)
    assert open_run(tmp_path / "run").scores == finished[1].scores


def test_a_failed_run_tells_why(recipe, tmp_path):
    wild = recipe.replace(train=recipe.train.replace(lr=1e12))
    with pytest.raises(HeadwayError) as error:
        headway.train(wild, out=tmp_path / "wild", quiet=True)
    run = open_run(tmp_path / "wild")
    assert (run.status, run.failure) == ("failed", str(error.value))
    assert run.best.step == 0
    assert run.scores == {}


def test_an_ngram_has_one_row(tmp_path):
    (tmp_path / "text.txt").write_text("one two three. two three four.\n" * 50)
    settings = [f"data.path={tmp_path / 'text.txt'}", "data.valid_fraction=0.2", "model.order=2"]
    recipe = headway.load_recipe("ngram", settings)
    headway.train(recipe, out=tmp_path / "ngram", quiet=True)
    run = open_run(tmp_path / "ngram")
    assert (run.status, run.family, run.steps) == ("finished", "ngram", 0)
    assert run.history["step"] == [0]
    assert run.scores["bits_per_byte"] == run.validation["bits_per_byte"][0]
    assert run.n_params > 0


def test_a_task_has_its_own_scores(tmp_path):
    headway.train(for_objective("classify", tmp_path, steps=4, batch_size=4), out=tmp_path / "run", quiet=True)
    run = open_run(tmp_path / "run")
    assert run.primary_score == ("accuracy", run.scores["accuracy"])


def test_what_is_not_a_run_is_refused_with_a_way_out(finished, tmp_path):
    run = finished[1]
    with pytest.raises(CheckpointError, match=r"no run at .*/minne\. Did you mean '.*mine'"):
        open_run(run.path.with_name("minne"))
    with pytest.raises(CheckpointError, match=r"is a part of a run; open the run itself: .*/mine"):
        open_run(run.best.path)
    with pytest.raises(CheckpointError, match=r"is a folder of runs, not a run; open one of them: .*/mine"):
        open_run(run.path.parent)
    with pytest.raises(CheckpointError, match=r"is not a run: it has neither recipe\.toml nor log\.jsonl"):
        open_run(tmp_path)


def test_runs_are_found_in_folders_and_in_the_order_of_their_numbers(tmp_path):
    for name in ("b/lr=0.01", "b/lr=0.003", "a-10", "a-9", ".hidden"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "recipe.toml").write_text("")
    names = [run.path.relative_to(tmp_path).as_posix() for run in find_runs(tmp_path)]
    assert names == ["a-9", "a-10", "b/lr=0.003", "b/lr=0.01"]


def test_reading_a_run_does_not_import_torch(finished):
    code = (
        "import headway, sys, json; run = headway.open_run(sys.argv[1]); run.recipe, run.history, run.best, run.status;"
        "print(json.dumps('torch' in sys.modules))"
    )
    command = [sys.executable, "-c", code, str(finished[1].path)]
    assert json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout) is False


def test_samples_are_logged_at_each_evaluation_and_do_not_change_training(finished, recipe, tmp_path):
    sampling = recipe.replace(eval=recipe.eval.replace(sample_tokens=5))
    headway.train(sampling, out=tmp_path / "run", quiet=True)
    run = open_run(tmp_path / "run")
    assert [sample.step for sample in run.samples] == run.validation["step"] == [6, 12, 18, 20]
    assert len({sample.text[:6] for sample in run.samples}) == 1  # the same prompt
    assert all(len(sample.text) > 6 for sample in run.samples)
    assert run.history["loss"][0] == finished[1].history["loss"][0]
    assert run.scores == finished[1].scores
    assert finished[1].samples == []

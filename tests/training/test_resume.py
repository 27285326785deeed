"""A resumed run is the run; what is damaged is refused by name; whatever ends a run leaves it whole."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

import headway
from headway.config import load_recipe
from headway.errors import CheckpointError, DataError, HeadwayError
from headway.files import seal, verify
from headway.runs import Run
from headway.training import trainer as loop
from headway.training.resume_check import check_resume, differences
from tests.training.recipes import for_objective, make
from tests.training.test_objectives import half_way

SHORT = {"steps": 14, "save_every": 4, "log_every": 1, "keep": 0}


def same(a, b):
    return differences(Run(a), Run(b)) == []


VARIANTS = {
    "plain": {},
    "dropout": {"model": {"dropout": 0.2}},
    "bfloat16": {"train": {"dtype": "bfloat16"}, "model": {"dropout": 0.1}},
    "accumulation": {"train": {"accumulate": 3}, "model": {"dropout": 0.1}},
    "average": {"train": {"ema": 0.9}},
    "muon": {"train": {"optimizer": "muon"}},
    "sgd": {"train": {"optimizer": "sgd", "momentum": 0.9, "schedule": "step", "decay_every": 5}},
    "evaluation": {"eval": {"every": 3, "patience": 2}, "train": {"lr": 1e-5, "schedule": "wsd"}},
    "checkpointed activations": {"train": {"checkpoint_activations": True}, "model": {"dropout": 0.1}},
    "several epochs": {"train": {"batch_size": 60}},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_kind_of_run_goes_on_bit_for_bit(name, tmp_path):
    tables = {key: dict(table) for key, table in VARIANTS[name].items()}
    tables["train"] = {**SHORT, **tables.get("train", {})}
    recipe = make(tmp_path, **tables)
    headway.train(recipe, out=tmp_path / "whole")
    half_way(recipe, tmp_path / "parts", 10)
    headway.train(load_recipe(tmp_path / "parts"), out=tmp_path / "parts", resume=True)
    assert differences(Run(tmp_path / "whole"), Run(tmp_path / "parts")) == []


def test_killed_processes_resume_exactly(tmp_path):
    """The command of the user, SIGKILL and all."""
    (tmp_path / "check").mkdir()
    recipe = make(tmp_path, model={"dropout": 0.1})
    report = check_resume(recipe, tmp_path / "check", steps=40, kills=2, seed=3)
    assert report.differences == []
    assert len(report.kills) == 2


def test_both_runs_of_a_check_have_one_tokenizer(tmp_path):
    """WordPiece's ties fall otherwise in every process."""
    (tmp_path / "check").mkdir()
    report = check_resume(for_objective("masked", tmp_path), tmp_path / "check", steps=6, kills=1, seed=1)
    assert report.differences == []


def test_a_check_in_which_nothing_was_killed_shows_nothing(tmp_path):
    (tmp_path / "check").mkdir()
    recipe = make(tmp_path, train={"lr": 0.0}, eval={"every": 1, "patience": 1})  # stops early, after step 2
    report = check_resume(recipe, tmp_path / "check", steps=30, kills=3, seed=1)
    assert report.is_exact == bool(report.kills)
    assert all(step <= 2 for step in report.kills)


def test_a_check_that_finds_a_difference_says_where(tmp_path):
    recipe = make(tmp_path, train=SHORT)
    headway.train(recipe, out=tmp_path / "a")
    headway.train(recipe.replace(train=recipe.train.replace(seed=2)), out=tmp_path / "b")
    found = differences(Run(tmp_path / "a"), Run(tmp_path / "b"))
    assert any("model.safetensors differs" in line for line in found)
    assert any("the logs differ first at step 1" in line for line in found)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run with checkpoints at steps 4 and 8 that ended at step 10, and the same run undisturbed."""
    folder = tmp_path_factory.mktemp("stopped")
    recipe = make(folder, train=SHORT)
    headway.train(recipe, out=folder / "whole")
    half_way(recipe, folder / "parts", 10)
    return folder


def damage(file, how, rng):
    data = bytearray(file.read_bytes())
    if how == "truncated":
        data = data[: rng.randrange(len(data))]
    elif how == "flipped":
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data) if how != "missing" else file.unlink()


FILES = [
    "model.safetensors",
    "training.safetensors",
    "training.json",
    "checksums.json",
    "config.json",
    "tokenizer.json",
]


@pytest.mark.parametrize("how", ["truncated", "flipped", "missing"])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_is_taken(name, how, stopped, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(stopped / "parts", run)
    damage(run / "checkpoints" / "step-8" / name, how, random.Random(f"{name}{how}"))
    said = []
    headway.train(load_recipe(run), out=run, resume=True, say=said.append)
    assert any(name in line and "step-8" in line and "the one before" in line for line in said)
    assert (run / "checkpoints" / "step-8.damaged").is_dir()
    assert same(stopped / "whole", run)
    resumed = next(r for r in Run(run).read_log() if r.get("event") == "resume")
    assert resumed["step"] == 4


def test_any_bit_of_a_checkpoint_matters(stopped, tmp_path):
    folder = tmp_path / "step-8"
    shutil.copytree(stopped / "parts" / "checkpoints" / "step-8", folder)
    verify(folder)
    rng = random.Random(5)
    files = sorted(path for path in folder.iterdir())
    for _ in range(200):
        file = rng.choice(files)
        whole = file.read_bytes()
        damage(file, rng.choice(["truncated", "flipped"]), rng)
        with pytest.raises(CheckpointError, match=file.name):
            verify(folder)
        file.write_bytes(whole)
    verify(folder)


def test_a_damaged_model_is_not_used_either(stopped, tmp_path):
    folder = tmp_path / "step-8"
    shutil.copytree(stopped / "parts" / "checkpoints" / "step-8", folder)
    damage(folder / "model.safetensors", "flipped", random.Random(1))
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged.*if you changed it yourself, remove"):
        headway.load(folder)


def test_where_no_checkpoint_is_whole_the_run_says_so(stopped, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(stopped / "parts", run)
    for step in (0, 4, 8):
        (run / "checkpoints" / f"step-{step}" / "training.json").unlink()
    for _ in range(2):  # also when asked again: what is set aside is not forgotten
        with pytest.raises(CheckpointError, match=r"has no checkpoint to go on from; begin again: headway train"):
            headway.train(load_recipe(run), out=run, resume=True)


def test_a_checkpoint_is_not_lost_between_the_two_renames_that_replace_it(stopped, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(stopped / "parts", run)
    (run / "checkpoints" / ".step-8.abc.old").mkdir()
    (run / "checkpoints" / "step-8").rename(run / "checkpoints" / ".step-8.abc.old" / "step-8")
    headway.train(load_recipe(run), out=run, resume=True)
    assert next(r for r in Run(run).read_log() if r.get("event") == "resume")["step"] == 8
    assert same(stopped / "whole", run)


def test_what_a_killed_writer_left_is_cleared_and_does_no_harm(stopped, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(stopped / "parts", run)
    (run / "checkpoints" / ".step-12.partial").mkdir()
    (run / "checkpoints" / ".step-12.partial" / "model.safetensors").write_bytes(b"half")
    with open(run / "log.jsonl", "a") as file:
        file.write('{"step": 11, "lo')
    headway.train(load_recipe(run), out=run, resume=True)
    assert same(stopped / "whole", run)
    assert not list((run / "checkpoints").glob(".*"))


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(tmp_path):
    recipe = make(tmp_path, train={**SHORT, "save_every": 0})
    headway.train(recipe, out=tmp_path / "whole")
    half_way(recipe, tmp_path / "parts", 3)
    headway.train(recipe, out=tmp_path / "parts", resume=True)
    assert same(tmp_path / "whole", tmp_path / "parts")


def test_a_complete_run_stays_as_it_is_and_may_be_made_longer(stopped, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(stopped / "whole", run)
    said = []
    result = headway.train(load_recipe(run), out=run, resume=True, say=said.append)
    assert any("complete" in line for line in said)
    assert same(stopped / "whole", run)
    assert result.score.selection_loss == pytest.approx(
        json.loads((run / "log.jsonl").read_text().splitlines()[-1])["bits_per_byte"]
    )
    longer = headway.train(load_recipe(run, ["train.steps=20"]), out=run, resume=True)
    assert longer.steps == 20
    assert load_recipe(run).train.steps == 20


def test_text_that_has_changed_since_is_refused(stopped, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(stopped / "parts", run)
    (tmp_path / "text.txt").write_text("one two three " * 200)
    recipe = load_recipe(run, [f"data.path={tmp_path / 'text.txt'}"])
    with pytest.raises(DataError, match=r"is not what .* was begun with"):
        headway.train(recipe, out=run, resume=True)


def test_two_processes_never_train_one_run(stopped, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(stopped / "parts", run)
    with Run(run).lock(), pytest.raises(CheckpointError, match="is being trained by another process"):
        headway.train(load_recipe(run), out=run, resume=True)


# ── whatever ends a run ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_loss_that_is_no_number_keeps_the_last_good_step(tmp_path):
    recipe = make(tmp_path, train={**SHORT, "steps": 60, "lr": 1e30, "grad_clip": 0.0, "save_every": 0})
    with pytest.raises(
        HeadwayError, match=r"diverged; try a smaller train\.lr.*the last checkpoint is .*step-\d"
    ) as end:
        headway.train(recipe, out=tmp_path / "run")
    assert end.value.exit_code == 1
    assert Run(tmp_path / "run").checkpoint_steps() == [0]  # what the first step made of the weights is of no use
    result = headway.train(load_recipe(tmp_path / "run", ["train.lr=1e-3"]), out=tmp_path / "run", resume=True)
    assert result.steps == 60


def test_a_run_that_diverges_late_keeps_what_it_had(tmp_path):
    recipe = make(tmp_path, train={**SHORT, "keep": 1})
    half_way(recipe, tmp_path / "run", 6)
    worse = load_recipe(tmp_path / "run", ["train.lr=1e30", "train.grad_clip=0.0"])
    with pytest.raises(HeadwayError, match=r"diverged.*the last checkpoint is .*step-4"):
        headway.train(worse, out=tmp_path / "run", resume=True)
    verify(Run(tmp_path / "run").checkpoint_dir(4))


def test_a_full_disk_ends_the_run_and_costs_no_checkpoint(tmp_path, monkeypatch):
    recipe = make(tmp_path, train=SHORT)
    real = loop.TrainState.save

    def full(state, folder):
        if state.progress.step > 4:
            (folder.parent / ".half").mkdir()
            raise OSError(28, "No space left on device", str(folder))
        real(state, folder)

    monkeypatch.setattr(loop.TrainState, "save", full)
    with pytest.raises(HeadwayError, match=r"No space left on device.*the last checkpoint is .*step-4; go on with"):
        headway.train(recipe, out=tmp_path / "run")
    monkeypatch.undo()
    headway.train(load_recipe(tmp_path / "run"), out=tmp_path / "run", resume=True)
    headway.train(recipe, out=tmp_path / "whole")
    assert same(tmp_path / "whole", tmp_path / "run")


def test_text_that_goes_away_while_training_ends_it_with_a_checkpoint(tmp_path, monkeypatch):
    recipe = make(tmp_path, train=SHORT)
    real = loop.iter_step_batches

    def gone(*arguments, **options):
        for i, work in enumerate(real(*arguments, **options)):
            if i == 6:
                raise FileNotFoundError(2, "No such file or directory", "train-0003.safetensors")
            yield work

    monkeypatch.setattr(loop, "work_from", gone)
    with pytest.raises(
        HeadwayError, match=r"train-0003\.safetensors: No such file.*after step 6; the last checkpoint is"
    ):
        headway.train(recipe, out=tmp_path / "run")
    assert Run(tmp_path / "run").checkpoint_steps() == [0, 4, 6]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_stops_on_a_signal_and_says_how_to_go_on(number, tmp_path):
    command = [sys.executable, "-m", "headway", "train", "demo", "--out", str(tmp_path / "run"), "--device", "cpu"]
    command += ["--set", "model.n_layers=1", "--set", "tokenizer.vocab_size=300", "--set", "train.log_every=1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(600):
        if any("loss" in record for record in Run(tmp_path / "run").read_log()):
            break
        time.sleep(0.1)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"headway train {tmp_path / 'run'} --resume" in err
    verify(Run(tmp_path / "run").checkpoint_dir(Run(tmp_path / "run").checkpoint_steps()[-1]))


def test_a_foreseeable_lack_of_memory_is_said_before_the_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "memory_free", lambda device: 16 * 2**20)
    recipe = make(tmp_path, train={"batch_size": 512, "steps": 2})
    with pytest.raises(
        HeadwayError, match=r"has 0\.0 GiB free: set train\.grad_accum_steps=\d+, which gives the same steps"
    ):
        headway.train(recipe, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ── what is kept ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_best_and_the_last_are_kept(tmp_path):
    tables = {"train": {**SHORT, "keep": 1, "lr": 0.3, "warmup_steps": 0}, "eval": {"every": 2}}
    result = headway.train(make(tmp_path, **tables), out=tmp_path / "run")
    assert Run(tmp_path / "run").checkpoint_steps() == sorted({result.best_step, 14})
    best = min(r["bits_per_byte"] for r in Run(tmp_path / "run").read_log() if "bits_per_byte" in r)
    held = headway.data.read_split(load_recipe(tmp_path / "run").data, "valid")
    assert headway.evaluate(headway.load(tmp_path / "run"), list(held)).bits_per_byte == pytest.approx(best)


def test_patience_ends_a_run_that_no_longer_improves(tmp_path):
    tables = {"train": {**SHORT, "steps": 100, "lr": 0.0}, "eval": {"every": 2, "patience": 3}}
    result = headway.train(make(tmp_path, **tables), out=tmp_path / "run")
    assert result.steps == 8  # the first is the best, then three that are not
    assert not result.interrupted


def test_pieces_change_no_step(tmp_path):
    """Accumulation is for memory: the same batch, the same loss, whatever the pieces."""
    losses = {}
    for pieces in (1, 3, 8):
        run = tmp_path / f"run-{pieces}"
        headway.train(make(tmp_path, train={**SHORT, "accumulate": pieces}), out=run)
        losses[pieces] = [record["loss"] for record in Run(run).read_log() if "loss" in record]
    assert losses[3] == pytest.approx(losses[1], abs=1e-5)
    assert losses[8] == pytest.approx(losses[1], abs=1e-5)


def test_checkpointed_activations_change_nothing(tmp_path):
    for name, on in (("a", False), ("b", True)):
        train = {**SHORT, "checkpoint_activations": on}
        headway.train(make(tmp_path, train=train, model={"dropout": 0.1}), out=tmp_path / name)
    a, b = (headway.load(tmp_path / name) for name in "ab")
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_the_mean_of_the_last_checkpoints_is_what_a_run_gives(tmp_path):
    recipe = make(tmp_path, train={**SHORT, "average": 3, "keep": 3, "steps": 40, "save_every": 10})
    result = headway.train(recipe, out=tmp_path / "run")
    run = Run(tmp_path / "run")
    parts = [headway.load(run.checkpoint_dir(step)) for step in run.checkpoint_steps()[-3:]]
    averaged = headway.load(tmp_path / "run" / "averaged")
    for mean, *own in zip(averaged.parameters(), *(p.parameters() for p in parts), strict=True):
        torch.testing.assert_close(mean, torch.stack(own).mean(0), rtol=1e-6, atol=1e-7)
    assert all(torch.equal(p, q) for p, q in zip(result.model.parameters(), averaged.parameters(), strict=True))


def test_a_run_killed_before_its_averaging_averages_when_resumed(tmp_path, monkeypatch):
    recipe = make(tmp_path, train={**SHORT, "average": 2, "keep": 2})
    headway.train(recipe, out=tmp_path / "whole")

    def killed(trainer):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop.Trainer, "_average", killed)
    with pytest.raises(KeyboardInterrupt):
        headway.train(recipe, out=tmp_path / "run")
    monkeypatch.undo()
    headway.train(recipe, out=tmp_path / "run", resume=True)
    assert same(tmp_path / "whole", tmp_path / "run")
    whole, again = (headway.load(tmp_path / name / "averaged") for name in ("whole", "run"))
    assert all(torch.equal(p, q) for p, q in zip(whole.parameters(), again.parameters(), strict=True))
    complete = headway.train(recipe, out=tmp_path / "run", resume=True)
    assert all(torch.equal(p, q) for p, q in zip(whole.parameters(), complete.model.parameters(), strict=True))


def test_an_interruption_changes_neither_the_log_nor_the_average(tmp_path):
    """Ctrl-C at any step, on one that is scored too, and resumed: the run that was never stopped."""
    recipe = make(tmp_path, train={**SHORT, "average": 2, "keep": 2}, eval={"every": 3})
    headway.train(recipe, out=tmp_path / "whole")
    for stop in (6, 7):
        run = tmp_path / f"run-{stop}"

        def interrupt(progress, stop=stop):
            if progress.step == stop - 1:  # is noticed after the step that follows
                os.kill(os.getpid(), signal.SIGINT)

        assert headway.train(recipe, out=run, report=interrupt).interrupted
        headway.train(recipe, out=run, resume=True)
        assert same(tmp_path / "whole", run)
        files = [(folder / "averaged" / "model.safetensors").read_bytes() for folder in (tmp_path / "whole", run)]
        assert files[0] == files[1]


def test_a_moving_average_is_what_is_scored_and_saved(tmp_path):
    seen = []
    recipe = make(tmp_path, train={**SHORT, "ema": 0.5, "steps": 3})
    result = headway.train(
        recipe, out=tmp_path / "run", before=lambda m: seen.append([p.detach().clone() for p in m.parameters()])
    )
    saved = headway.load(tmp_path / "run")
    assert all(torch.equal(p, q) for p, q in zip(result.model.parameters(), saved.parameters(), strict=True))
    held = list(headway.data.read_split(load_recipe(tmp_path / "run").data, "valid"))
    assert headway.evaluate(saved, held).bits_per_byte == pytest.approx(result.score.bits_per_byte)
    plain = headway.train(make(tmp_path, train={**SHORT, "steps": 3}), out=tmp_path / "plain").model
    first = seen[0]
    for start, average, last in zip(first, saved.parameters(), plain.parameters(), strict=True):
        assert (average - start).norm() < (last - start).norm()  # it trails behind


def test_the_folder_says_all_that_is_needed_to_repeat_it(tmp_path):
    headway.train(make(tmp_path, train=SHORT), out=tmp_path / "run")
    start = Run(tmp_path / "run").read_log()[0]
    assert {"headway", "torch", "python", "git", "device", "dtype", "seed", "data", "ranks", "threads"} <= set(start)
    assert (tmp_path / "run" / "recipe.toml").is_file()


def test_seal_covers_folders_inside(tmp_path):
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "one").write_bytes(b"1234")
    seal(tmp_path)
    (tmp_path / "shards" / "one").write_bytes(b"1235")
    with pytest.raises(CheckpointError, match="shards/one"):
        verify(tmp_path)
    assert os.listdir(tmp_path / "shards") == ["one"]

"""Resuming is exact, damaged checkpoints are refused by name, and every failure leaves an intact checkpoint."""

import json
import os
import random
import shutil
import signal
from pathlib import Path

import pytest
import torch

import headway
from headway.config import load_recipe
from headway.errors import CheckpointError, ConfigError, DataError, HeadwayError
from headway.files import verify_checksums, write_checksums
from headway.models.serialization import find_model
from headway.runs import Run
from headway.training import build, finish, resume_check
from headway.training.checkpoint import TrainState
from headway.training.resume_check import check_resume, differences
from tests.training.recipes import for_objective, make, train_until_power_cut

TINY = {"n_layers": 1, "d_model": 32}
SHORT = {"steps": 8, "save_every": 2, "log_every": 1, "keep_checkpoints": 0}


def assert_same(a, b):
    assert differences(Run(a), Run(b)) == []


VARIANTS = {
    "dropout": {"model": {"dropout": 0.2}},
    "bfloat16": {"train": {"dtype": "bfloat16"}, "model": {"dropout": 0.1}},
    "accumulation": {"train": {"grad_accum_steps": 3}, "model": {"dropout": 0.1}},
    "ema": {"train": {"ema": 0.9}},
    "muon": {"train": {"optimizer": "muon"}},
    "sgd": {"train": {"optimizer": "sgd", "momentum": 0.9, "schedule": "step", "decay_every": 5}},
    "evaluation": {"eval": {"every_steps": 3, "patience": 2}, "train": {"lr": 1e-5, "schedule": "wsd"}},
    "checkpointed activations": {"train": {"checkpoint_activations": True}, "model": {"dropout": 0.1}},
    "several epochs": {"train": {"batch_size": 60}},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_resuming_is_bit_exact(name, tmp_path):
    tables = VARIANTS[name]
    tables = {**tables, "train": {**SHORT, **tables.get("train", {})}, "model": {**TINY, **tables.get("model", {})}}
    recipe = make(tmp_path, **tables)
    headway.train(recipe, out=tmp_path / "undisturbed")
    train_until_power_cut(recipe, tmp_path / "resumed", 5)
    headway.train(load_recipe(tmp_path / "resumed"), out=tmp_path / "resumed", resume=True)
    assert_same(tmp_path / "undisturbed", tmp_path / "resumed")


def test_a_killed_process_resumes_exactly(tmp_path):
    """The user's command and SIGKILL. Both runs share a tokenizer."""
    (tmp_path / "check").mkdir()
    recipe = for_objective("masked", tmp_path)
    recipe = recipe.replace(model=recipe.model.replace(dropout=0.1))
    report = check_resume(recipe, tmp_path / "check", steps=20, kills=1, seed=3)
    assert report.differences == []
    assert len(report.kills) == 1


def test_a_check_without_a_kill_proves_nothing(tmp_path, monkeypatch):
    """Early stopping ends the run after step 2, before it can be killed."""

    def run_to_the_end(recipe_file, run, ranks, kill_step, folder):
        headway.train(load_recipe(recipe_file), out=run.path, resume=True)
        return False

    monkeypatch.setattr(resume_check, "_run_process", run_to_the_end)
    messages = []
    recipe = make(tmp_path, train={"lr": 0.0}, eval={"every_steps": 1, "patience": 1}, model=TINY)
    (tmp_path / "check").mkdir()
    report = check_resume(recipe, tmp_path / "check", steps=30, kills=3, seed=1, on_message=messages.append)
    assert not report.is_exact
    assert report.differences == ["nothing was tested: every process ended before it could be killed; try more --steps"]
    assert messages[-1] == "the run ended before it could be killed after step 1"


def test_differences_say_what_differs(stopped, tmp_path):
    recipe = load_recipe(stopped / "undisturbed", ["train.seed=2"])
    headway.train(recipe, out=tmp_path / "other")
    lines = differences(Run(stopped / "undisturbed"), Run(tmp_path / "other"))
    assert any("model.safetensors differs" in line for line in lines)
    assert any("the logs differ first at step 1" in line for line in lines)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run with checkpoints at steps 2 and 4 that a power cut ended at step 5, and the same run undisturbed."""
    folder = tmp_path_factory.mktemp("stopped")
    recipe = make(folder, train=SHORT, model=TINY)
    headway.train(recipe, out=folder / "undisturbed")
    train_until_power_cut(recipe, folder / "stopped", 5)
    return folder


@pytest.fixture
def run(stopped, tmp_path):
    """A copy of the stopped run."""
    shutil.copytree(stopped / "stopped", tmp_path / "run")
    return tmp_path / "run"


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
def test_a_damaged_checkpoint_is_named_and_set_aside(name, how, run):
    damage(run / "checkpoints" / "step-4" / name, how, random.Random(f"{name}{how}"))
    warnings = []
    assert Run(run).newest_intact(warnings.append) == 2
    assert len(warnings) == 1
    assert name in warnings[0]
    assert "renamed to step-4.damaged, falling back to the previous checkpoint" in warnings[0]
    assert (run / "checkpoints" / "step-4.damaged").is_dir()


def test_training_falls_back_to_the_previous_checkpoint(stopped, run):
    damage(run / "checkpoints" / "step-4" / "training.safetensors", "flipped", random.Random(0))
    messages = []
    headway.train(load_recipe(run), out=run, resume=True, on_message=messages.append)
    assert any("training.safetensors is damaged" in line and "previous checkpoint" in line for line in messages)
    assert [r["step"] for r in Run(run).read_log() if r.get("event") == "resume"] == [2]
    assert_same(stopped / "undisturbed", run)


def test_any_bit_of_a_checkpoint_matters(stopped, tmp_path):
    folder = tmp_path / "step-4"
    shutil.copytree(stopped / "stopped" / "checkpoints" / "step-4", folder)
    verify_checksums(folder)
    rng = random.Random(5)
    files = sorted(folder.iterdir())
    for _ in range(200):
        file = rng.choice(files)
        original = file.read_bytes()
        damage(file, rng.choice(["truncated", "flipped"]), rng)
        with pytest.raises(CheckpointError, match=file.name):
            verify_checksums(folder)
        file.write_bytes(original)
    verify_checksums(folder)


def test_a_damaged_model_is_not_loaded(run):
    folder = run / "checkpoints" / "step-4"
    damage(folder / "model.safetensors", "flipped", random.Random(1))
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged.*if you changed it yourself, remove"):
        headway.load(folder)


HOSTILE_CHECKPOINTS = {  # file → content; all of them with fitting checksums
    "training.json": [b"{}", b'{"step": "4"}', b'{"step": 4, "best": []}', b'{"step": 2}', b'{"step": 4, "score": 1}'],
    "training.safetensors": [b"", b"\x08" + b"\0" * 7 + b"{}      "],
}


@pytest.mark.parametrize(("name", "content"), [(name, c) for name, cs in HOSTILE_CHECKPOINTS.items() for c in cs])
def test_a_hostile_checkpoint_is_refused_by_name(name, content, run):
    folder = run / "checkpoints" / "step-4"
    (folder / name).write_bytes(content)
    write_checksums(folder)
    with pytest.raises(CheckpointError, match=name):
        headway.train(load_recipe(run), out=run, resume=True)


def test_a_run_without_an_intact_checkpoint_is_refused(run):
    for step in (0, 2, 4):
        (run / "checkpoints" / f"step-{step}" / "training.json").unlink()
    for _ in range(2):  # also the second time, when the damaged ones have been renamed
        with pytest.raises(CheckpointError, match=r"no intact checkpoint to resume from.*start over: headway train"):
            headway.train(load_recipe(run), out=run, resume=True)


def test_leftovers_of_a_killed_writer_are_cleaned_up(stopped, run):
    """Killed between the two renames that replace step 4, while writing step 6 and a log line."""
    checkpoints = run / "checkpoints"
    (checkpoints / ".step-4.abc.old").mkdir()
    (checkpoints / "step-4").rename(checkpoints / ".step-4.abc.old" / "step-4")
    (checkpoints / ".step-6.partial").mkdir()
    (checkpoints / ".step-6.partial" / "model.safetensors").write_bytes(b"half")
    with open(run / "log.jsonl", "a") as file:
        file.write('{"step": 5, "lo')
    headway.train(load_recipe(run), out=run, resume=True)
    assert [r["step"] for r in Run(run).read_log() if r.get("event") == "resume"] == [4]
    assert_same(stopped / "undisturbed", run)
    assert not list(checkpoints.glob(".*"))


def test_a_run_killed_before_its_first_checkpoint_starts_again(stopped, run):
    shutil.rmtree(run / "checkpoints")
    log = (run / "log.jsonl").read_text().splitlines(keepends=True)
    (run / "log.jsonl").write_text(log[0])
    headway.train(load_recipe(run), out=run, resume=True)
    assert_same(stopped / "undisturbed", run)


@pytest.mark.parametrize("how", ["missing", "empty", "damaged"])
def test_a_run_whose_checkpoints_are_gone_starts_over_only_by_force(how, stopped, run):
    before = (run / "log.jsonl").read_bytes()
    if how == "damaged":
        for folder in (run / "checkpoints").iterdir():
            damage(folder / "model.safetensors", "flipped", random.Random(2))
    else:
        shutil.rmtree(run / "checkpoints")
        if how == "empty":
            (run / "checkpoints").mkdir()
    with pytest.raises(CheckpointError, match=r"has no (intact )?checkpoint.*--resume --force.*or train a new run"):
        headway.train(load_recipe(run), out=run, resume=True)
    assert (run / "log.jsonl").read_bytes() == before
    messages = []
    headway.train(load_recipe(run), out=run, resume=True, force=True, on_message=messages.append)
    assert any(line.startswith("start over") for line in messages)
    assert_same(stopped / "undisturbed", run)


# ── what may change ───────────────────────────────────────────────────────────────────────────────────────────────

OTHER_EVALUATIONS = {
    "data.valid_fraction": "0.3",
    "data.test_fraction": "0.2",
    "eval.context": "16",
}


@pytest.mark.parametrize("setting", OTHER_EVALUATIONS)
def test_another_evaluation_is_refused_and_by_force_starts_the_scores_anew(setting, tmp_path):
    run = tmp_path / "run"
    recipe = make(tmp_path, train={**SHORT, "keep_checkpoints": 1}, eval={"every_steps": 2}, model=TINY)
    train_until_power_cut(recipe, run, 5)
    # A score that no honest model reaches: were it mixed with the new ones, it would stay the best for ever.
    folder = run / "checkpoints" / "step-4"
    progress = json.loads((folder / "training.json").read_text())
    progress["best"] = progress["score"]["selection_loss"] = 1e-9
    (folder / "training.json").write_text(json.dumps(progress))
    write_checksums(folder)
    assert find_model(run) == folder
    changed = f"{setting}={OTHER_EVALUATIONS[setting]}"
    other = load_recipe(run, [changed])
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=rf"{changed} changed.*not be comparable.*--force"):
        headway.train(other, out=run, resume=True)
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    result = headway.train(other, out=run, resume=True, force=True)
    assert result.best_step > 4
    assert find_model(run) == Run(run).checkpoint_dir(result.best_step) == headway.open_run(run).best.path
    (resumed,) = [record for record in Run(run).read_log() if record.get("event") == "resume"]
    assert resumed["new_evaluation"] == changed
    headway.train(other, out=run, resume=True)  # the change is stored: nothing is new about it now


def test_old_scores_do_not_count_beside_those_of_another_evaluation(tmp_path):
    """All checkpoints are kept, those of the first evaluation too."""
    run, recipe = tmp_path / "run", make(tmp_path, train=SHORT, eval={"every_steps": 2}, model=TINY)
    train_until_power_cut(recipe, run, 5)
    # Fewer tokens of context make every score worse.
    result = headway.train(load_recipe(run, ["eval.context=2"]), out=run, resume=True, force=True)
    assert Run(run).checkpoint_steps() == [0, 2, 4, 6, 8]
    assert find_model(run) == Run(run).checkpoint_dir(result.best_step)
    assert result.best_step > 4


def test_other_validation_data_is_another_evaluation(tmp_path):
    (tmp_path / "valid.txt").write_text("one two three four five six seven eight nine ten. " * 3)
    run, recipe = tmp_path / "run", make(tmp_path, train=SHORT, data={"valid_path": str(tmp_path / "valid.txt")})
    train_until_power_cut(recipe, run, 3)
    (tmp_path / "valid.txt").write_text("ten nine eight. " * 9)
    with pytest.raises(ConfigError, match=r"the validation data changed since .*run was started"):
        headway.train(load_recipe(run), out=run, resume=True)


def test_a_complete_run_is_scored_again_by_force(stopped, tmp_path):
    shutil.copytree(stopped / "undisturbed", tmp_path / "run")
    before = headway.open_run(tmp_path / "run").scores["bits_per_byte"]
    other = load_recipe(tmp_path / "run", ["eval.context=2"])
    result = headway.train(other, out=tmp_path / "run", resume=True, force=True)
    assert result.steps == SHORT["steps"]
    assert result.scores["bits_per_byte"] > before
    assert headway.open_run(tmp_path / "run").scores["bits_per_byte"] == result.scores["bits_per_byte"]


def test_settings_of_training_and_a_moved_text_may_change(run, tmp_path):
    (tmp_path / "moved.txt").write_bytes(Path(load_recipe(run).data.path).read_bytes())
    settings = [f"data.path={tmp_path / 'moved.txt'}", "train.lr=1e-4", "eval.every_steps=1", "eval.batch_size=3"]
    assert headway.train(load_recipe(run, settings), out=run, resume=True).steps == SHORT["steps"]


@pytest.mark.parametrize("setting", ["model.n_heads=1", "tokenizer.kind=bpe"])
def test_another_model_or_tokenizer_is_refused_even_by_force(setting, run):
    with pytest.raises(ConfigError, match=f"{setting}.*: a resumed run keeps its model and tokenizer"):
        headway.train(load_recipe(run, [setting]), out=run, resume=True, force=True)


def test_fewer_steps_than_done_are_refused(run):
    with pytest.raises(ConfigError, match=r"train\.steps=3 is below the 4 steps that .*run has done"):
        headway.train(load_recipe(run, ["train.steps=3"]), out=run, resume=True)
    assert load_recipe(run).train.steps == SHORT["steps"]


def test_force_is_for_resuming(tmp_path):
    with pytest.raises(ConfigError, match="force=True is for resume=True"):
        headway.train(make(tmp_path), out=tmp_path / "run", force=True)


def test_a_complete_run_is_unchanged_and_can_be_extended(stopped, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(stopped / "undisturbed", run)
    messages = []
    result = headway.train(load_recipe(run), out=run, resume=True, on_message=messages.append)
    assert any("complete" in line for line in messages)
    assert_same(stopped / "undisturbed", run)
    assert result.score.selection_loss == pytest.approx(
        json.loads((run / "log.jsonl").read_text().splitlines()[-1])["bits_per_byte"]
    )
    extended = headway.train(load_recipe(run, ["train.steps=12"]), out=run, resume=True)
    assert extended.steps == 12
    assert load_recipe(run).train.steps == 12


def test_changed_data_is_refused(run, tmp_path):
    (tmp_path / "text.txt").write_text("one two three " * 200)
    recipe = load_recipe(run, [f"data.path={tmp_path / 'text.txt'}"])
    with pytest.raises(DataError, match=r"text\.txt is not the data that .* was started with"):
        headway.train(recipe, out=run, resume=True)


def test_two_processes_never_train_one_run(run):
    with Run(run).lock(), pytest.raises(CheckpointError, match="is being trained by another process"):
        headway.train(load_recipe(run), out=run, resume=True)


# ── failures ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_that_diverges_at_once_keeps_its_first_checkpoint(tmp_path):
    train = {**SHORT, "lr": 1e30, "grad_clip": 0.0, "save_every": 0}
    expected = (
        r"diverged; try a smaller train\.lr.*the last checkpoint is .*step-0; to resume: .* --set train\.lr=1e\+29"
    )
    with pytest.raises(HeadwayError, match=expected) as failure:
        headway.train(make(tmp_path, train=train, model=TINY), out=tmp_path / "run")
    assert failure.value.exit_code == 1
    assert Run(tmp_path / "run").checkpoint_steps() == [0]  # weights after a diverged step are useless
    result = headway.train(load_recipe(tmp_path / "run", ["train.lr=1e-3"]), out=tmp_path / "run", resume=True)
    assert result.steps == SHORT["steps"]


def test_a_run_that_diverges_late_keeps_its_last_checkpoint(run):
    worse = load_recipe(run, ["train.lr=1e30", "train.grad_clip=0.0", "train.keep_checkpoints=1"])
    with pytest.raises(HeadwayError, match=r"diverged.*the last checkpoint is .*step-4"):
        headway.train(worse, out=run, resume=True)
    verify_checksums(Run(run).checkpoint_dir(4))


def test_a_full_disk_costs_no_checkpoint(stopped, tmp_path, monkeypatch):
    original = TrainState.save

    def save(state, folder):
        if state.progress.step > 4:
            (folder.parent / ".half").mkdir()
            raise OSError(28, "No space left on device", str(folder))
        original(state, folder)

    run = tmp_path / "run"
    monkeypatch.setattr(TrainState, "save", save)
    with pytest.raises(HeadwayError, match=r"No space left on device.*the last checkpoint is .*step-4; to resume"):
        headway.train(load_recipe(stopped / "undisturbed"), out=run)
    monkeypatch.undo()
    headway.train(load_recipe(run), out=run, resume=True)
    assert_same(stopped / "undisturbed", run)


def test_a_full_disk_costs_no_line_of_the_log(stopped, tmp_path, monkeypatch):
    """Half of a line fits."""
    original, n_lines = os.write, 0

    def write(handle, data):
        nonlocal n_lines
        if bytes(data[:1]) == b"{":
            n_lines += 1
        if n_lines == 4:  # the start, and three steps
            original(handle, data[: len(data) // 2])
            raise OSError(28, "No space left on device")
        return original(handle, data)

    run = tmp_path / "run"
    monkeypatch.setattr(os, "write", write)
    with pytest.raises(
        HeadwayError,
        match=r"log\.jsonl cannot be written: No space left on device.*the last checkpoint is .*; to resume",
    ):
        headway.train(load_recipe(stopped / "undisturbed"), out=run)
    monkeypatch.undo()
    assert all(json.loads(line) for line in (run / "log.jsonl").read_text().splitlines())
    headway.train(load_recipe(run), out=run, resume=True)
    assert_same(stopped / "undisturbed", run)


def test_data_that_disappears_while_training_leaves_a_checkpoint(tmp_path, monkeypatch):
    original = build.iter_step_batches

    def iter_step_batches(*arguments, **options):
        for i, batch in enumerate(original(*arguments, **options)):
            if i == 5:
                raise FileNotFoundError(2, "No such file or directory", "train-0003.safetensors")
            yield batch

    monkeypatch.setattr(build, "iter_step_batches", iter_step_batches)
    expected = r"train-0003\.safetensors: No such file.*after step 5; the last checkpoint is .*step-5"
    with pytest.raises(HeadwayError, match=expected):
        headway.train(make(tmp_path, train=SHORT, model=TINY), out=tmp_path / "run")
    assert Run(tmp_path / "run").checkpoint_steps() == [0, 2, 4, 5]


def test_a_step_that_will_not_fit_in_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "free_memory", lambda device: 16 * 2**20)
    recipe = make(tmp_path, train={"batch_size": 512, "steps": 2})
    expected = r"has 0\.0 GiB free: set train\.grad_accum_steps=\d+, which gives the same steps"
    with pytest.raises(HeadwayError, match=expected):
        headway.train(recipe, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ── checkpoints and averages ──────────────────────────────────────────────────────────────────────────────────────


def test_the_best_and_the_last_checkpoint_are_kept(tmp_path):
    train = {**SHORT, "keep_checkpoints": 1, "lr": 0.3, "warmup_steps": 0}
    result = headway.train(make(tmp_path, train=train, eval={"every_steps": 2}), out=tmp_path / "run")
    assert Run(tmp_path / "run").checkpoint_steps() == sorted({result.best_step, SHORT["steps"]})
    best = min(r["bits_per_byte"] for r in Run(tmp_path / "run").read_log() if "bits_per_byte" in r)
    documents = list(headway.data.read_split(load_recipe(tmp_path / "run").data, "valid"))
    assert headway.evaluate(headway.load(tmp_path / "run"), documents).bits_per_byte == pytest.approx(best)


def test_early_stopping_ends_a_run_that_no_longer_improves(tmp_path):
    tables = {"train": {**SHORT, "steps": 100, "lr": 0.0}, "eval": {"every_steps": 2, "patience": 3}, "model": TINY}
    result = headway.train(make(tmp_path, **tables), out=tmp_path / "run")
    assert result.steps == 8  # the first evaluation is the best, then three that are not
    assert not result.interrupted


def test_gradient_accumulation_changes_no_step(stopped, tmp_path):
    losses = {}
    for grad_accum_steps in (1, 3, 8):
        run = tmp_path / f"run-{grad_accum_steps}"
        headway.train(load_recipe(stopped / "stopped", [f"train.grad_accum_steps={grad_accum_steps}"]), out=run)
        losses[grad_accum_steps] = [record["loss"] for record in Run(run).read_log() if "loss" in record]
    assert losses[3] == pytest.approx(losses[1], abs=1e-5)
    assert losses[8] == pytest.approx(losses[1], abs=1e-5)


def test_activation_checkpointing_changes_nothing(tmp_path):
    models = []
    for name, is_on in (("off", False), ("on", True)):
        train = {**SHORT, "checkpoint_activations": is_on}
        models.append(headway.train(make(tmp_path, train=train, model={"dropout": 0.1}), out=tmp_path / name).model)
    assert all(torch.equal(p, q) for p, q in zip(*(model.parameters() for model in models), strict=True))


AVERAGING = {**SHORT, "average_checkpoints": 2, "keep_checkpoints": 2}


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    """A run that averages its last two checkpoints, and its recipe and result."""
    folder = tmp_path_factory.mktemp("averaged")
    recipe = make(folder, train=AVERAGING, eval={"every_steps": 3}, model=TINY)
    return recipe, headway.train(recipe, out=folder / "run")


def test_the_mean_of_the_last_checkpoints_is_the_result(averaged):
    _, result = averaged
    run = Run(result.path)
    models = [headway.load(run.checkpoint_dir(step)) for step in run.checkpoint_steps() if step in (6, 8)]
    mean_model = headway.load(result.path / "averaged")
    for mean, *parameters in zip(mean_model.parameters(), *(m.parameters() for m in models), strict=True):
        torch.testing.assert_close(mean, torch.stack(parameters).mean(0), rtol=1e-6, atol=1e-7)
    assert all(torch.equal(p, q) for p, q in zip(result.model.parameters(), mean_model.parameters(), strict=True))


def test_a_run_killed_before_averaging_averages_when_resumed(averaged, tmp_path, monkeypatch):
    recipe, undisturbed = averaged

    def kill(trainer):
        raise KeyboardInterrupt

    monkeypatch.setattr(finish, "average_last_checkpoints", kill)
    with pytest.raises(KeyboardInterrupt):
        headway.train(recipe, out=tmp_path / "run")
    monkeypatch.undo()
    headway.train(recipe, out=tmp_path / "run", resume=True)
    assert_same(undisturbed.path, tmp_path / "run")
    complete = headway.train(recipe, out=tmp_path / "run", resume=True)
    for model in (headway.load(tmp_path / "run" / "averaged"), complete.model):
        for p, q in zip(undisturbed.model.parameters(), model.parameters(), strict=True):
            assert torch.equal(p, q)


def test_an_extended_run_is_averaged_again_though_killed_before(averaged, tmp_path, monkeypatch):
    """The average of its first end is not taken for that of the second."""
    _, result = averaged
    shutil.copytree(result.path, tmp_path / "run")
    longer = load_recipe(tmp_path / "run", ["train.steps=12"])

    def kill(trainer):
        raise KeyboardInterrupt

    monkeypatch.setattr(finish, "average_last_checkpoints", kill)
    with pytest.raises(KeyboardInterrupt):
        headway.train(longer, out=tmp_path / "run", resume=True)
    monkeypatch.undo()
    headway.train(longer, out=tmp_path / "run", resume=True)
    assert json.loads((tmp_path / "run" / "averaged" / "training.json").read_text())["step"] == 12


@pytest.mark.parametrize("step", [6, 7])
def test_ctrl_c_changes_neither_the_log_nor_the_average(averaged, tmp_path, step):
    """Interrupted at any step, also at one that is evaluated (6), and resumed: the same as undisturbed."""
    recipe, undisturbed = averaged

    def interrupt(progress):
        if progress.step == step - 1:  # takes effect after the next step
            os.kill(os.getpid(), signal.SIGINT)

    assert headway.train(recipe, out=tmp_path / "run", on_step=interrupt).interrupted
    headway.train(recipe, out=tmp_path / "run", resume=True)
    assert_same(undisturbed.path, tmp_path / "run")
    files = [folder / "averaged" / "model.safetensors" for folder in (undisturbed.path, tmp_path / "run")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_the_ema_is_evaluated_and_saved(tmp_path):
    initial = []
    train = {**SHORT, "steps": 3, "ema": 0.5}
    result = headway.train(
        make(tmp_path, train=train),
        out=tmp_path / "run",
        on_model_ready=lambda model: initial.extend(p.detach().clone() for p in model.parameters()),
    )
    saved = headway.load(tmp_path / "run")
    assert all(torch.equal(p, q) for p, q in zip(result.model.parameters(), saved.parameters(), strict=True))
    documents = list(headway.data.read_split(load_recipe(tmp_path / "run").data, "valid"))
    assert headway.evaluate(saved, documents).bits_per_byte == pytest.approx(result.score.bits_per_byte)
    last_model = headway.train(make(tmp_path, train={**train, "ema": 0.0}), out=tmp_path / "plain").model
    for start, average, last in zip(initial, saved.parameters(), last_model.parameters(), strict=True):
        assert (average - start).norm() < (last - start).norm()  # the average trails behind


def test_the_log_starts_with_the_run_metadata(stopped):
    start = Run(stopped / "stopped").read_log()[0]
    assert {"headway", "torch", "python", "git", "device", "dtype", "seed", "data", "ranks", "threads"} <= set(start)
    assert (stopped / "stopped" / "recipe.toml").is_file()


def test_checksums_cover_subfolders(tmp_path):
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "one").write_bytes(b"1234")
    write_checksums(tmp_path)
    (tmp_path / "shards" / "one").write_bytes(b"1235")
    with pytest.raises(CheckpointError, match="shards/one"):
        verify_checksums(tmp_path)
    assert os.listdir(tmp_path / "shards") == ["one"]

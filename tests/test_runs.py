"""A run's folder under concurrency: one process creates and trains a run, and readers always get a whole checkpoint."""

import multiprocessing
import os
import threading

import pytest
import torch

import headway
from headway.config import GPTConfig
from headway.errors import CheckpointError
from headway.files import file_lock
from headway.runs import Run, best_checkpoint, read_progress
from headway.training.checkpoint import write_checkpoint

RECIPE = "[train]\nsteps = 10\n"


def create_run(path, barrier, results, name):
    barrier.wait()
    try:
        with Run.create(path, f"# {name}\n{RECIPE}") as run:
            run.log(event="start", process=name)
            barrier.wait()  # hold the lock until every other process has failed
            results.put((name, "created"))
    except CheckpointError as error:
        results.put((name, str(error)))
        barrier.wait()


def test_one_of_several_processes_creates_a_run(tmp_path):
    """The others have the clear error, and what the winner wrote is untouched."""
    context = multiprocessing.get_context("fork")
    for attempt in range(2):
        path, barrier, results = tmp_path / f"run-{attempt}", context.Barrier(3), context.Queue()
        processes = [context.Process(target=create_run, args=(path, barrier, results, name)) for name in "abc"]
        for process in processes:
            process.start()
        answers = dict(results.get(timeout=30) for _ in processes)
        for process in processes:
            process.join(timeout=30)
        (winner,) = [name for name, answer in answers.items() if answer == "created"]
        losses = [answer for name, answer in answers.items() if name != winner]
        assert all("is being trained by another process" in loss or "already exists" in loss for loss in losses)
        assert Run(path).recipe_file.read_text() == f"# {winner}\n{RECIPE}"
        assert [record["process"] for record in Run(path).read_log()] == [winner]


def test_a_lock_held_while_creating_is_respected(tmp_path):
    """Nothing is written before the lock is held."""
    (tmp_path / "run").mkdir()
    with (
        file_lock(tmp_path / "run" / ".lock"),
        pytest.raises(CheckpointError, match="is being trained by another process"),
        Run.create(tmp_path / "run", RECIPE),
    ):
        pass
    assert os.listdir(tmp_path / "run") == [".lock"]
    with Run.create(tmp_path / "run", RECIPE) as run:
        assert run.is_locked()
    with pytest.raises(CheckpointError, match="already exists"), Run.create(tmp_path / "run", "other"):
        pass


def test_asking_whether_a_run_is_locked_never_keeps_it_from_training(tmp_path):
    """`headway runs` holds the lock for a moment to find out."""
    with Run.create(tmp_path / "run", RECIPE) as run:
        pass
    stop = threading.Event()

    def ask():
        while not stop.is_set():
            run.is_locked()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        for _ in range(20):
            with run.lock():
                pass
    finally:
        stop.set()
        thread.join()


# ── readers ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def model():
    return headway.create(GPTConfig(vocab_size=16, context=8, n_layers=2, n_heads=1, d_model=16))


def save(model, folder, value, step, score):
    """A checkpoint all of whose weights have one value, which training.json repeats."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    write_checkpoint(model, folder, {"step": step, "score": {"selection_loss": score}}, {})


@pytest.mark.parametrize("how", ["next step", "better step", "same step"])
def test_load_gives_a_whole_checkpoint_while_a_run_is_trained(how, model, tmp_path):
    """With save_every=1 and keep_checkpoints=1, as fast as checkpoints can be written."""
    stop, failures = threading.Event(), []

    with Run.create(tmp_path / "run", RECIPE) as run:
        save(model, run.checkpoint_dir(0), 0, 0, 1.0)

        def train():
            step = 0
            while not stop.is_set():
                step += 1
                folder = run.checkpoint_dir(0 if how == "same step" else step)
                save(model, folder, step, step, 1.0 / step if how == "better step" else 1.0)
                run.prune(1, step if how == "better step" else None, 1)

        thread = threading.Thread(target=train)
        thread.start()
        values = []
        try:
            for _ in range(20):
                loaded = headway.load(run.path)
                found = {x.item() for p in loaded.parameters() for x in (p.min(), p.max())}
                values.append(found.pop())
                failures += [found] if found else []
        finally:
            stop.set()
            thread.join()
    assert failures == []
    assert values == sorted(values)  # never an older one than before
    assert len(set(values)) > 2


def test_a_checkpoint_that_is_read_outlives_its_successors(model, tmp_path):
    """A load that takes longer than the run needs for the next checkpoint."""
    with Run.create(tmp_path / "run", RECIPE) as run:
        save(model, run.checkpoint_dir(0), 7, 0, 1.0)

        def read(folder):
            for step in (1, 2):
                save(model, run.checkpoint_dir(step), step, step, 1.0)
                run.prune(1, None, 1)
            assert run.checkpoint_steps() == [0, 2]
            return folder

        assert headway.files.read_directory(lambda: run.checkpoint_dir(0), read) == run.checkpoint_dir(0)
        run.prune(1, None, 1)
        assert run.checkpoint_steps() == [2]


def test_a_run_without_checkpoints_is_said_to_have_none(tmp_path):
    with Run.create(tmp_path / "run", RECIPE) as run:
        run.checkpoints.mkdir()
    with pytest.raises(CheckpointError, match=r"is not a model: it has neither config\.json nor checkpoints/step-N"):
        headway.load(run.path)


# ── selection ─────────────────────────────────────────────────────────────────────────────────────────────────────


def progress(loss, evaluation=None):
    return {"score": {"selection_loss": loss}, **({"evaluation": evaluation} if evaluation else {})}


@pytest.mark.parametrize(
    ("best", "checkpoints"),
    [
        ("step-2", {"step-1": progress(2.0), "step-2": progress(1.0), "step-10": progress(3.0)}),
        ("step-10", {"step-2": progress(1.0), "step-10": progress(1.0)}),
        ("step-10", {"step-2": {}, "step-10": {}}),
        ("step-10", {"step-2": progress(1.0, "a"), "step-10": progress(3.0, "b")}),
        ("step-10", {"step-2": progress(1.0, "a"), "step-10": {"evaluation": "b"}, "averaged": progress(0.5, "a")}),
        ("averaged", {"step-10": progress(3.0, "b"), "averaged": progress(2.0, "b")}),
        ("step-10", {"step-10": progress(2.0), "averaged": progress(2.0)}),
        ("step-1", {"step-1": progress(2.0), "step-2": progress(float("nan")), "step-3": progress("1")}),
        ("step-1", {"step-1": progress(2.0), "step-2": progress(-(10**400)), "step-3": {"score": [1]}}),
    ],
)
def test_the_best_checkpoint_has_the_lowest_score_of_the_last_evaluation(best, checkpoints, tmp_path):
    assert best_checkpoint({tmp_path / name: table for name, table in checkpoints.items()}) == tmp_path / best


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"[1]", b"\xff", b'{"step": NaN}', b" " * 2_000_000])
def test_damaged_progress_is_no_progress(content, tmp_path):
    (tmp_path / "training.json").write_bytes(content)
    assert read_progress(tmp_path) == {}


def test_only_folders_with_the_name_of_a_step_are_checkpoints(tmp_path):
    run = Run(tmp_path)
    for name in ("step-0", "step-12", "step-007", "step-٣", "step-1.damaged", "step--1", "step-", ".step-4.x.removed"):
        (run.checkpoints / name).mkdir(parents=True)
    (run.checkpoints / "step-5").write_text("a file")
    assert run.checkpoint_steps() == [0, 12]


def test_a_log_that_is_too_large_is_refused_before_it_is_read(tmp_path):
    with open(tmp_path / "log.jsonl", "wb") as file:
        file.truncate(10**12)
    with pytest.raises(CheckpointError, match=r"has 1,000,000,000,000 bytes, and at most .* are read"):
        Run(tmp_path).read_log()
    assert Run(tmp_path).read_log_ends() == []


def test_a_log_that_is_a_pipe_or_a_link_to_itself_is_refused(tmp_path):
    for name in ("pipe", "loop"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "pipe" / "log.jsonl")
    (tmp_path / "loop" / "log.jsonl").symlink_to("log.jsonl")
    for name, message in (("pipe", "is a pipe"), ("loop", "Too many levels of symbolic links")):
        for read in (Run(tmp_path / name).read_log, Run(tmp_path / name).read_log_ends):
            with pytest.raises(CheckpointError, match=message):
                read()

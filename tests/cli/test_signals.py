"""Signals end every command in time, with one line at most, and leave nothing half-written."""

import os
import signal
import subprocess
import sys
import time

import pytest

from headway.files import verify_checksums
from headway.runs import Run
from tests.training.recipes import make

# A command that does what `JOB` says, with a temporary file open; "busy" tells that it has begun.
COMMAND = """
import hashlib, sys, time
from pathlib import Path
import headway.cli
from headway.temporary_files import temporary_path

def job(**options):
    with temporary_path(Path("left.tmp")) as path:
        path.write_text("half")
        print("busy", flush=True)
        JOB

headway.cli.app = job
sys.argv = ["headway"]
headway.cli.main()
"""
JOBS = {
    "Python": "while True: time.sleep(0.01)",
    "native code": "hashlib.pbkdf2_hmac('sha256', b'a', b'b', 10**9)",  # releases the interpreter lock
    "native code that holds the lock": "sum(range(10**12))",
}
SECONDS = 10.0  # the promise is two; a busy machine may take longer


@pytest.fixture
def start(tmp_path):
    """Starts a command that does a job; one that does not end is killed after the test."""
    processes = []

    def start_job(job: str, **options) -> subprocess.Popen:
        code = COMMAND.replace("JOB", job)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, **pipes, **options))
        assert processes[-1].stdout.readline() == "busy\n"
        return processes[-1]

    yield start_job
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("job", JOBS)
def test_a_signal_ends_a_command_whatever_it_is_doing(start, job, number, tmp_path):
    process = start(JOBS[job])
    time.sleep(0.1)
    process.send_signal(number)
    _, err = process.communicate(timeout=SECONDS)
    killed = [-signal.SIGKILL] if "native" in job else []  # where Python cannot run there is no exit code of its own
    assert process.returncode in [128 + number, *killed]
    assert err.strip() == ("interrupted" if process.returncode == 130 else "")
    assert not (tmp_path / "left.tmp").exists()


def test_a_second_sigterm_does_not_cut_the_cleaning_up(start, tmp_path):
    clean_up = "finally: print('cleaning', flush=True); time.sleep(0.3); Path('cleaned').touch()"
    process = start(f"try: time.sleep(60)\n        {clean_up}")
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "cleaning\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 128 + signal.SIGTERM
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cleaned"]


def test_an_exception_that_a_finalizer_swallows_comes_again(start):
    swallow = "class Swallow:\n            def __del__(self): time.sleep(1)\n        Swallow(); time.sleep(60)"
    process = start(swallow)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (128 + signal.SIGTERM, "")


def test_under_nohup_sighup_stays_ignored(start, tmp_path):
    process = start(
        "time.sleep(0.5); Path('finished').touch()",
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    process.send_signal(signal.SIGHUP)
    assert process.wait(SECONDS) == 0
    assert (tmp_path / "finished").exists()


def test_the_watching_process_ends_with_a_command_that_is_killed(start):
    process = start(JOBS["Python"])
    process.kill()
    _, _ = process.communicate(timeout=SECONDS)  # returns once nobody holds the pipes any more
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("module", ["typer", "numpy"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_an_import_ends_the_command(module, number):
    """PyTorch catches what the import of NumPy raises, and fails later: the signal must not be an exception there."""
    code = f"""
import os, sys
class Signal:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), {int(number)})
sys.meta_path.insert(0, Signal())
sys.argv = ["headway", "data", "dates"]
from headway.__main__ import main
main()
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    default = -number if (module, number) == ("typer", signal.SIGTERM) else 128 + number  # before any code of ours
    assert (process.returncode, process.stderr) == (default, "interrupted\n" * (number == signal.SIGINT))


# ── training ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def training(tmp_path):
    """A run in a process of its own, in the middle of its steps; returns the process and the run."""
    file, run = tmp_path / "recipe.toml", Run(tmp_path / "run")
    file.write_text(make(tmp_path, train={"steps": 10**6, "log_every": 1, "save_every": 0}).to_toml())
    command = [sys.executable, "-m", "headway", "train", str(file), "--out", str(run.path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not any("loss" in record for record in run.read_log()) and time.monotonic() < deadline:
        time.sleep(0.05)
    yield process, run
    process.kill()
    process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_training_after_its_step_and_checkpoint(training, number):
    process, run = training
    process.send_signal(number)
    process.send_signal(number)  # a terminal that closes sends two: nothing is lost
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopping    after this step and its checkpoint; Ctrl-C again stops at once" in err
    assert f"To resume: headway train {run.path} --resume" in err
    assert run.checkpoint_steps()[-1] == run.read_log()[-1]["step"] > 0
    verify_checksums(run.checkpoint_dir(run.checkpoint_steps()[-1]))


def test_a_second_ctrl_c_says_what_is_lost(tmp_path):
    """The step under way lasts a minute: the second Ctrl-C does not wait for it."""
    code = f"""
import hashlib, sys
import headway.training.trainer as trainer
def step(self, batch, original=trainer.Trainer.train_step):
    if self.state.progress.step == 3:
        print("busy", flush=True)
        hashlib.pbkdf2_hmac('sha256', b'a', b'b', 10**9)
    return original(self, batch)
trainer.Trainer.train_step = step
sys.argv = ["headway", "train", {str(tmp_path / "recipe.toml")!r}, "--out", {str(tmp_path / "run")!r}]
from headway.cli import main
main()
"""
    (tmp_path / "recipe.toml").write_text(make(tmp_path, train={"steps": 9, "save_every": 2}).to_toml())
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", code], **pipes)
    assert process.stdout.readline() == "busy\n"
    process.send_signal(signal.SIGINT)
    time.sleep(1.5)
    assert process.poll() is None  # the first one waits for the step
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    run = tmp_path / "run"
    lost = "stopped at once: the steps after the checkpoint of step 2 are lost"
    assert f"{lost}; to resume: headway train {run} --resume" in err
    assert "Traceback" not in err


def test_sigterm_while_an_ngram_is_fitted_leaves_no_run(tmp_path):
    (tmp_path / "my.txt").write_text("the cat sat on the mat. " * 200)
    code = """
import sys, time
from headway.models import NGram
def fit(*args): print("busy", flush=True); time.sleep(60)
NGram.fit_texts = fit
sys.argv = "headway train ngram --set data.path=my.txt --out run".split()
from headway.cli import main
main()
"""
    environment = {**os.environ, "HEADWAY_CACHE": str(tmp_path / "cache")}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"busy\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 128 + signal.SIGTERM
    assert not (tmp_path / "run").exists()

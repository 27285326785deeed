"""Stop requests: what they end, and that a run stopped anywhere resumes to the same end."""

import os
import signal

import pytest

import headway
from headway.runs import Run
from headway.training.resume_check import differences
from headway.training.signals import STOP_MESSAGE, stop_request
from headway.training.trainer import Trainer
from tests.training.recipes import TINY, make

TRAIN = {"steps": 8, "save_every": 2, "log_every": 1, "average_checkpoints": 2, "threads": 1}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stops")
    recipe = make(folder, train=TRAIN, model=TINY, eval={"every_steps": 3, "batch_size": 1})
    headway.train(recipe, out=folder / "run", quiet=True)
    return recipe, folder / "run"


@pytest.mark.parametrize("step", [3, 8])
@pytest.mark.parametrize("n_batches", [1, 2])
def test_a_signal_ends_a_validation_after_its_batch(undisturbed, tmp_path, monkeypatch, step, n_batches):
    """Step 3 is validated on the way; after step 8 come the last validation and that of the averaged weights."""
    recipe, reference = undisturbed
    n_scored = 0

    def score(self, batch, original=Trainer._validation_loss):
        nonlocal n_scored
        loss = original(self, batch)
        if self.state.progress.step == step:
            n_scored += 1
            if n_scored == n_batches:
                os.kill(os.getpid(), signal.SIGHUP)
        return loss

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_validation_loss", score)
        result = headway.train(recipe, out=tmp_path / "run", quiet=True)
    assert (result.interrupted, result.steps, n_scored) == (True, step, n_batches)
    assert not result.score
    headway.train(recipe, out=tmp_path / "run", resume=True, quiet=True)
    assert differences(Run(reference), Run(tmp_path / "run")) == []


def test_a_signal_while_averaging_is_evaluated_resumes_to_the_same_average(undisturbed, tmp_path, monkeypatch):
    recipe, reference = undisturbed

    def score(self, batch, original=Trainer._validation_loss):
        if self.state.progress.score and self.state.progress.step == 8:  # of the last step: now comes the average
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_validation_loss", score)
        result = headway.train(recipe, out=tmp_path / "run", quiet=True)
    assert result.interrupted
    assert not (tmp_path / "run" / "averaged").exists()
    headway.train(recipe, out=tmp_path / "run", resume=True, quiet=True)
    files = [folder / "averaged" / "model.safetensors" for folder in (reference, tmp_path / "run")]
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("numbers", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGHUP, signal.SIGTERM)])
def test_only_ctrl_c_stops_at_once(numbers):
    """A service manager sends SIGTERM, perhaps twice, and a terminal that closes SIGHUP: the step is still saved."""
    messages = []
    with stop_request(messages.append) as stop:
        for number in numbers:
            os.kill(os.getpid(), number)
        assert stop.is_set()
    assert messages == [STOP_MESSAGE]


def test_a_second_ctrl_c_raises_what_is_lost(monkeypatch):
    monkeypatch.setattr("headway.training.signals.SECONDS_BETWEEN_INTERRUPTS", -1.0)
    with stop_request(describe_loss=lambda: "step 7 is lost"):
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt, match="step 7 is lost"):
            os.kill(os.getpid(), signal.SIGINT)


def test_two_ctrl_c_in_one_moment_are_one():
    """torchrun passes the terminal's Ctrl-C on to its ranks, which have it already."""
    with stop_request() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.is_set()


def test_signals_that_are_ignored_stay_so():
    handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_request() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.is_set()
    finally:
        signal.signal(signal.SIGHUP, handler)

"""External loggers, throughput, and what the device can do."""

import sys
import types

import pytest
import torch

import headway
from headway.config import TrainConfig
from headway.errors import ConfigError
from headway.training import loggers, throughput
from headway.training.checkpoint import TrainerProgress
from headway.training.progress import ProgressMeter
from headway.training.throughput import ThroughputMeter, device_peak, free_memory, peak_memory
from tests.training.recipes import make


def test_tensorboard_gets_the_metrics_of_the_log(tmp_path):
    headway.train(make(tmp_path, train={"steps": 20, "loggers": ["tensorboard"]}), out=tmp_path / "run")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert {"loss", "lr", "grad_norm", "bits_per_byte"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("loss")] == [10, 20]


def test_wandb_gets_the_metrics_of_the_log(tmp_path, monkeypatch):
    calls = []
    run = types.SimpleNamespace(
        log=lambda metrics, step: calls.append((step, metrics)), finish=lambda: calls.append("finish")
    )
    wandb = types.ModuleType("wandb")
    wandb.Settings = dict
    wandb.init = lambda **options: calls.append((options["name"], options["settings"])) or run
    wandb.__spec__ = types.SimpleNamespace(name="wandb")
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    headway.train(make(tmp_path, train={"steps": 10, "loggers": ["wandb"]}), out=tmp_path / "mine")
    assert calls[0] == ("mine", {"disable_git": True, "save_code": False})  # git would run configured programs
    assert calls[-1] == "finish"
    assert calls[1][0] == 10
    assert "loss" in calls[1][1]


def test_a_logger_that_is_not_installed_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(loggers, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install .*\[tracking\]'"):
        headway.train(make(tmp_path, train={"loggers": ["wandb"]}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_throughput_is_that_of_the_last_steps(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(throughput.time, "monotonic", lambda: clock[0])
    meter = ThroughputMeter(0)
    clock[0] += 10
    assert meter.mark(1000) == pytest.approx(100)
    for _ in range(60):
        clock[0] += 1
        tokens_per_second = meter.mark(meter.marks[-1][1] + 500)
    assert tokens_per_second == pytest.approx(500)


def test_mfu_never_exceeds_one(monkeypatch):
    """A peak that was measured while the machine was busy is too low, and rises with the rate of training."""
    clock = [0.0]
    monkeypatch.setattr(throughput.time, "monotonic", lambda: clock[0])
    meter = ProgressMeter(
        TrainConfig(steps=4),
        torch.device("cpu"),
        flops_per_token=1e6,
        peak_flops=1e8,
        peak_source="measured",
        n_ranks=2,
        bytes_per_target=None,
    )
    utilisation = []
    for step, seconds in enumerate((10.0, 1.0, 0.5, 10.0), 1):
        clock[0] += seconds
        meter.reset_throughput(TrainerProgress(n_tokens=1000 * (step - 1)))
        clock[0] += seconds
        progress = TrainerProgress(step=step, n_tokens=1000 * step)
        utilisation.append(meter.update(progress, loss=1.0, lr=1.0, grad_norm=1.0).mfu)
    assert utilisation == pytest.approx([0.5, 1.0, 1.0, 0.05])


def test_the_peak_of_the_cpu_is_measured():
    peak, source = device_peak(torch.device("cpu"), 4)
    assert peak > 1e9
    assert source == "measured"
    assert peak_memory(torch.device("cpu")) > 2**20
    assert free_memory(torch.device("cpu")) > 2**20

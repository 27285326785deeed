"""Where the numbers of a run also go, and what a device can do."""

import sys
import types

import pytest
import torch

import headway
from headway.errors import ConfigError
from headway.training import loggers
from headway.training import throughput as monitor
from headway.training.throughput import ThroughputMeter, device_peak, free_memory, peak_memory
from tests.training.recipes import make


def test_tensorboard_gets_the_numbers_of_the_log(tmp_path):
    headway.train(make(tmp_path, train={"steps": 20, "track": ["tensorboard"]}), out=tmp_path / "run")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert {"loss", "lr", "grad_norm", "bits_per_byte"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("loss")] == [10, 20]


def test_wandb_gets_the_same(tmp_path, monkeypatch):
    seen = []
    run = types.SimpleNamespace(
        log=lambda numbers, step: seen.append((step, numbers)), finish=lambda: seen.append("end")
    )
    fake = types.ModuleType("wandb")
    fake.init = lambda **options: seen.append(options["name"]) or run
    fake.__spec__ = types.SimpleNamespace(name="wandb")
    monkeypatch.setitem(sys.modules, "wandb", fake)
    headway.train(make(tmp_path, train={"steps": 10, "track": ["wandb"]}), out=tmp_path / "mine")
    assert seen[0] == "mine"
    assert seen[-1] == "end"
    assert seen[1][0] == 10
    assert "loss" in seen[1][1]


def test_a_tracker_that_is_not_installed_is_said_before_anything_is_begun(tmp_path, monkeypatch):
    monkeypatch.setattr(loggers, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'headway\[tracking\]'"):
        headway.train(make(tmp_path, train={"track": ["wandb"]}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_speed_is_of_late(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(monitor.time, "monotonic", lambda: now[0])
    speed = ThroughputMeter(0)
    now[0] += 10
    assert speed.mark(1000) == pytest.approx(100)
    for _ in range(60):
        now[0] += 1
        last = speed.mark(speed.marks[-1][1] + 500)
    assert last == pytest.approx(500)


def test_the_cpu_is_measured():
    peak, source = device_peak(torch.device("cpu"), 4)
    assert peak > 1e9
    assert source == "measured"
    assert peak_memory(torch.device("cpu")) > 2**20
    assert free_memory(torch.device("cpu")) > 2**20

"""How many CPU threads a run takes: as many as other processes leave idle cores, and the same again when it resumes."""

from types import SimpleNamespace

import pytest
import torch

import headway
from headway.config import load_recipe
from headway.runs import Run
from headway.training import threads
from headway.training.threads import BusyWatch, CPUMeter, cpu_threads, logged_threads
from tests.training.recipes import make, train_until_power_cut

CPU = torch.device("cpu")
TINY = {"n_layers": 1, "d_model": 32}


@pytest.fixture
def four_cores(monkeypatch, tmp_path):
    """A machine with four cores and no quota; PyTorch is set to use all of them."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    monkeypatch.setattr(threads, "_usable_cpus", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(threads, "CGROUP", tmp_path)
    monkeypatch.setattr(threads, "SAMPLE_SECONDS", 0.0)
    for name in ("OMP_NUM_THREADS", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def others_use(monkeypatch):
    """Sets how many cores other processes use, measurement by measurement; the last number stays."""

    def set_use(*numbers):
        remaining = list(numbers)
        read = lambda meter: remaining.pop(0) if len(remaining) > 1 else remaining[0]  # noqa: E731
        monkeypatch.setattr(CPUMeter, "cores_in_use", read)

    return set_use


def chosen(setting="auto", **options):
    messages = []
    with cpu_threads(setting, CPU, on_message=messages.append, **options) as number:
        assert torch.get_num_threads() == number
    return number, messages


@pytest.mark.parametrize(("in_use", "expected"), [(0, 4), (0.4, 4), (1.0, 3), (2.6, 1), (4, 1), (9, 1)])
@pytest.mark.usefixtures("four_cores")
def test_every_idle_core_gets_a_thread(others_use, in_use, expected):
    others_use(in_use)
    number, messages = chosen()
    assert number == expected
    assert torch.get_num_threads() == 4  # as before
    plural = "s" if expected > 1 else ""
    note = f"note        other processes use {in_use:.1f} of 4 CPU cores: using {expected} thread{plural}"
    assert messages == ([] if expected == 4 else [note])


@pytest.mark.usefixtures("four_cores")
def test_a_short_burst_of_other_work_does_not_count(others_use):
    others_use(3.0, 2.0, 0.1)
    assert chosen() == (4, [])


@pytest.mark.usefixtures("four_cores")
def test_a_setting_wins_then_the_environment_then_the_log(others_use, monkeypatch):
    others_use(4.0)
    assert chosen(2, stored=3) == (2, [])
    assert chosen(stored=3) == (3, [])
    assert chosen(stored=64) == (4, [])  # the run comes from a larger machine
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert chosen(stored=3) == (4, [])
    assert chosen(2) == (2, [])


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
    ],
)
@pytest.mark.usefixtures("four_cores")
def test_the_quota_of_a_container_is_kept(others_use, tmp_path, files, expected):
    others_use(0.0)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert chosen() == (expected, [])


@pytest.mark.usefixtures("four_cores")
def test_the_ranks_of_a_machine_share_its_cores(others_use, monkeypatch):
    others_use(3.0)  # each rank sees the others at work
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert chosen() == (2, [])
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert chosen() == (1, [])


def test_only_other_processes_count(monkeypatch):
    """In one second two CPUs were idle for half a second together, and this process computed for one."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(threads, "_usable_cpus", lambda: [0, 2])
    monkeypatch.setattr(threads.time, "monotonic", lambda: clock.now)
    idle = [0.0, 50.0, 0.0, 50.0]
    monkeypatch.setattr(
        threads.psutil, "cpu_times", lambda percpu: [SimpleNamespace(idle=i / 2, iowait=i / 2) for i in idle]
    )
    meter = CPUMeter()
    own = SimpleNamespace(user=10.0, system=1.0)
    meter.process = SimpleNamespace(cpu_times=lambda: own)
    meter.last = meter._read()
    clock.now += 1.0
    idle[:] = [0.2, 99.0, 0.3, 99.0]
    own.user, own.system = 10.7, 1.3
    assert meter.cores_in_use() == pytest.approx(0.5)


def test_the_cpu_time_of_this_machine_can_be_read():
    meter = CPUMeter()
    sum(range(10**5))
    assert 0 <= meter.cores_in_use() <= len(meter.cpus)


@pytest.fixture
def watch(four_cores, others_use, tmp_path, monkeypatch):
    """Feeds a BusyWatch pairs of cores in use and tokens per second; returns its messages."""
    monkeypatch.setattr(threads, "SECONDS_BETWEEN_CHECKS", -1.0)

    def feed(*checks):
        messages = []
        others_use(*(in_use for in_use, _ in checks))
        watch = BusyWatch(CPU, tmp_path / "run", messages.append)
        for _, tokens_per_second in checks:
            watch.check(tokens_per_second)
        return messages

    return feed


def test_a_machine_that_becomes_busy_is_noted_once(watch, tmp_path):
    (message,) = watch((0, 900), (0.2, 1000), (2, 600), (2, 400), (2, 400), (2, 400))
    assert "other processes use 2.0 of 4 CPU cores, which slows 4 threads down" in message
    assert message.endswith(f"headway train {tmp_path / 'run'} --resume --set train.threads=2")


def test_a_machine_that_was_busy_from_the_start_is_noted(watch):
    assert len(watch((2, 400), (2, 400), (2, 400))) == 1


def test_bursts_and_processes_that_do_not_slow_the_run_are_not_noted(watch):
    assert watch((0, 1000), (3, 500), (0, 1000), (3, 500), (0, 1000)) == []
    assert watch((0, 1000), (2, 980), (2, 970), (2, 990)) == []


def test_a_run_logs_its_threads_and_resumes_with_them(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "_usable_cpus", lambda: [0, 1, 2])
    recipe = make(tmp_path, train={"steps": 6, "save_every": 2, "threads": 2}, model=TINY)
    train_until_power_cut(recipe, tmp_path / "run", 3)
    headway.train(load_recipe(tmp_path / "run", ["train.threads=auto"]), out=tmp_path / "run", resume=True)
    events = [r for r in Run(tmp_path / "run").read_log() if r.get("event") in ("start", "resume")]
    assert [record["threads"] for record in events] == [2, 2]
    assert torch.get_num_threads() == 1  # that of the tests
    headway.train(
        load_recipe(tmp_path / "run", ["train.steps=8", "train.threads=3"]), out=tmp_path / "run", resume=True
    )
    assert logged_threads(Run(tmp_path / "run").read_log()) == 3


def test_the_threads_of_a_run_on_a_gpu_are_not_those_of_a_cpu():
    assert logged_threads([{"event": "start", "device": "NVIDIA H200", "threads": 64}]) is None
    assert logged_threads([]) is None

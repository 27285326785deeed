"""The harness reports planted faults of every kind, and nothing else."""

import os
import random
import time

import pytest

from headway.errors import DataError
from tests.fuzz.harness import Area, run_case, watch
from tests.fuzz.mutations import mutate_bytes, mutate_json, mutate_json_text

HERE = __name__


class Panic(BaseException):
    """As a panic in Rust arrives: not an Exception."""


class Planted(Area):
    name, full_count, ci_count, max_seconds = "planted", 8, 8, 0.5

    def case(self, rng: random.Random) -> str:
        match Planted.number:
            case 0:
                return "loaded"
            case 1:
                raise DataError("the file is empty: add a line")
            case 2:
                raise DataError("")
            case 3:
                raise KeyError("key")
            case 4:
                raise Panic("index out of bounds")
            case 5:
                self.fail("the results differ")
            case 6:
                time.sleep(0.6)
            case 7:
                raise SystemExit(3)
        return "late"


class SlowOnce(Area):
    name, full_count, ci_count, max_seconds = "slow once", 1, 1, 0.2
    n_calls = 0

    def case(self, rng: random.Random) -> str:
        self.n_calls += 1
        time.sleep(0.3 if self.n_calls == 1 else 0)
        return "done"


class Hanging(Area):
    name, full_count, ci_count, max_seconds = "hanging", 2, 2, 0.3

    def case(self, rng: random.Random) -> str:
        marker = self.folder.parent / "hung once"
        if not marker.exists():
            marker.touch()
            time.sleep(60)
        return "done"


class Dying(Area):
    name, full_count, ci_count = "dying", 3, 3

    def case(self, rng: random.Random) -> str:
        os._exit(11)


class Large(Area):
    name, full_count, ci_count = "large", 1, 1

    def case(self, rng: random.Random) -> str:
        block = bytearray(os.urandom(1 << 20) * 1100)
        time.sleep(1)
        return f"{len(block)} bytes"


def test_a_case_that_is_slow_once_is_no_finding(tmp_path):
    area = SlowOnce(tmp_path)
    result = run_case(area, 1, 0)
    assert (result.outcome, result.finding, area.n_calls) == ("done", "", 2)
    assert result.seconds < 0.2


@pytest.mark.parametrize(
    ("number", "outcome", "finding"),
    [
        (0, "loaded", ""),
        (1, "refused", ""),
        (2, "finding", "DataError without a message"),
        (3, "finding", "KeyError: 'key'"),
        (4, "finding", "Panic: index out of bounds"),
        (5, "finding", "AssertionError: the results differ"),
        (6, "finding", "took 0.6 s, twice, and 0.5 are allowed"),
        (7, "finding", "SystemExit: 3"),
    ],
)
def test_a_case_is_an_outcome_or_a_finding(tmp_path, monkeypatch, number, outcome, finding):
    monkeypatch.setattr(Planted, "number", number, raising=False)
    result = run_case(Planted(tmp_path), seed=1, case=0)
    assert (result.outcome, result.finding) == (outcome, finding)


def test_a_worker_that_hangs_is_ended_and_the_next_one_continues(tmp_path):
    report = watch(f"{HERE}:Hanging", range(2), seed=1, folder=tmp_path)
    assert [(result.case, result.finding) for result in report.findings] == [(0, "hangs: no end after 0.9 s")]
    assert report.outcomes["done"] == 1


def test_a_worker_that_dies_and_one_that_takes_a_gigabyte_are_findings(tmp_path):
    report = watch(f"{HERE}:Dying", range(2), seed=1, folder=tmp_path)
    assert [result.finding for result in report.findings] == ["the process ended with code 11"] * 2
    report = watch(f"{HERE}:Large", range(1), seed=1, folder=tmp_path)
    assert len(report.findings) == 1
    assert "GB resident" in report.findings[0].finding


def test_the_same_seed_makes_the_same_case():
    document = {"a": [1, 2, {"b": "text"}], "c": 1.5, "d": True}
    for seed in range(200):
        one, two = random.Random(seed), random.Random(seed)
        assert mutate_bytes(b"some bytes" * 9, one) == mutate_bytes(b"some bytes" * 9, two)
        assert mutate_json_text(document, one) == mutate_json_text(document, two)
        assert repr(mutate_json(document, one)) == repr(mutate_json(document, two))
    assert document == {"a": [1, 2, {"b": "text"}], "c": 1.5, "d": True}

"""Some cases of every fuzzer, in this process: half a minute in all. `make fuzz` runs them for an hour."""

from pathlib import Path

import pytest

from tests.fuzz import AREAS
from tests.fuzz.harness import load_area, run_cases


@pytest.mark.parametrize("name", AREAS)
def test_no_case_is_a_finding(name, tmp_path, monkeypatch):
    monkeypatch.chdir(Path.cwd())  # some areas change it
    area_class = load_area(AREAS[name])
    assert area_class.name == name
    area, results = area_class(tmp_path), []
    run_cases(area, range(area.ci_count), 0, lambda case: None, results.append)
    assert not [f"case {r.case}: {r.finding}\n{r.traceback}" for r in results if r.finding]
    assert len(results) == area.ci_count

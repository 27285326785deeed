"""Size before memory: what is free, in a container too, and the refusal."""

import pytest

from headway import memory
from headway.errors import ConfigError, InputError


def test_what_does_not_fit_is_refused_with_both_sizes(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 3 * 10**9)
    memory.check_fits(3 * 10**9, "A GPT")
    with pytest.raises(ConfigError, match=r"^A GPT takes 3\.1 GB, and 3\.0 GB are free: choose smaller sizes$"):
        memory.check_fits(3.1e9, "A GPT")
    with pytest.raises(InputError, match=r"free: read less$"):
        memory.check_fits(10**18, "The text", advice="read less", error=InputError)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("1000000", 1_000_000 - 400_000 + 50_000), ("max", None), ("9" * 18, None)],
)
def test_the_limit_of_a_container_counts(tmp_path, monkeypatch, limit, expected):
    """The cache of files is counted as used there, and given back when needed."""
    import psutil

    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text("400000\n")
    (tmp_path / "memory.stat").write_text("anon 300000\ninactive_file 50000\n")
    available = memory.available_bytes()
    if expected is None:
        expected = psutil.virtual_memory().available
    assert available == pytest.approx(expected, rel=0.2)

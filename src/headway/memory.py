"""Memory checks: refuse an allocation that exceeds the free memory, before it is made.

The system would grant it, and kill this process or another one when the memory is written to.
"""

from pathlib import Path

from headway.errors import ConfigError, HeadwayError

CGROUP = Path("/sys/fs/cgroup")  # of a container: its limit is lower than the memory of the machine


def available_bytes() -> int:
    """Memory this process can still take: what the machine has free, or what its container may use if that is less."""
    import psutil

    available = int(psutil.virtual_memory().available)
    try:
        limit = int((CGROUP / "memory.max").read_text(encoding="ascii"))
        used = int((CGROUP / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):  # not in a container, or "max": no limit
        return available
    # The cache of files counts as used, and is given back when needed.
    return min(available, limit - used + _reclaimable_bytes())


def _reclaimable_bytes() -> int:
    try:
        lines = (CGROUP / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    sizes = dict(line.split() for line in lines)
    return sum(int(sizes.get(name, 0)) for name in ("inactive_file", "active_file", "slab_reclaimable"))


def check_fits(
    n_bytes: float,
    subject: str,
    *,
    advice: str = "choose smaller sizes",
    error: type[HeadwayError] = ConfigError,
    available: int | None = None,
) -> None:
    """Refuse to allocate more than is available: in the memory of this process, or `available` bytes of a device.
    The message starts with `subject`:

    >>> check_fits(4e15, "A GPT of 1e15 parameters")
    Traceback (most recent call last):
    headway.errors.ConfigError: A GPT of 1e15 parameters takes 4,000,000.0 GB, and … GB are free: choose smaller sizes
    """
    available = available_bytes() if available is None else available
    if n_bytes > available:
        raise error(f"{subject} takes {n_bytes / 1e9:,.1f} GB, and {available / 1e9:,.1f} GB are free: {advice}")

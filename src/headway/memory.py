"""Size before memory: compare what is about to be allocated with the memory that is free, and refuse in time.

Without it the system grants the memory, and kills the process, or another one, when it is written to.
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
    return min(available, limit - used + _inactive_file_bytes())


def _inactive_file_bytes() -> int:
    try:
        lines = (CGROUP / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)


def check_fits(
    n_bytes: float,
    what: str,
    *,
    advice: str = "choose smaller sizes",
    error: type[HeadwayError] = ConfigError,
    available: int | None = None,
) -> None:
    """Refuse to allocate more than is available: in the memory of this process, or `available` bytes of a device.
    `what` is the subject of the message:

    >>> check_fits(4e15, "A GPT of 1e15 parameters")
    Traceback (most recent call last):
    headway.errors.ConfigError: A GPT of 1e15 parameters takes 4,000,000.0 GB, and … GB are free: choose smaller sizes
    """
    available = available_bytes() if available is None else available
    if n_bytes > available:
        raise error(f"{what} takes {n_bytes / 1e9:,.1f} GB, and {available / 1e9:,.1f} GB are free: {advice}")

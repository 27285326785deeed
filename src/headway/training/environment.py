"""Where and with what a run was made: what is needed to repeat it, beside its recipe."""

import platform
import subprocess
from typing import Any

import torch

from headway import __version__


def environment(device: torch.device) -> dict[str, Any]:
    return {
        "headway": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.platform(),
        "git": git_revision(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "threads": torch.get_num_threads(),
    }


def git_revision() -> str | None:
    """Of the folder one stands in, with a + where files differ from it; None outside of any repository."""
    try:
        revision, changed = (
            subprocess.run(["git", *command.split()], capture_output=True, text=True, timeout=5, check=True).stdout
            for command in ("rev-parse HEAD", "status --porcelain --untracked-files=no")
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return revision.strip() + ("+" if changed.strip() else "")

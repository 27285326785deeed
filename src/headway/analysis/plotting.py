"""The only module that imports matplotlib, which is an optional dependency."""

from pathlib import Path
from typing import Any

from headway.errors import InputError


def pyplot() -> Any:
    """matplotlib.pyplot with a backend that needs no display."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        raise InputError("plots need matplotlib: pip install 'headway[plots]'") from None
    return plt


def save_figure(figure: Any, file: str | Path, *, dpi: int = 150) -> Path:
    """Write a figure in the format of the file's suffix, and free its memory."""
    figure.savefig(file, dpi=dpi)
    pyplot().close(figure)
    return Path(file)


def escape_math(label: str) -> str:
    """A label without matplotlib's math mode, which a pair of dollar signs would start."""
    return label.replace("$", r"\$")

"""The one place that imports matplotlib, an extra."""

from typing import Any

from headway.errors import InputError


def pyplot() -> Any:
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        raise InputError("pictures need matplotlib: pip install 'headway[plots]'") from None
    return plt

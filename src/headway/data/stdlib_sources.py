"""The corpus `stdlib`: the sources of CPython's standard library."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path


def stdlib() -> Iterator[str]:
    """The source of CPython's standard library, one document per module: about 12 MB of Python, without its tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    skipped = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "pydoc_data"}
    for file in sorted(f for f in root.rglob("*.py") if not skipped.intersection(f.relative_to(root).parts)):
        try:
            text = file.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue  # a few test inputs use other encodings on purpose
        if text.strip():
            yield text

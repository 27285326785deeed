"""Fails if a built page loads anything from outside: `python docs/_ext/remote_loads.py docs/_build/html`."""

import re
import sys
from pathlib import Path

# A link that a reader may follow is no load; an image, script, style sheet, font or frame is.
LOADS = re.compile(
    r"""<(?:img|script|iframe|source|video|audio|embed)\b[^>]*?\b(?:src|srcset)=["']?(?P<src>(?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|preload|prefetch|preconnect|icon|manifest))"""
    r"""[^>]*?\bhref=["']?(?P<href>(?:https?:)?//[^"'\s>]+)"""
    r"""|url\(\s*["']?(?P<url>(?:https?:)?//[^"')\s]+)|@import\s+["'](?P<css>(?:https?:)?//[^"']+)""",
    re.IGNORECASE,
)


def remote_loads(folder: Path) -> list[str]:
    """Addresses that the HTML and CSS files of a folder load, with the file that does."""
    found = []
    for file in sorted([*folder.rglob("*.html"), *folder.rglob("*.css")]):
        for load in LOADS.finditer(file.read_text(encoding="utf-8", errors="replace")):
            address = next(filter(None, load.groups()))
            found.append(f"{file.relative_to(folder)}: {address}")
    return found


if __name__ == "__main__":
    found = remote_loads(Path(sys.argv[1]))
    print("\n".join(found) or "nothing is loaded from outside")
    sys.exit(1 if found else 0)

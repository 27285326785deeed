"""Pictures that follow the theme of the page: x.png on light pages, and x-dark.png, if it exists, on dark ones.

GitHub takes the dark version from a <picture> element. Furo shows images of the classes only-light and only-dark, so
each <picture> becomes two images when Sphinx reads the page; so does a plain image that has a dark version. Write

    ![attention weights](pictures/attention.png)

and let `python docs/_ext/theme_pictures.py docs/attention.md` turn it into the element.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

IMAGE = re.compile(r"^!\[(?P<alt>[^\]]*)\]\((?P<file>[^)\s]+\.(?:png|svg))\)$", re.MULTILINE)
PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>[^"]+)">'
    r'\s*<img src="(?P<file>[^"]+)" alt="(?P<alt>[^"]*)">\s*</picture>'
)
ELEMENT = """<picture>
  <source media="(prefers-color-scheme: dark)" srcset="{dark}">
  <img src="{file}" alt="{alt}">
</picture>"""
DIRECTIVES = """```{{image}} {file}
:alt: {alt}
:class: only-light
```

```{{image}} {dark}
:alt: {alt}
:class: only-dark
```"""


def dark_version(file: str) -> str:
    """attention.png → attention-dark.png"""
    path = Path(file)
    return path.with_stem(f"{path.stem}-dark").as_posix()


def to_elements(text: str, folder: Path) -> str:
    """A page with a <picture> for every image that has a dark version."""

    def element(image: re.Match[str]) -> str:
        dark = dark_version(image["file"])
        return ELEMENT.format(**image.groupdict(), dark=dark) if (folder / dark).is_file() else image[0]

    return IMAGE.sub(element, text)


def to_directives(text: str, folder: Path) -> str:
    """A page with two image directives for every picture."""
    text = to_elements(text, folder)
    return PICTURE.sub(lambda picture: DIRECTIVES.format(**picture.groupdict()), text)


def replace_pictures(app: Any, name: str, source: list[str]) -> None:
    source[0] = to_directives(source[0], Path(app.env.doc2path(name)).parent)


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", replace_pictures)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    for page in map(Path, sys.argv[1:]):
        page.write_text(to_elements(page.read_text(encoding="utf-8"), page.parent), encoding="utf-8")

"""The pictures of the docs: used, small, in a light and a dark version, and made by a command on the page."""

import re
import sys

import pytest

from tests.docs.blocks import DOCS, find_pages, page_name

MAX_BYTES = 200_000
PICTURES = sorted(file for file in (DOCS / "pictures").iterdir() if not file.stem.endswith("-dark"))
DRAWING = re.compile(r"\bheadway (show|score|compare|sweep|cost|lr-find)\b|--out \S+\.(png|svg)|--plot \S+")


@pytest.fixture(scope="module")
def theme_pictures():
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        import theme_pictures

        return theme_pictures
    finally:
        sys.path.remove(str(DOCS / "_ext"))


def sections(text):
    """The parts of a page between its headings."""
    return re.split(r"^#+ .+$", text, flags=re.MULTILINE)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_picture_has_a_dark_version_and_both_are_small(picture):
    for file in (picture, picture.with_stem(f"{picture.stem}-dark")):
        assert file.is_file(), f"{file.name} is missing: draw it with --theme dark"
        assert file.stat().st_size <= MAX_BYTES, f"{file.name} has {file.stat().st_size:,} bytes"


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_picture_stands_beside_the_command_that_makes_it(picture):
    pages = [page for page in find_pages() if f"pictures/{picture.name}" in page.read_text(encoding="utf-8")]
    assert pages, f"no page shows {picture.name}"
    for page in pages:
        for section in sections(page.read_text(encoding="utf-8")):
            if f"pictures/{picture.name}" in section:
                assert DRAWING.search(section), f"{page_name(page)} does not say what command draws {picture.name}"


def test_no_dark_picture_is_left_alone():
    light = {picture.stem for picture in PICTURES}
    dark = [file.stem.removesuffix("-dark") for file in (DOCS / "pictures").glob("*-dark.*")]
    assert [stem for stem in dark if stem not in light] == []


def test_a_plain_image_becomes_an_element_and_an_element_two_images(theme_pictures, tmp_path):
    (tmp_path / "a-dark.png").touch()
    element = theme_pictures.to_elements("![weights](a.png)\n\n![other](b.png)\n", tmp_path)
    assert '<source media="(prefers-color-scheme: dark)" srcset="a-dark.png">' in element
    assert "![other](b.png)" in element  # has no dark version
    assert theme_pictures.to_elements(element, tmp_path) == element
    for page in (element, "![weights](a.png)"):
        directives = theme_pictures.to_directives(page, tmp_path)
        assert "```{image} a.png\n:alt: weights\n:class: only-light\n```" in directives
        assert "```{image} a-dark.png\n:alt: weights\n:class: only-dark\n```" in directives
        assert "<picture>" not in directives


def test_the_pages_use_the_element():
    """A plain image shows its light version on GitHub's dark pages."""
    for page in find_pages():
        plain = re.findall(r"!\[[^\]]*\]\([^)]*pictures/[^)]+\)", page.read_text(encoding="utf-8"))
        assert not plain, f"run python docs/_ext/theme_pictures.py {page_name(page)}: {plain[0]}"

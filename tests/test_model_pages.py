"""Each family has a page in docs/models/, whose equations are those of the file that computes them."""

import re
from pathlib import Path

import pytest

from headway.config import FAMILIES

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs" / "models").glob("*.md"))


def equations(text: str) -> list[str]:
    """The text blocks of a page."""
    return re.findall(r"^```text\n(.*?)\n```$", text, re.MULTILINE | re.DOTALL)


def docstrings(text: str) -> str:
    """The docstrings of the files that a page names, without indentation."""
    files = re.findall(r"`((?:models|nn)/\w+\.py)`", text)
    sources = [(ROOT / "src/headway" / file).read_text(encoding="utf-8") for file in files]
    return "\n".join(re.sub(r"^    ", "", source.split('"""')[1], flags=re.MULTILINE) for source in sources)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "ngram.md"], ids=lambda page: page.stem)
def test_the_equations_are_those_of_the_files(page):  # the n-gram is a package of several files
    text = page.read_text(encoding="utf-8")
    assert equations(text)
    for equation in equations(text):
        assert equation in docstrings(text), f"docs/models/{page.name} has another equation than its file"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_model_page_has_a_file_numbers_and_departures(page):
    text = page.read_text(encoding="utf-8")
    for part in (r"^Files?: `models/", r"[Oo]ur numbers? beside the published", r"^## (Departures|Equal to KenLM)"):
        assert re.search(part, text, re.MULTILINE), f"docs/models/{page.name} lacks {part}"


def test_every_family_is_in_the_table():
    table = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    for family in FAMILIES:
        assert re.search(rf"\[[^\]]*\b{family.replace('ngram', 'n-gram')}\b", table), family

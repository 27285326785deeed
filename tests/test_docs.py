"""What can be checked of the docs without judging their prose."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
MAX_COLUMNS = 120


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_line_is_longer_than_120_characters(page):
    lines = page.read_text(encoding="utf-8").splitlines()
    assert not [f"{page.name}:{n}" for n, line in enumerate(lines, 1) if len(line) > MAX_COLUMNS]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_files_exist(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("http") or (page.parent / target).exists(), f"{page.name} links to {target}"
    for script in re.findall(r"\b(?:benchmarks|tests|examples)/[\w/]+\.py\b", text):
        assert (ROOT / script).is_file(), f"{page.name} names {script}"
    packages = r"(?:config|nn|models|tokenizers|data|sampling|generation|evaluation|training|comparison|costs|analysis)"
    for module in re.findall(rf"(?<![\w/]){packages}/[\w/]+\.py\b", text):
        assert (ROOT / "src" / "headway" / module).is_file(), f"{page.name} names {module}"
    for name in re.findall(r"\bheadway train ([a-z0-9]+(?:-[a-z0-9]+)*)\b(?! RECIPE)", text):
        assert name == "runs" or (ROOT / "src/headway/recipes" / f"{name}.toml").is_file(), f"{page.name}: {name}"

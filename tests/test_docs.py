"""What can be checked of the docs without judging their prose. tests/docs/ runs their code."""

import re
import sys
from pathlib import Path

import pytest

import headway

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
FOLDERS = (ROOT, DOCS, DOCS / "howto", DOCS / "models")
PAGES = sorted(page for folder in FOLDERS for page in folder.glob("*.md"))
MAX_COLUMNS = 120


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_line_is_longer_than_120_characters(page):
    """But for the rows of the map of the lectures: a row of a table cannot be broken."""
    lines = page.read_text(encoding="utf-8").splitlines()
    is_map = page.name == "lectures.md"
    long = [n for n, line in enumerate(lines, 1) if len(line) > MAX_COLUMNS and not (is_map and line.startswith("|"))]
    assert not [f"{page.name}:{n}" for n in long]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_files_exist(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("http") or (page.parent / target).exists(), f"{page.name} links to {target}"
    for picture in re.findall(r'(?:src|srcset)="([^"]+)"', text):
        assert (page.parent / picture).is_file(), f"{page.name} shows {picture}"
    for script in re.findall(r"\b(?:benchmarks|tests|examples)/[\w/]+\.py\b", text):
        assert (ROOT / script).is_file(), f"{page.name} names {script}"
    packages = r"(?:config|nn|models|tokenizers|data|sampling|generation|evaluation|training|comparison|costs|analysis)"
    for module in re.findall(rf"(?<![\w/]){packages}/[\w/]+\.py\b", text):
        assert (ROOT / "src" / "headway" / module).is_file(), f"{page.name} names {module}"
    for name in re.findall(r"\bheadway train ([a-z0-9]+(?:-[a-z0-9]+)*)\b(?! RECIPE|\.toml)", text):
        assert name == "runs" or (ROOT / "src/headway/recipes" / f"{name}.toml").is_file(), f"{page.name}: {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_sections_exist(page):
    for target, section in re.findall(r"\]\(([^)#\s]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            file = page.parent / target if target else page
            assert section in section_anchors(file.read_text(encoding="utf-8")), f"{page.name}: {target}#{section}"


def section_anchors(text: str) -> list[str]:
    """The anchors of a page's headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_every_page_is_on_the_start_page_or_among_the_models():
    for page in PAGES:
        if DOCS in page.parents and page.name != "index.md":
            start = "models.md" if page.parent.name == "models" else "index.md"
            text = (DOCS / start).read_text(encoding="utf-8")
            name = page.relative_to(DOCS).with_suffix("")
            assert f"({name}.md)" in text, f"docs/{start} does not link to {name}.md"
            assert re.search(rf"^{name}$", text, re.MULTILINE), f"no toctree of docs/{start} has {name}"


# ── the reference, which Sphinx builds from pages that docs/_ext writes ───────────────────────────────────────────


@pytest.fixture(scope="module")
def reference():
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        from reference_pages import reference_pages

        return reference_pages()
    finally:
        sys.path.remove(str(DOCS / "_ext"))


def test_the_reference_has_every_public_name(reference):
    for name in headway.__all__:
        assert re.search(rf"^\.\. auto\w+:: headway\.{name}$", reference["headway.md"], re.MULTILINE), name


def test_the_reference_has_every_module(reference):
    package = ROOT / "src" / "headway"
    for file in package.rglob("*.py"):
        parts = file.relative_to(package).with_suffix("").parts
        if parts[0] in ("cli", "__main__", "__init__"):
            continue
        module = ".".join(["headway", *parts]).removesuffix(".__init__")
        page = reference[f"headway.{parts[0]}.md"]
        assert re.search(rf"^\.\. automodule:: {re.escape(module)}$", page, re.MULTILINE), module


def test_the_reference_has_the_help_of_every_command(reference):
    for command in ("headway", "headway train", "headway tokenizer train", "headway check resume"):
        assert f"## {command}\n" in reference["commands.md"]
    assert "--set" in reference["commands.md"]


def test_a_table_of_fields_has_types_defaults_and_meanings():
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        from field_tables import field_table
    finally:
        sys.path.remove(str(DOCS / "_ext"))
    from headway.config import TrainConfig
    from headway.generation.generate import Token

    rows = field_table(Token)
    assert "| `row` | `int` |  | index of its prompt |" in rows
    settings = "\n".join(field_table(TrainConfig))
    for name in TrainConfig.__struct_fields__:
        assert f"| `{name}` |" in settings


def test_a_page_that_loads_something_from_outside_is_found(tmp_path):
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        from remote_loads import remote_loads
    finally:
        sys.path.remove(str(DOCS / "_ext"))
    page = tmp_path / "a.html"
    page.write_text('<a href="https://a.org">a</a><img src="a.png"><link rel="stylesheet" href="_static/a.css">')
    assert remote_loads(tmp_path) == []
    for load in (
        '<img src="https://a.org/b.png">',
        '<script async src="//a.org/b.js"></script>',
        '<link href="https://a.org/b.css" rel="stylesheet">',
        "<style>@import 'https://a.org/b.css'; </style>",
        "<style>body { background: url(https://a.org/b.png) }</style>",
    ):
        page.write_text(load)
        (found,) = remote_loads(tmp_path)
        assert found.startswith("a.html: ")
        assert "//a.org/b." in found

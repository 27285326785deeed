"""Sphinx builds these pages: `make docs`, then open docs/_build/html/index.html."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "Headway"
author = "The Headway authors"
extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "reference_pages", "docstrings", "theme_pictures",
]  # fmt: skip
exclude_patterns = ["_build", "_ext"]
templates_path: list[str] = []

# Pages and docstrings are Markdown, as GitHub shows it.
myst_heading_anchors = 3
smartquotes = False  # quotes in text are quotes of code
suppress_warnings = ["myst.xref_missing"]  # links to README.md, tests/, …: files of the repository outside docs/

autodoc_mock_imports = ["triton"]  # only installed where there is a GPU
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90
toc_object_entries_show_parents = "hide"
add_module_names = False

html_theme = "furo"
html_title = "Headway"
html_copy_source = False

"""How the API reference shows docstrings: as Markdown, and with a table of the fields of a config or record."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from docutils import nodes
from docutils.utils import new_document
from field_tables import field_table
from myst_parser.mdit_to_docutils.sphinx_ import SphinxRenderer
from myst_parser.parsers.mdit import create_md_parser
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class MarkdownDirective(SphinxDirective):
    """Markdown inside reStructuredText, which is what autodoc writes."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        document = new_document(self.get_source_info()[0], self.state.document.settings)
        # <unk> and <s> are tokens, not HTML.
        config = dataclasses.replace(self.env.myst_config, disable_syntax=["html_inline", "html_block"])
        parser = create_md_parser(config, SphinxRenderer)
        parser.options["document"] = document
        parser.render("\n".join(self.content))
        return document.children


def to_markdown(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Hand a docstring to the directive above. A class gets the table of its fields, a dictionary its keys."""
    if what == "class":
        lines += field_table(obj)
    if what == "data" and isinstance(obj, Mapping):
        lines[:] = ["A dictionary of " + ", ".join(f"`{key}`" for key in obj) + "."]
    if any(line.strip() for line in lines):
        lines[:] = [".. markdown::", "", *[f"   {line}" for line in fence_doctests(lines)], ""]


def fence_doctests(lines: list[str]) -> Iterator[str]:
    """Put sessions that start with `>>>` into code blocks; Markdown reads `>` as a quotation."""
    in_session = False
    for line in [*lines, ""]:
        if line.startswith(">>>") and not in_session:
            in_session = True
            yield "```pycon"
        elif in_session and not line.strip():
            in_session = False
            yield "```"
        yield line


def drop_signature_of_fields(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str, None] | None:
    """The table says what the signature of a class with fields would repeat."""
    return ("", None) if what == "class" and field_table(obj) else None


def skip_plain_values(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out values and fields without a docstring: fields are in the table of their class."""
    is_code = inspect.isroutine(obj) or inspect.isclass(obj) or isinstance(obj, property | cached_property)
    return None if is_code else True


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("markdown", MarkdownDirective)
    app.connect("autodoc-process-docstring", to_markdown)
    app.connect("autodoc-process-signature", drop_signature_of_fields)
    app.connect("autodoc-skip-member", skip_plain_values)
    return {"parallel_read_safe": True}

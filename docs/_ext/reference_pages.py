"""Write the reference from the package itself, before Sphinx reads it: docs/reference/*.md.

One page holds the names of `headway`, one page per package its modules, and one page the help of every command. Nothing
is listed by hand, so a new name, module or command appears by itself.
"""

import ast
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headway

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PACKAGE = Path(headway.__file__).parent
HELP_COLUMNS = 100


def write_pages(folder: Path) -> None:
    """Write every page whose text has changed, so that Sphinx reads the others from its cache."""
    folder.mkdir(exist_ok=True)
    pages = reference_pages()
    for file in folder.glob("*.md"):
        if file.name not in pages:
            file.unlink()
    for name, text in pages.items():
        file = folder / name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def reference_pages() -> dict[str, str]:
    """File name → Markdown."""
    pages = {"headway.md": names_page(), "commands.md": commands_page()}
    modules = module_names()
    for package in [name for name in modules if name.count(".") == 1]:
        parts = [name for name in modules if name.startswith(f"{package}.")]
        pages[f"{package}.md"] = "\n".join([f"# {package}", "", *_module(package), *_sections(parts)])
    return pages


# ── the API ───────────────────────────────────────────────────────────────────────────────────────────────────────


def names_page() -> str:
    """The names you use as `headway.NAME`: functions, then classes and tables, then errors."""
    text = ["# headway", "", "`import headway` gives you these names.", ""]
    kinds = {name: _kind(getattr(headway, name)) for name in headway.__all__}
    for kind in ("function", "class", "data", "exception"):
        for name in [name for name in kinds if kinds[name] == kind]:
            text += _auto(kind, f"headway.{name}", *([":no-value:"] if kind == "data" else []))
    return "\n".join(text)


def module_names() -> list[str]:
    """Every module except the command line: `headway.analysis`, `headway.analysis.attention`, …"""
    files = [file.relative_to(PACKAGE.parent).with_suffix("") for file in PACKAGE.rglob("*.py")]
    names = {".".join(file.parts).removesuffix(".__init__") for file in files}
    return sorted(name for name in names if not name.startswith(("headway.cli", "headway.__")) and name != "headway")


def _sections(modules: list[str]) -> Iterator[str]:
    for module in modules:
        yield from ["", f"## {module}", "", *_module(module)]


def _module(module: str) -> list[str]:
    """A package shows its docstring and links to its names; a module shows its docstring and its members."""
    init = PACKAGE.parent.joinpath(*module.split("."), "__init__.py")
    if not init.is_file():
        return _auto("module", module, ":members:", ":undoc-members:", ":show-inheritance:")
    links = ", ".join(f"{{py:obj}}`{name} <{origin}>`" for name, origin in _exports(init))
    return [*_auto("module", module), *([f"Names: {links}", ""] if links else [])]


def _exports(init: Path) -> list[tuple[str, str]]:
    """The names that a package imports from its modules, with their full names there."""
    statements = ast.parse(init.read_text(encoding="utf-8")).body
    imports = [node for node in statements if isinstance(node, ast.ImportFrom) and node.module]
    return sorted((alias.name, f"{node.module}.{alias.name}") for node in imports for alias in node.names)


def _auto(kind: str, name: str, *options: str) -> list[str]:
    """An autodoc directive. It writes reStructuredText, so it stands in an `eval-rst` block."""
    return ["```{eval-rst}", f".. auto{kind}:: {name}", *[f"   {option}" for option in options], "```", ""]


def _kind(obj: Any) -> str:
    if inspect.isclass(obj):
        return "exception" if issubclass(obj, BaseException) else "class"
    return "function" if callable(obj) else "data"


# ── the command line ──────────────────────────────────────────────────────────────────────────────────────────────


def commands_page() -> str:
    """The help of every command, as `headway VERB --help` prints it."""
    text = ["# Commands", "", "`headway COMMAND --help` prints the text below.", ""]
    for name, help_text in command_helps():
        text += [f"## {name}", "", "```text", help_text.rstrip(), "```", ""]
    return "\n".join(text)


def command_helps() -> Iterator[tuple[str, str]]:
    from headway.cli import app

    def walk(command: Any, path: str, parent: Any) -> Iterator[tuple[str, str]]:
        context = command.context_class(
            command, info_name=path.rpartition(" ")[2], parent=parent, terminal_width=HELP_COLUMNS
        )
        yield path, command.get_help(context)
        for name, child in getattr(command, "commands", {}).items():
            if not child.hidden:
                yield from walk(child, f"{path} {name}", context)

    os.environ.setdefault("NO_COLOR", "1")
    return walk(app.parser, "headway", None)


def setup(app: "Sphinx") -> dict[str, bool]:
    app.connect("builder-inited", lambda app: write_pages(Path(app.srcdir) / "reference"))
    return {"parallel_read_safe": True}

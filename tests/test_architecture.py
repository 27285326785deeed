"""The tree is the architecture: imports point one way, and the public names are these."""

import ast
from pathlib import Path

import headway

PACKAGE = Path(headway.__file__).parent

# Each part may import the ones named, and itself.
ALLOWED = {
    "errors": set(),
    "files": {"errors"},
    "devices": {"errors"},
    "config": {"errors", "presets"},
    "presets": {"config"},
    "nn": {"errors"},
    "tokenizers": {"errors", "files"},
    "sampling": {"errors"},
    "data": {"errors", "files", "config", "tokenizers"},
    "models": {"errors", "files", "devices", "config", "presets", "nn", "tokenizers"},
    "decoding": {"nn", "models", "sampling"},
    "search": {"errors", "devices", "nn", "models", "sampling"},
    "engine": {"errors", "devices", "nn", "models", "sampling", "decoding"},
    "choosing": {"errors", "models", "tokenizers", "sampling", "search"},
    "generation": {"errors", "nn", "models", "tokenizers", "sampling", "search", "engine", "choosing"},
    "reading": {"errors", "devices", "models", "tokenizers"},
    "reranking": {"errors", "nn", "models", "reading", "search"},
    "translation": {
        "errors",
        "reading",
        "reranking",
        "metrics",
        "data",
        "nn",
        "models",
        "tokenizers",
        "sampling",
        "search",
        "choosing",
        "generation",
        "trace",
    },
    "comparison": {
        "costs",
        "devices",
        "errors",
        "files",
        "config",
        "models",
        "tokenizers",
        "data",
        "trace",
        "training",
        "generation",
        "translation",
        "metrics",
    },
    "checking": {"errors", "models"},
    "interop": {"errors", "files", "config", "models", "tokenizers"},
    "metrics": {"errors"},
    "costs": {"config"},
    "trace": {"errors", "sampling", "nn", "models", "tokenizers"},
    "training": {
        "costs",
        "errors",
        "files",
        "devices",
        "config",
        "nn",
        "models",
        "tokenizers",
        "data",
        "translation",
        "metrics",
    },
}
ABOVE = {"cli", "__main__", "__init__"}  # may use everything; nothing below uses them


def part_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(file: Path) -> set[str]:
    """The parts of headway that a file imports, wherever in it the import stands."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "headway":
            parts = node.module.split(".")[1:]
            found |= {parts[0]} if parts else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {
                a.name.split(".")[1] if "." in a.name else "*" for a in node.names if a.name.split(".")[0] == "headway"
            }
    return found - {"__version__"}


def test_no_arrow_points_up():
    for file in PACKAGE.rglob("*.py"):
        part = part_of(file)
        if part not in ABOVE:
            wrong = imports(file) - ALLOWED[part] - {part}
            assert not wrong, f"{file.relative_to(PACKAGE)} imports {sorted(wrong)}, which lie above it"


CONFIGS = tuple(str(file.relative_to(PACKAGE)) for file in (PACKAGE / "config").glob("*.py"))


def test_files_without_torch_have_none():
    for name in ("errors.py", "files.py", *CONFIGS, "presets.py", "__init__.py", "cli/__init__.py"):
        tree = ast.parse((PACKAGE / name).read_text(encoding="utf-8"))
        modules = {a.name for n in tree.body if isinstance(n, ast.Import) for a in n.names}
        modules |= {n.module or "" for n in tree.body if isinstance(n, ast.ImportFrom)}
        assert not any(m.split(".")[0] in ("torch", "numpy") for m in modules), name


def test_public_names():
    assert headway.__all__ == [
        "CheckpointError",
        "ConfigError",
        "DataError",
        "HeadwayError",
        "InputError",
        "MODELS",
        "PRESETS",
        "compare",
        "create",
        "evaluate",
        "generate",
        "load",
        "load_recipe",
        "load_tokenizer",
        "train",
        "translate",
    ]
    assert all(getattr(headway, name) is not None for name in headway.__all__)

"""The tree is the architecture: imports point one way, public names are unique, and no name hides a module."""

import ast
import pkgutil
from importlib import import_module
from pathlib import Path

import pytest

import headway

PACKAGE = Path(headway.__file__).parent

# Each layer may import the layers named, and itself. `generation` is split in three: the loops and searches over token
# ids lie below the functions that take and return text, and word alignment lies above `analysis`, whose maps it reads.
ALLOWED = {
    "errors": set(),
    "entry_points": set(),
    "temporary_files": set(),
    "watchdog": {"temporary_files"},
    "termination": {"temporary_files", "watchdog"},
    "files": {"errors", "file_reading", "temporary_files"},
    "file_reading": {"errors"},
    "memory": {"errors"},
    "devices": {"errors"},
    "compilers": set(),
    "device_rates": {"nn"},
    "display": {"data", "training"},  # the types of what it shows: nothing is imported when it runs
    "runs": {"errors", "entry_points", "files", "file_reading"},
    "tables": set(),
    "installed_files": set(),
    "config": {"errors", "entry_points", "runs", "file_reading", "installed_files"},
    # models only to load a run's model
    "run_reader": {"errors", "entry_points", "file_reading", "runs", "config", "models"},
    "run_table": {"errors", "run_reader", "tables"},
    "nn": {"errors", "entry_points", "files", "compilers"},
    "tokenizers": {"errors", "files", "file_reading"},
    "sampling": {"errors", "entry_points", "compilers"},
    "costs": {"errors", "file_reading", "tables", "config"},
    "data": {
        "errors",
        "entry_points",
        "installed_files",
        "files",
        "file_reading",
        "temporary_files",
        "config",
        "tokenizers",
    },
    "models": {
        "errors",
        "entry_points",
        "installed_files",
        "files",
        "temporary_files",
        "file_reading",
        "memory",
        "devices",
        "compilers",
        "runs",
        "config",
        "nn",
        "tokenizers",
    },
    "generation.ids": {"errors", "devices", "nn", "models", "sampling"},
    "generation": {
        "errors",
        "devices",
        "runs",
        "config",
        "nn",
        "models",
        "tokenizers",
        "sampling",
        "data",
        "generation.ids",
    },
    "analysis": {
        "errors",
        "costs",
        "devices",
        "device_rates",
        "memory",
        "tables",
        "runs",
        "run_reader",
        "config",
        "sampling",
        "nn",
        "models",
        "tokenizers",
        "data",
        "generation",
        "generation.ids",
        "evaluation",
    },
    "generation.alignment": {"errors", "models", "tokenizers", "generation", "analysis"},
    "prediction": {"errors", "tokenizers", "data", "nn", "config", "models"},
    "evaluation": {
        "config",
        "errors",
        "prediction",
        "display",
        "tables",
        "temporary_files",
        "nn",
        "models",
        "tokenizers",
        "data",
        "generation.ids",
        "generation",
    },
    "exercises": {
        "errors",
        "config",
        "costs",
        "sampling",
        "tables",
        "nn",
        "models",
        "analysis",
        "evaluation",
    },
    "training": {
        "costs",
        "device_rates",
        "prediction",
        "errors",
        "memory",
        "entry_points",
        "display",
        "files",
        "temporary_files",
        "termination",
        "watchdog",
        "file_reading",
        "devices",
        "runs",
        "config",
        "nn",
        "models",
        "tokenizers",
        "data",
        "generation",
        "evaluation",
    },
    "comparison": {
        "costs",
        "installed_files",
        "prediction",
        "entry_points",
        "devices",
        "display",
        "errors",
        "files",
        "file_reading",
        "runs",
        "config",
        "models",
        "tokenizers",
        "data",
        "analysis",
        "generation",
        "evaluation",
        "training",
    },
    "plugins": {
        "errors",
        "config",
        "nn",
        "models",
        "sampling",
        "tokenizers",
        "data",
        "generation",
        "evaluation",
        "training",
    },
    "sweeps": {
        "errors",
        "entry_points",
        "files",
        "temporary_files",
        "termination",
        "watchdog",
        "file_reading",
        "devices",
        "runs",
        "run_reader",
        "tables",
        "config",
        "plugins",
        "data",
        "analysis",
        "training",
    },
}
IDS_ONLY = {"reference", "decode_loop", "cuda_graph", "beam_search", "contrastive", "inputs", "limits"}  # of generation
TOP = {"cli", "__main__", "__init__"}  # may import everything; nothing imports them


def layer_of(module: list[str]) -> str:
    """["generation", "beam_search"] → "generation.ids"."""
    if module[0] == "generation" and len(module) > 1:
        if module[1] in IDS_ONLY:
            return "generation.ids"
        if module[1] == "alignment":
            return "generation.alignment"
    return module[0]


def module_of(file: Path) -> list[str]:
    return [part.removesuffix(".py") for part in file.relative_to(PACKAGE).parts]


def imported_layers(file: Path) -> set[str]:
    """The layers of headway that a file imports, at its top or inside functions."""
    modules: list[list[str]] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "headway":
            parts = node.module.split(".")[1:]
            # `from headway.generation import beam_search` names a module, as `from headway import errors` does
            modules += [[*parts, alias.name] for alias in node.names]
        elif isinstance(node, ast.Import):
            modules += [[*a.name.split(".")[1:], "*"] for a in node.names if a.name.split(".")[0] == "headway"]
    return {layer_of(module) for module in modules} - {"__version__"}


def test_no_import_points_up():
    for file in PACKAGE.rglob("*.py"):
        layer = layer_of(module_of(file))
        if layer not in TOP:
            wrong = imported_layers(file) - ALLOWED[layer] - {layer}
            assert not wrong, f"{file.relative_to(PACKAGE)} imports {sorted(wrong)}, which lie above it"


CONFIGS = tuple(str(file.relative_to(PACKAGE)) for file in (PACKAGE / "config").glob("*.py"))


def test_files_without_torch_have_none():
    for name in (
        "errors.py",
        "files.py",
        "temporary_files.py",
        "termination.py",
        "watchdog.py",
        "file_reading.py",
        "memory.py",
        "runs.py",
        "run_reader.py",
        "display.py",
        *CONFIGS,
        "__init__.py",
        "cli/__init__.py",
    ):
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
        "answer",
        "check_contract",
        "classify",
        "compare",
        "complete",
        "create",
        "embed",
        "evaluate",
        "fill",
        "generate",
        "load",
        "load_recipe",
        "load_tokenizer",
        "open_run",
        "register",
        "score",
        "sweep",
        "tag",
        "train",
        "translate",
    ]
    assert all(getattr(headway, name) is not None for name in headway.__all__)


def test_dir_lists_every_public_name_and_module():
    modules = {module.name for module in pkgutil.iter_modules(headway.__path__)} - TOP
    assert set(dir(headway)) == {*headway.__all__, *modules, "__version__"}
    assert all(getattr(headway, name) is import_module(f"headway.{name}") for name in modules)


def test_no_public_name_is_two_classes():
    """Aliases of types count as classes: `Optimizer` cannot be a class here and a `Literal` there."""
    places: dict[str, list[str]] = {}
    for file in PACKAGE.rglob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            names = [node.name] if isinstance(node, ast.ClassDef) else []
            if isinstance(node, ast.Assign):
                targets = [target.id for target in node.targets if isinstance(target, ast.Name)]
                names = [name for name in targets if name[0].isupper() and not name.isupper()]
            for name in names:
                places.setdefault(name, []).append(str(file.relative_to(PACKAGE)))
    twice = {name: files for name, files in places.items() if len(files) > 1 and len(name) > 1}
    assert not twice


def test_no_attribute_of_a_package_hides_its_module():
    for folder in [PACKAGE, *(file.parent for file in PACKAGE.rglob("__init__.py"))]:
        package = ".".join(["headway", *folder.relative_to(PACKAGE).parts])
        for path in folder.iterdir():
            name = path.name.removesuffix(".py")
            is_module = path.suffix == ".py" or (path / "__init__.py").is_file()
            if is_module and not name.startswith("__"):
                if "kernels" in package or name == "kernels":  # Triton comes with PyTorch's CUDA builds only
                    continue
                module = import_module(f"{package}.{name}")
                assert getattr(import_module(package), name) is module, f"{package}.{name} is not the module"


def test_a_mistyped_public_name_is_answered_with_the_nearest():
    with pytest.raises(AttributeError, match=r"'headway' has no attribute 'genrate'\. Did you mean 'generate'\?"):
        headway.genrate  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no attribute 'xyzzy'\. It has: .*load_recipe"):
        headway.xyzzy  # noqa: B018

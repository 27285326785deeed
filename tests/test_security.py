"""Nothing that Headway reads decides what it runs.

Every place of the package that starts a process, imports a module by name or could run what it loads is in the list
below, with the reason why no file decides what happens there. A new one fails this test until it has a reason too.
"""

import ast
from pathlib import Path

import headway

PACKAGE = Path(headway.__file__).parent

# Names of functions and modules that can run code.
RUNNING = {
    *("eval", "exec", "compile", "__import__", "system", "popen", "fork", "Popen", "check_output", "check_call"),
    *("call", "getoutput", "getstatusoutput", "create_subprocess_exec", "create_subprocess_shell"),
    *("execv", "execve", "execvp", "execvpe", "execl", "execlp", "spawnv", "spawnl", "posix_spawn", "startfile"),
    *("import_module", "exec_module", "run_path", "run_module", "load_module", "find_spec", "spec_from_file_location"),
    *("CDLL", "LoadLibrary", "load_library", "dlopen"),
}
RUNNING_MODULES = {
    *("subprocess", "multiprocessing", "pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"),
    *("runpy", "code", "codeop", "ctypes", "cffi", "pty", "yaml", "imp"),
}
UNPICKLING = {("torch", "load"), ("np", "load"), ("numpy", "load"), ("pd", "read_pickle"), ("hub", "load")}

REASONS = {
    ("__init__.py", "import_module"): "a module of the package, from a table in the code",
    ("analysis/__init__.py", "import_module"): "a module of the package, from a table in the code",
    ("cli/help.py", "import_module"): "the module of a command, from a table in the code",
    ("data/__init__.py", "import_module"): "a module of the package, from a table in the code",
    ("sampling/__init__.py", "import_module"): "a module of the package, from a table in the code",
    ("evaluation/metrics.py", "import_module"): "modules of sacrebleu, named in the code",
    ("plugins.py", "import_module"): "a plug-in that the user names: --plugin MODULE",
    ("plugins.py", "exec_module"): "a plug-in that the user names: --plugin FILE.py",
    ("plugins.py", "spec_from_file_location"): "a plug-in that the user names: --plugin FILE.py",
    (
        "exercises/homework/student_code.py",
        "exec_module",
    ): "a solution that the user names: headway check homework FILE.py",
    (
        "exercises/homework/student_code.py",
        "spec_from_file_location",
    ): "a solution that the user names: headway check homework FILE.py",
    ("entry_points.py", "load()"): "an installed package, when the user names what it declares; never a name in a file",
    (
        "installed_files.py",
        "find_spec",
    ): "whether a package of weights or texts is installed, named in the code",
    ("display.py", "find_spec"): "whether ipywidgets is installed",
    ("compilers.py", "find_spec"): "whether Triton is installed",
    ("training/loggers.py", "find_spec"): "whether a logger is installed; their names are in the code",
    ("sweeps/jobs.py", "subprocess"): "this Python with headway.sweeps.worker, which gets its recipe on stdin",
    ("sweeps/jobs.py", "Popen"): "this Python with headway.sweeps.worker, which gets its recipe on stdin",
    ("training/resume_check.py", "subprocess"): "this Python with `headway train`, of the recipe that is checked",
    ("training/resume_check.py", "Popen"): "this Python with `headway train`, of the recipe that is checked",
    ("termination.py", "fork"): "a copy of this process, which ends it if a signal cannot",
    ("termination.py", "ctypes"): "prctl of the C library, with constants",
    ("termination.py", "CDLL"): "prctl of the C library, with constants",
    ("nn/kernels/c_library.py", "subprocess"): "the system's C compiler, with a file of the package",
    ("nn/kernels/c_library.py", "ctypes"): "what it made: a library of this user that nobody else may write",
    ("nn/kernels/c_library.py", "CDLL"): "what it made: a library of this user that nobody else may write",
    ("nn/kernels/cpu_decode.py", "ctypes"): "the types of arguments",
    ("training/memory_measurement.py", "ctypes"): "malloc_trim of the C library, with a constant",
    ("training/memory_measurement.py", "CDLL"): "malloc_trim of the C library, with a constant",
}


def uses(file: Path) -> set[str]:
    """What a file calls or imports that can run code."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] in RUNNING_MODULES}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module} if node.module.split(".")[0] in RUNNING_MODULES else set()
        elif isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            owner = function.value if isinstance(function, ast.Attribute) else None
            owner_name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            if (owner_name, name) in UNPICKLING:
                found.add(f"{owner_name}.{name}")
            elif name == "load" and not node.args and not node.keywords:  # of an entry point
                found.add("load()")
            elif name in RUNNING and not _is_harmless(name, owner, owner_name):
                found.add(name)
    return found


def _is_harmless(name: str, owner: ast.expr | None, owner_name: str) -> bool:
    """`model.eval()`, `re.compile(…)` and the like share a name with what runs code."""
    if name == "eval":
        return owner is not None and owner_name != "builtins"
    return (owner_name, name) in {("re", "compile"), ("torch", "compile")} or (
        name in ("compile", "call") and owner is not None and owner_name not in ("builtins", "subprocess")
    )


def test_every_place_that_could_run_code_has_a_reason():
    found = {(str(file.relative_to(PACKAGE)), use) for file in PACKAGE.rglob("*.py") for use in uses(file)}
    assert sorted(found - set(REASONS)) == []
    assert sorted(set(REASONS) - found) == []  # the list has no more than there is


# The program of each process.
PROGRAMS = {"c_library.py": "compiler"}


def test_processes_are_this_python_or_a_c_compiler_without_a_shell():
    calls = [
        (file.name, node)
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("Popen", "run")
        if isinstance(node.func.value, ast.Name) and node.func.value.id == "subprocess"
    ]
    assert calls
    for name, call in calls:
        command = call.args[0]
        assert isinstance(command, ast.List), name
        assert ast.unparse(command.elts[0]) == PROGRAMS.get(name, "sys.executable"), name
        assert "shell" not in {keyword.arg for keyword in call.keywords}, name

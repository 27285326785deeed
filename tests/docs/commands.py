"""Run the commands of a console block. `headway` and `python FILE` run in this process: importing torch takes seconds.
Other commands run in a shell."""

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.data.synthetic_tasks import task_pairs
from headway.training import resume_check
from tests.cli.running import exit_code, train_until
from tests.docs.blocks import Line
from tests.docs.expected import Mismatch, Tolerance, compare_output

ENVIRONMENT_COMMANDS = ("pip", "make", "source", "git", "cd")  # they change more than the page's folder
SHORT_TRAINING = "--set train.steps=4 --set train.batch_size=4"
SMALL_MODEL = "--set model.n_layers=1 --set model.d_model=32 --set model.n_heads=2"
SMALL_DATA = "--set data.path=my.txt --set eval.num_evals=1"
N_PAIRS = 300  # of a synthetic task, in place of 20,000


@dataclass
class Printed:
    """What was printed: to stdout, and to stdout and stderr together."""

    out: bytearray = field(default_factory=bytearray)
    both: bytearray = field(default_factory=bytearray)

    @classmethod
    def of(cls, text: str) -> "Printed":
        return cls(bytearray(text.encode()), bytearray(text.encode()))

    def __iadd__(self, other: "Printed") -> "Printed":
        self.out += other.out
        self.both += other.both
        return self

    def compare(self, expected: Sequence[Line], tolerance: Tolerance) -> Mismatch | None:
        """A page may show stdout alone or, as a terminal does, stderr with it."""
        here = f"{Path.cwd()}/"  # a reader's folder is another one, so pages leave it out
        texts = [text.decode().replace(here, "") for text in (self.out, self.both)]
        mismatches = [compare_output(expected, text, tolerance) for text in texts]
        differences = [mismatch for mismatch in mismatches if mismatch]
        return max(differences, key=lambda mismatch: mismatch.line) if len(differences) == len(mismatches) else None

    @property
    def last_lines(self) -> str:
        return "\n".join(self.both.decode(errors="replace").splitlines()[-8:])


def run_command(command: str, printed: Printed) -> int:
    """The exit code of a command, or of several joined by pipes."""
    if export := re.fullmatch(r"export (\w+)=(\S+)(\s+#.*)?", command):
        os.environ[export[1]] = export[2]
        return 0
    *first_stages, last_stage = split_pipeline(command)
    data = b""
    for stage in first_stages:
        stage_printed = Printed()
        if code := _run_stage(stage, data, stage_printed):
            printed += stage_printed
            return code
        data = bytes(stage_printed.out)
    return _run_stage(last_stage, data, printed)


def split_pipeline(command: str) -> list[str]:
    """The stages of a pipeline, if one of them is `headway`; else the whole command, for the shell."""
    stages, quote, start = [], "", 0
    for i, character in enumerate(command):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character == "#" and command[i - 1 : i].isspace():
            break
        elif character == "|":
            stages.append(command[start:i].strip())
            start = i + 1
    stages.append(command[start:].strip())
    return stages if any(stage.startswith("headway ") for stage in stages) else [command]


def _run_stage(stage: str, data: bytes, printed: Printed) -> int:
    command, target = split_redirection(stage)
    words = shlex.split(command, comments=True)
    settings = {}
    while re.match(r"[A-Z_]+=", words[0]):
        name, _, settings[name] = words.pop(0).partition("=")
    if words[0] in ENVIRONMENT_COMMANDS:
        printed += Printed.of(f"{words[0]} is not run: mark the block with <!-- docs-check: REASON -->")
        return 126
    output = Printed() if target else printed
    with _changed_environment(settings), captured(output, data):
        if words[0] == "headway":
            code = exit_code(shlex.join(words[1:]))
        elif words[0] == "python" and words[1].endswith(".py"):
            code = _run_script(words[1:])
        else:
            code = _run_shell(command, data, output)
    if target:
        Path(target).write_bytes(output.out)
        printed.both += output.both if code else b""
    return code


def split_redirection(stage: str) -> tuple[str, str | None]:
    """A command that runs in this process, and the file that its output goes to, if any."""
    match = re.fullmatch(r"(.*\S)\s+> *([\w./-]+)(?:\s+#.*)?", stage)
    runs_here = re.match(r"(?:[A-Z_]+=\S+ )*(?:headway |python [\w./-]+\.py)", stage)
    return (match[1], match[2]) if match and runs_here else (stage, None)


def _run_script(words: list[str]) -> int:
    arguments, sys.argv = sys.argv, words
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv = arguments
    return 0


def _run_shell(command: str, data: bytes, printed: Printed) -> int:
    process = subprocess.run(command, shell=True, executable="/bin/bash", input=data, capture_output=True)
    printed.out += process.stdout
    printed.both += process.stdout + process.stderr
    return process.returncode


def written_paths(command: str) -> list[Path]:
    """What a new run or conversion writes."""
    words = command.split()
    if words[0] != "headway" or "--resume" in words:
        return []
    names = re.findall(r" (?:--out|-o) (\S+)", command)
    if words[1] == "convert":
        names = words[3:4]
    elif words[1] == "train" and not names:
        names = [f"runs/{words[2]}"]
    return [Path(name) for name in names]


# ── shorter than on the page ──────────────────────────────────────────────────────────────────────────────────────


def shortened(command: str) -> str:
    """The command with less training, so that a page runs in seconds."""
    command = re.sub(r"\s+# .*$", "", command)
    words = command.split()
    if words[0] != "headway" or {"--resume", "--print-config", "--list"} & set(words):
        return command
    if words[1] in ("train", "demo"):
        return f"{command} {SHORT_TRAINING}" + (f" {SMALL_MODEL}" if words[2] == "pairs" else "")
    if words[1] == "lr-find":
        return f"{command} {SHORT_TRAINING} --steps 10"
    if words[1:3] == ["check", "resume"]:
        return f"{command} {SHORT_TRAINING} {SMALL_DATA} {SMALL_MODEL}"
    if words[1] == "sweep":
        return f"{re.sub(r'--random [0-9]+', '--random 2', command)} {SHORT_TRAINING} {SMALL_DATA}"
    if words[1] == "compare":
        command = re.sub(r"--(params|tokens|seconds|epochs|limit) \S+", "", command)
        command += "" if "--data" in words else " --data my.txt"
        limit = " --limit 10" if "--long-data" in words else ""
        budget = "--epochs 0.2" if re.search(r"\.(csv|conll)\b", command) else "--tokens 3k"
        return f"{command} --params 50k {budget}{limit}"
    return f"{command} --limit 10" if words[1] == "eval" and "runs/dates" in words else command


@contextlib.contextmanager
def short_tasks() -> Iterator[None]:
    """Synthetic tasks have few pairs, and `check resume` starts no processes."""
    defaults, run_process = task_pairs.__kwdefaults__, resume_check._run_process
    n, defaults["n"] = defaults["n"], N_PAIRS
    resume_check._run_process = train_until
    try:
        yield
    finally:
        defaults["n"], resume_check._run_process = n, run_process


# ── surroundings ──────────────────────────────────────────────────────────────────────────────────────────────────


class _Copies(io.RawIOBase):
    """A stream that writes to several buffers."""

    def __init__(self, *buffers: bytearray):
        self.buffers = buffers

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        for buffer in self.buffers:
            buffer += bytes(data)
        return len(data)


@contextlib.contextmanager
def captured(printed: Printed, data: bytes = b"") -> Iterator[None]:
    """Standard output and error go to `printed`, and standard input is `data`."""
    out = io.TextIOWrapper(_Copies(printed.out, printed.both), encoding="utf-8", write_through=True)  # type: ignore
    err = io.TextIOWrapper(_Copies(printed.both), encoding="utf-8", write_through=True)  # type: ignore
    stdin, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(data), encoding="utf-8")
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            yield
    finally:
        sys.stdin = stdin


@contextlib.contextmanager
def _changed_environment(settings: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def forgotten_modules(folder: Path) -> Iterator[None]:
    """Forget what the block imports from a folder: every command is a process of its own."""
    try:
        yield
    finally:
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and Path(file).is_relative_to(folder):
                del sys.modules[name]

"""Run the blocks of a page in order, in one folder, as a reader would who copies them."""

import ast
import contextlib
import importlib.metadata
import io
import os
import re
import shutil
import sys
import time
import tokenize
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.docs.blocks import Block, Command, Line, read_blocks, read_commands
from tests.docs.commands import (
    Printed,
    captured,
    forgotten_modules,
    run_command,
    short_tasks,
    shortened,
    written_paths,
)
from tests.docs.expected import Tolerance
from tests.plugin_registries import restored_registries

RUN_LANGUAGES = ("python", "console")
ARROW = re.compile(r"^# ?→ ?")
ERRORS = ("Error:", "Usage:")
TERMINAL = {"COLUMNS": "80", "LINES": "24", "NO_COLOR": "1"}


@dataclass
class Report:
    """What became of the blocks of a page."""

    n_run: int = 0
    skipped: dict[str, str] = field(default_factory=dict)  # place → reason
    failures: list[str] = field(default_factory=list)


class BlockError(Exception):
    """A block that cannot be run to its end."""


class Session:
    """Runs the blocks of one page in the working directory; those marked with `docs-check` only if `run_marked`."""

    def __init__(self, page: Path, *, run_marked: bool = False, on_message: Callable[[str], None] = lambda text: None):
        self.page, self.run_marked, self.on_message = page, run_marked, on_message
        self.report = Report()
        self.given = set(Path().rglob("*"))  # what is there before the page starts
        self.module = types.ModuleType("page_of_docs")

    def run(self) -> Report:
        with self._environment():
            for block in read_blocks(self.page):
                try:
                    self._run_block(block)
                except BlockError as error:  # later blocks rely on this one
                    self.report.failures.append(str(error))
                    break
        return self.report

    @contextlib.contextmanager
    def _environment(self) -> Iterator[None]:
        environment, path = dict(os.environ), list(sys.path)
        os.environ.update(TERMINAL, PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        sys.modules[self.module.__name__] = self.module  # classes look their module up
        torch.manual_seed(0)
        try:
            with restored_registries():
                yield
        finally:
            del sys.modules[self.module.__name__]
            sys.path[:] = path
            os.environ.clear()
            os.environ.update(environment)

    def _run_block(self, block: Block) -> None:
        if block.language == "toml" and (file := re.search(r"[Ss]ave this as\s+`([\w./-]+)`", block.before)):
            Path(file[1]).write_text(block.code, encoding="utf-8")
        if block.language not in RUN_LANGUAGES:
            return
        reason = block.marks.get("docs-check")
        obstacle = reason and (what_is_missing(reason) if self.run_marked else reason)
        if obstacle:
            self.report.skipped[block.place()] = obstacle
            self.on_message(f"{block.place()}: not run: {obstacle}")
            return
        start = time.perf_counter()
        with short_tasks() if is_shortened(block) else contextlib.nullcontext():
            self._run_console(block) if block.language == "console" else self._run_python(block)
        self.report.n_run += 1
        if reason:
            self.on_message(f"{block.place()}: run in {time.perf_counter() - start:.0f} s ({reason})")

    def _check(self, block: Block, expected: Sequence[Line], printed: Printed) -> None:
        """Note where the output differs from that on the page."""
        if expected and "output" not in block.marks and (mismatch := printed.compare(expected, tolerance_of(block))):
            self.report.failures.append(f"{block.place(mismatch.line)}: {mismatch.text}")

    # ── console ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _run_console(self, block: Block) -> None:
        for command in read_commands(block):
            text = shortened(command.text) if is_shortened(block) else command.text
            self._clear(written_paths(text))
            printed = Printed()
            with restored_registries(), forgotten_modules(Path.cwd()):
                code = run_command(text, printed)
            expects_error = any(line.text.startswith(ERRORS) for line in command.output)
            if (code != 0) != expects_error:
                place = block.place(command.line)
                raise BlockError(f"{place}: `{text}` ended with exit code {code}\n{printed.last_lines}")
            self._check_effect(block, command, printed)
            self._check(block, command.output, printed)

    def _clear(self, paths: Sequence[Path]) -> None:
        """Remove what a command writes, if it was there before the page started: on a reader's machine it is new."""
        for path in paths:
            if path in self.given and path.exists():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
                self.given.discard(path)

    def _check_effect(self, block: Block, command: Command, printed: Printed) -> None:
        """A command of Headway prints something, or writes what --out names."""
        output = re.search(r" (?:--out|-o|>) (\S+)", command.text)
        if command.text.startswith("headway ") and not (Path(output[1]).exists() if output else printed.both):
            raise BlockError(f"{block.place(command.line)}: `{command.text}` has no effect")

    # ── Python ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _run_python(self, block: Block) -> None:
        """Statement by statement, so that each can be compared with the value in its comment."""
        expected = arrow_comments(block)
        everything = Printed()
        for statement in ast.parse(block.code).body:
            last_line = statement.end_lineno or statement.lineno
            value, printed = self._run_statement(block, statement)
            everything += printed
            if lines := expected.pop(last_line, None):
                self._check(block, lines, printed if printed.out else shown(value, lines, tolerance_of(block)))
        if expected:
            raise BlockError(f"{block.place(block.line - 1 + min(expected))}: `# →` follows no statement of the block")
        self._check(block, block.output, everything)

    def _run_statement(self, block: Block, statement: ast.stmt) -> tuple[Any, Printed]:
        """The value of an expression, or of what is assigned; and what is printed."""
        ast.increment_lineno(statement, block.line - 1)  # tracebacks name the line of the page
        names, file, printed, value = vars(self.module), str(block.page), Printed(), None
        try:
            with captured(printed):
                if isinstance(statement, ast.Expr):
                    value = eval(compile(ast.Expression(statement.value), file, "eval"), names)
                else:
                    exec(compile(ast.Module([statement], []), file, "exec"), names)
        except (Exception, SystemExit) as error:
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
            place = block.place(lines[-1] if lines else statement.lineno)
            raise BlockError(f"{place}: {type(error).__name__}: {error}") from error
        if isinstance(statement, ast.Assign):
            value = eval(ast.unparse(statement.targets[0]), names)
        return value, printed


def is_shortened(block: Block) -> bool:
    """Where the output is not compared, training may be shorter than on the page."""
    return "output" in block.marks and "docs-check" not in block.marks


def tolerance_of(block: Block) -> Tolerance:
    return Tolerance.parse(block.marks.get("tolerance"))


def shown(value: Any, expected: Sequence[Line], tolerance: Tolerance) -> Printed:
    """A value as the page may write it: as Python shows it, or a tensor as a list."""
    forms = [repr(value), str(value), *([repr(value.tolist())] if hasattr(value, "tolist") else [])]
    return next((p for p in map(Printed.of, forms) if p.compare(expected, tolerance) is None), Printed.of(forms[-1]))


def arrow_comments(block: Block) -> dict[int, list[Line]]:
    """Values in comments such as `# → 0.88`, by the last line (in the block) of the statement that they follow. Further
    lines of output are in comments below it."""
    expected: dict[int, list[Line]] = {}
    statement_end = 0
    for token in tokenize.generate_tokens(io.StringIO(block.code).readline):
        if token.type == tokenize.NEWLINE:
            statement_end = token.start[0]
        elif token.type == tokenize.COMMENT and (arrow := ARROW.match(token.string)):
            row = token.start[0]
            is_below = not token.line[: token.start[1]].strip()
            line = Line(block.line - 1 + row, token.string[arrow.end() :])
            expected.setdefault(statement_end if is_below else row, []).append(line)
    return expected


def what_is_missing(reason: str) -> str | None:
    """Why this machine cannot run a block that is marked with this reason, or None if it can."""
    if re.search(r"\b(installs|network|placeholders?|your own)\b", reason):
        return reason
    if re.search(r"\bGPUs?\b", reason) and not torch.cuda.is_available():
        return f"{reason}; this machine has none"
    if "data set" in reason and not os.environ.get("HEADWAY_DATA"):
        return f"{reason}; HEADWAY_DATA is not set"
    if package := re.search(r"\bpackage `?([\w-]+)", reason):
        try:
            importlib.metadata.distribution(package[1])
        except importlib.metadata.PackageNotFoundError:
            return f"{reason}; it is not installed"
    return None

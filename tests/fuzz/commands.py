"""Random command lines: each ends with a documented exit code and a clear message, and leaves its inputs unchanged."""

import contextlib
import importlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from headway.cli import main
from headway.errors import HeadwayError
from tests.fuzz.command_lines import random_command
from tests.fuzz.harness import Area
from tests.fuzz.inputs import make_inputs

EXIT_CODES = (0, 1, 2, 130)
REPORTS_BY_EXIT_CODE = ("check", "quiz", "sweep")  # they may fail with a result and without an error
STDINS = [b"", b"abc\ndef\n", b"1 2 3\n", b"\xff\xfe\n", b'{"ids": [1]}\n', b"{\n"]
MAX_ARGUMENT_BYTES = 100_000  # of one word, for the system


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


class Commands(Area):
    """In this process, which spares the seconds that importing torch takes."""

    name = "commands"
    full_count = 5000
    ci_count = 25

    def prepare(self) -> None:
        self.inputs, self.work = self.folder / "inputs", self.folder / "work"
        environment = {"HOME": "home", "TMPDIR": "tmp", "HEADWAY_CACHE": "cache", "MPLCONFIGDIR": "matplotlib"}
        for variable, name in environment.items():
            (self.folder / name).mkdir(exist_ok=True)
            os.environ[variable] = str(self.folder / name)
        importlib.import_module("matplotlib.font_manager")  # lists the fonts of the system, for seconds, once
        make_inputs(self.inputs)
        self.pristine = digest(self.inputs)
        self.places = {path.name for path in self.folder.iterdir()} | {"work"}

    def case(self, rng: random.Random) -> str:
        words, stdin = random_command(rng), rng.choice(STDINS)
        self._make_work_folder()
        resumed = "--resume" in words
        try:
            if resumed:  # continues a run in place: it gets a copy
                shutil.copytree(self.inputs, self.folder / "kept", symlinks=True, copy_function=_copy)
            outcome = self.run(words, stdin)
            self._check(words, outcome)
            if not resumed and digest(self.inputs) != self.pristine:
                self.fail("an input was changed")
            elsewhere = {path.name for path in self.folder.iterdir()} - self.places - {"kept"}
            if elsewhere or list((self.folder / "home").iterdir()):
                self.fail(f"something was written outside the working folder: {sorted(elsewhere)}")
        except AssertionError as error:
            shown = (ascii(word if len(word) < 200 else f"{word[:20]}…{len(word)}") for word in words)
            raise AssertionError(f"{error}: headway {' '.join(shown)}") from error.__cause__
        finally:
            os.chdir(self.folder)
            shutil.rmtree(self.work, ignore_errors=True)
            if resumed:
                shutil.rmtree(self.inputs)
                (self.folder / "kept").rename(self.inputs)
        return f"exit {outcome.code}"

    def run(self, words: list[str], stdin: bytes) -> Outcome:
        streams = {"stdout": "strict", "stderr": "backslashreplace"}  # as Python opens them
        captured = {name: io.TextIOWrapper(io.BytesIO(), "utf-8", errors) for name, errors in streams.items()}
        code: object = 0
        stdin_before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(stdin), "utf-8")
        environment = dict(os.environ)
        try:
            with contextlib.redirect_stdout(captured["stdout"]), contextlib.redirect_stderr(captured["stderr"]):
                main(list(words))
        except SystemExit as end:
            code = 0 if end.code is None else end.code
        except HeadwayError as error:
            self.fail(f"{type(error).__name__} left main: {error}")
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error!s:.300}") from error
        finally:
            sys.stdin = stdin_before
            os.environ.clear()
            os.environ.update(environment)
        texts = [stream.buffer.getvalue().decode() for stream in captured.values() if stream.flush() is None]  # type: ignore[attr-defined]
        if not isinstance(code, int):
            self.fail(f"exit code {code!r}")
        return Outcome(int(str(code)), *texts)

    def _make_work_folder(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        (self.work / "existing").mkdir(parents=True)
        (self.work / "existing" / "file").write_text("mine\n")
        (self.work / "existing.jsonl").write_text('{"mine": 1}\n')
        (self.work / "loop").symlink_to("loop")
        os.chdir(self.work)

    def _check(self, words: list[str], outcome: Outcome) -> None:
        if outcome.code not in EXIT_CODES:
            self.fail(f"exit code {outcome.code}, {outcome.err[-300:]!r}")
        if "Traceback (most recent call last)" in outcome.err:
            self.fail(f"a traceback: {outcome.err[-600:]}")
        if outcome.code and not outcome.err.strip() and words[0] not in REPORTS_BY_EXIT_CODE:
            self.fail(f"exit code {outcome.code} without a word")
        if outcome.code == 0 and words[-1] == "--json" and words.count("--json") == 1 and "--print-config" not in words:
            for line in outcome.out.splitlines():
                try:
                    json.loads(line, parse_constant=_refuse)
                except ValueError as error:
                    self.fail(f"stdout is not JSON ({error}): {line[:200]!r}")
        if (self.work / "existing" / "file").read_text() != "mine\n":
            self.fail("a file of the user was changed")


class Processes(Commands):
    """In a process of its own, as a user starts it."""

    name = "processes"
    full_count = 300
    ci_count = 2

    def run(self, words: list[str], stdin: bytes) -> Outcome:
        words = [word[:MAX_ARGUMENT_BYTES].replace("\0", "") for word in words]
        done = subprocess.run([sys.executable, "-m", "headway", *words], input=stdin, capture_output=True, check=False)
        return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode(errors="backslashreplace"))


def digest(folder: Path) -> str:
    """A hash of every name and every byte in a folder; pipes and links by their kind."""
    total = sha256()
    for path in sorted(folder.rglob("*")):
        total.update(str(path.relative_to(folder)).encode())
        if path.is_file() and not path.is_symlink():
            total.update(path.read_bytes())
    return total.hexdigest()


def _copy(source: str, target: str) -> str:
    """Copy a file; a pipe is made anew instead of read."""
    if Path(source).is_fifo():
        os.mkfifo(target)
        return target
    return str(shutil.copy2(source, target))


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")

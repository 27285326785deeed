"""SIGTERM, SIGHUP and Ctrl-C sent to every command at random moments: it ends in time, and no file is half-written."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil

from headway.runs import Run
from tests.fuzz import tiny_runs, warm_processes
from tests.fuzz.harness import Area

MAX_SECONDS = 2.0  # from the signal to the exit; training: its step and its checkpoint, which take milliseconds here
SHARE_OF_PROCESSES = 0.1  # cases that start an interpreter of their own, to be hit while it imports
SECONDS_TO_IMPORT = 3.0
STARTED = "started"  # a file that tells that a command has begun
CACHES_OF_TORCH = "torchinductor_"
TINY = (
    "--set model.n_layers=1 --set model.d_model=32 --set model.n_heads=2 --set train.batch_size=4 "
    "--set tokenizer.vocab_size=300 --set train.threads=1 --set data.path={inputs}/my.txt"
)

# Every command as a job of about a second. What trains can be continued.
COMMANDS = {
    "demo": f"demo {TINY} --set train.steps=20 --out run",
    "lr-find": f"lr-find demo {TINY} --steps 40",
    "sweep": f"sweep demo {TINY} --grid train.lr=1e-3,1e-2 --set train.steps=10 --out sweep",
    "sweep --jobs": f"sweep demo {TINY} --grid train.lr=1e-3,1e-2 --set train.steps=10 --out sweep --jobs 2",
    "compare": "compare ngram rnn gpt --data {inputs}/my.txt --tokens 5k --params 20k --set tokenizer.vocab_size=300 "
    "--set train.threads=1 --out compared",
    "train ngram": "train ngram --set data.path={inputs}/my.txt --set model.order=4 --out run",
    "generate": "generate {inputs}/demo the --max-new-tokens 200",
    "generate --in": "generate {inputs}/demo --in {inputs}/prompts.txt --out texts.jsonl --max-new-tokens 40",
    "translate": "translate {inputs}/pairs --in {inputs}/prompts.txt --out texts.jsonl",
    "classify": "classify {inputs}/classify --in {inputs}/short.txt --out labels.jsonl",
    "tag": "tag {inputs}/tag --in {inputs}/short.txt --out tags.jsonl",
    "answer": "answer {inputs}/span which --context-file {inputs}/short.txt",
    "fill": "fill {inputs}/masked --in {inputs}/masks.txt --out filled.jsonl",
    "embed": "embed {inputs}/masked --in {inputs}/short.txt --out vectors.npy",
    "convert": "convert {inputs}/words words.arpa",
    "convert to a folder": "convert {inputs}/demo model",
    "runs": "runs {inputs}",
    "show curves": "show curves {inputs}/demo --out curves.png",
    "show sampling": "show sampling {inputs}/demo the --set top_p=0.9 --out sampling.png",
    "show attention": "show attention {inputs}/demo the --out attention.png",
    "show sensitivity": "show sensitivity {inputs}/demo --text {inputs}/my.txt --distance 8 --out sensitivity.png",
    "show model": "show model gpt-mini",
    "models": "models",
    "cost": "cost gpt2 --seq-len 256 --device h200 --plot costs.png",
    "cost --measure": "cost gpt-tiny --measure --seq-len 32",
    "cost --growth": "cost gpt-tiny --growth --seq-len 64 --plot growth.png",
    "eval": "eval {inputs}/demo {inputs}/short.txt",
    "check resume": f"check resume demo {TINY} --kills 1 --steps 6",
    "check cached": "check cached {inputs}/demo the",
    "check batched": "check batched {inputs}/demo the",
    "check contract": "check contract gpt",
    "data": "data {inputs}/my.txt",
    "data --prepare": "data {inputs}/my.txt --tokenizer {inputs}/bpe --prepare",
    "tokenizer train": "tokenizer train {inputs}/my.txt --vocab-size 600 --out tokenizer",
    "tokenizer train unigram": "tokenizer train {inputs}/my.txt --kind unigram --vocab-size 200 --out tokenizer",
    "tokenizer train wordpiece": "tokenizer train {inputs}/my.txt --kind wordpiece --vocab-size 300 --out tokenizer",
    "tokenizer encode": "tokenizer encode {inputs}/bpe to be or not",
    "tokenizer decode": "tokenizer decode {inputs}/bpe 5 6",
    "tokenizer show": "tokenizer show {inputs}/bpe {inputs}/my.txt --lines 50",
}
SETUP = (
    f"train demo {TINY} --set train.steps=3 --out {{inputs}}/demo",
    "train ngram --set data.path={inputs}/my.txt --set model.order=4 --out {inputs}/words",
    "tokenizer train {inputs}/my.txt --vocab-size 300 --out {inputs}/bpe",
)
WORDS = ("the", "cat", "sat", "on", "mat", "and", "dog", "lay", "by", "door", "while", "rain", "fell", "over")
TRAINING = ("demo", "sweep", "sweep --jobs", "compare", "train")


class Signals(Area):
    """A command gets a signal. One that trains is resumed, and must then equal the undisturbed run."""

    name, full_count, ci_count = "signals", 400, 1
    max_seconds = 120.0

    def prepare(self) -> None:
        warm_processes.warm_up()
        self.recipes = tiny_runs.recipes(self.folder)
        self.inputs = self.folder / "inputs"
        self.inputs.mkdir()
        rng = random.Random(1)
        lines = [" ".join(rng.choices(WORDS, k=12)) for _ in range(3000)]
        (self.inputs / "my.txt").write_text("\n".join(lines))
        (self.inputs / "short.txt").write_text("\n".join(lines[:300]))
        (self.inputs / "prompts.txt").write_text("".join(f"{line[:8]}\n" for line in lines[:60]))
        self.seconds: dict[str, float] = {}  # of each command, undisturbed
        (self.inputs / "masks.txt").write_text("".join(f"[MASK] {line[:30]}\n" for line in lines[:200]))
        for command in SETUP:
            words = command.format(inputs=self.inputs).split()
            warm_processes.finished(run_command, words, self.folder, output=self.folder / "output")

    def case(self, rng: random.Random) -> str:
        name = rng.choice([*COMMANDS, *(f"train {name}" for name in self.recipes)])
        number = rng.choice([signal.SIGTERM, signal.SIGTERM, signal.SIGHUP, signal.SIGHUP, signal.SIGINT])
        is_own_process = rng.random() < SHARE_OF_PROCESSES
        fraction, n_signals = rng.random(), rng.choice([1, 1, 1, 2])
        for _ in range(2):  # on a busy machine one that is late may be late by chance
            case = _Case(self, name, Path(tempfile.mkdtemp(dir=self.folder)), is_own_process)
            try:
                outcome, seconds = case.run(number, fraction, n_signals)
            finally:
                shutil.rmtree(case.folder, ignore_errors=True)
            if seconds <= MAX_SECONDS:
                return outcome
        raise AssertionError(f"{name}: ended {seconds:.1f} s after {number.name}, twice")

    def command(self, name: str, folder: Path) -> list[str]:
        """The words of a command. A run to train is described by a recipe in a file."""
        if name in COMMANDS:
            for model in re.findall(r"\{inputs\}/(\w+)\b(?!\.)", COMMANDS[name]):
                if model in self.recipes and not (self.inputs / model).exists():
                    os.symlink(self._reference(model), self.inputs / model)
            return COMMANDS[name].format(inputs=self.inputs).split()
        recipe = folder / "recipe.toml"
        recipe.write_text(self.recipes[name.removeprefix("train ")].to_toml())
        return ["train", str(recipe), "--out", "run"]

    def duration(self, name: str) -> float:
        """Seconds that a command takes when nothing disturbs it; it must succeed then."""
        if name not in self.seconds:
            folder = self.folder / "undisturbed command"
            folder.mkdir()
            command = self.command(name, folder)
            self.seconds[name] = warm_processes.timed(
                lambda: warm_processes.finished(run_command, command, folder, output=folder / "output")
            )
            shutil.rmtree(folder)
        return self.seconds[name]

    def _reference(self, name: str) -> Path:
        """A run that nothing disturbs."""
        run = self.folder / "undisturbed" / name
        if not run.exists():
            run.parent.mkdir(exist_ok=True)
            arguments = (self.recipes[name], run, self.folder / f"cache of {name}")
            warm_processes.finished(tiny_runs.train, *arguments, output=self.folder / "output")
        return run

    def check_resumed(self, name: str, run: Path) -> None:
        """A run that was stopped, once resumed, equals the undisturbed one."""
        arguments = (self.recipes[name], run, run.parent / "cache")
        warm_processes.finished(tiny_runs.train, *arguments, output=run.parent / "output of resume")
        tiny_runs.check_same(self._reference(name), run)


class _Case:
    """One command in a folder of its own, which has its cache and its temporary files too."""

    def __init__(self, area: Signals, name: str, folder: Path, is_own_process: bool):
        self.area, self.name, self.folder, self.is_own_process = area, name, folder, is_own_process
        self.is_training = name.split()[0] in TRAINING and name != "train ngram"

    def run(self, number: signal.Signals, fraction: float, n_signals: int) -> tuple[str, float]:
        """Returns what happened, and the seconds from the signal to the exit."""
        seconds = self.area.duration(self.name) + (SECONDS_TO_IMPORT if self.is_own_process else 0)
        command = self.area.command(self.name, self.folder)
        start = _start_interpreter if self.is_own_process else _start_warm
        process = start(command, self.folder)
        while not (self.folder / STARTED).exists() and process.exitcode is None:
            time.sleep(0.001)
        process.join(fraction * seconds)
        if process.exitcode is not None:
            return "ended before", 0.0
        signalled = time.monotonic()
        with suppress(ProcessLookupError):  # it ends just now
            os.kill(process.pid or 0, number)
            if n_signals == 2:
                process.join(0.6)
                if process.exitcode is None:
                    os.kill(process.pid or 0, number)
        process.join(30)
        seconds = time.monotonic() - signalled
        if process.exitcode is None:
            process.kill()
            raise AssertionError(f"{self.name}: still running 30 s after {number.name}")
        return self._check(number, process.exitcode), seconds

    def _check(self, number: signal.Signals, code: int) -> str:
        output = self.folder / "output"
        errors = output.read_text(errors="replace") if output.exists() else ""
        for word in ("Traceback", "Exception ignored", "Fatal Python error"):
            assert word not in errors, f"{self.name}, {number.name}: {errors[errors.find(word) :][:1500]}"
        # Before Python runs our code and after it has, a signal has its default effect.
        allowed = {0: "finished", 128 + number: "ended", -number: "ended", -signal.SIGKILL: "killed"}
        if self.is_training:
            allowed[130] = "stopped and saved"
        assert code in allowed, f"{self.name}: exit code {code} after {number.name}: {errors[-1000:]}"
        _wait_for_processes(self.folder)
        self._check_files()
        if self.name.startswith("train ") and self.name not in COMMANDS:
            self.area.check_resumed(self.name.removeprefix("train "), self.folder / "run")
        elif self.name == "train ngram" and code:
            run = self.folder / "run"
            assert not run.exists() or not Run.exists(run) or Run(run).checkpoint_steps(), "half a run of an n-gram"
        return allowed[code]

    def _check_files(self) -> None:
        """Only the shards that were finished before remain, for the next attempt."""
        left = [path for path in (self.folder / "tmp").iterdir() if not path.name.startswith(CACHES_OF_TORCH)]
        for path in self.folder.rglob("*"):
            is_temporary = path.suffix in (".tmp", ".partial", ".old", ".removed")
            is_resumable = path.suffix == ".partial" and path.parent.name == "tokens"
            if is_temporary and not is_resumable:
                left.append(path)
        assert not left, f"{self.name} left {', '.join(str(path.relative_to(self.folder)) for path in left[:5])}"


def run_command(command: list[str], folder: Path) -> None:
    """Run a command line in this process, as if it had just been started."""
    from headway.__main__ import main

    os.chdir(folder)
    os.environ |= _environment(folder)
    tempfile.tempdir = None
    sys.argv = ["headway", *command]
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    (folder / STARTED).touch()
    code: object = 0
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


def _environment(folder: Path) -> dict[str, str]:
    (folder / "tmp").mkdir(exist_ok=True)
    return {
        "HEADWAY_CACHE": str(folder / "cache"),
        "TMPDIR": str(folder / "tmp"),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }


def _start_warm(command: list[str], folder: Path) -> BaseProcess:
    (folder / "tmp").mkdir(exist_ok=True)
    return warm_processes.start(run_command, command, folder, output=folder / "output")


class _Interpreter:
    """A subprocess with the interface of multiprocessing."""

    def __init__(self, command: list[str], folder: Path):
        (folder / STARTED).touch()
        with open(folder / "output", "wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headway", *command],
                cwd=folder,
                env={**os.environ, **_environment(folder)},
                stdout=output,
                stderr=output,
            )
        self.pid, self.kill = self._process.pid, self._process.kill

    @property
    def exitcode(self) -> int | None:
        return self._process.poll()

    def join(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)


def _start_interpreter(command: list[str], folder: Path) -> _Interpreter:
    return _Interpreter(command, folder)


def _wait_for_processes(folder: Path) -> None:
    """The processes that a command has started end with it: its watchdog, and the workers of a sweep."""
    deadline = time.monotonic() + MAX_SECONDS
    while left := [process for process in psutil.process_iter() if _is_in(process, folder)]:
        assert time.monotonic() < deadline, f"goes on after its command has ended: {left}"
        time.sleep(0.02)


def _is_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return Path(process.cwd()).is_relative_to(folder) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False

"""Check that resuming is exact: train once undisturbed and once killed (SIGKILL) at random steps, then compare.

Both runs are separate processes, started as a user would start them. Exact means every bit: weights, optimizer state,
random number generator states, and every number of the log except timings.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from safetensors.torch import load_file

from headway.config import Recipe, TokenizerConfig
from headway.errors import HeadwayError
from headway.files import CHECKSUMS, write_text
from headway.runs import PROGRESS_FILE, Run
from headway.termination import end_with_parent
from headway.training.progress import OnMessage
from headway.training.threads import logged_threads

TIMING_KEYS = {"seconds", "tokens_per_second", "mfu", "memory"}  # log fields that differ from run to run
STALL_SECONDS = 600.0  # without a new line in the log, after which a run counts as stalled
LOG_TAIL_BYTES = 4096


@dataclass
class ResumeReport:
    steps: int
    ranks: int
    kills: list[int] = field(default_factory=list)  # the last step logged before each kill
    resumed_from: list[int] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    @property
    def is_exact(self) -> bool:
        return not self.differences

    def to_dict(self) -> dict[str, Any]:
        return {"exact": self.is_exact, **asdict(self)}


def check_resume(
    recipe: Recipe,
    folder: Path,
    *,
    steps: int = 36,
    kills: int = 3,
    ranks: int = 1,
    seed: int | None = None,
    on_message: OnMessage = lambda line: None,
) -> ResumeReport:
    """Train in `folder`/undisturbed and in `folder`/killed, which is killed at `kills` random steps, and compare."""
    train = recipe.train.replace(
        steps=steps, epochs=None, max_seconds=None, log_every=1, save_every=max(1, steps // 7), keep_checkpoints=0
    )
    if ranks > 1 and train.parallel == "none":
        train = train.replace(parallel="ddp")
    recipe_file = Run(folder).recipe_file
    write_text(recipe_file, recipe.replace(train=train).to_toml())
    report = ResumeReport(steps, ranks)
    undisturbed, killed = Run(folder / "undisturbed"), Run(folder / "killed")
    on_message(f"undisturbed: {steps} steps" + (f" on {ranks} ranks ({train.parallel})" if ranks > 1 else ""))
    _run_process(recipe_file, undisturbed, ranks, None, folder)
    last_step = _last_logged_step(undisturbed)  # fewer than `steps` after early stopping
    train = train.replace(threads=logged_threads(undisturbed.read_log()) or train.threads)
    tokenizer = recipe.tokenizer
    if tokenizer.path is None:  # no need to train the same one again
        path = str(undisturbed.checkpoint_dir(last_step).absolute())
        tokenizer = TokenizerConfig(path=path, bpe_dropout=tokenizer.bpe_dropout)
    write_text(recipe_file, recipe.replace(train=train, tokenizer=tokenizer).to_toml())
    kill_steps = sorted(random.Random(seed).sample(range(1, last_step), min(kills, max(last_step - 1, 0))))
    for kill_step in kill_steps:
        if _run_process(recipe_file, killed, ranks, kill_step, folder):
            report.kills.append(_last_logged_step(killed))
            on_message(f"killed after step {report.kills[-1]}")
        else:
            on_message(f"the run ended before it could be killed after step {kill_step}")
    _run_process(recipe_file, killed, ranks, None, folder)
    report.resumed_from = [record["step"] for record in killed.read_log() if record.get("event") == "resume"]
    report.differences = differences(undisturbed, killed)
    if not report.kills:
        report.differences.append("nothing was tested: every process ended before it could be killed; try more --steps")
    return report


def _run_process(recipe_file: Path, run: Run, ranks: int, kill_step: int | None, folder: Path) -> bool:
    """Start or resume a run; kill it as soon as it has logged `kill_step`. Returns whether it was killed."""
    launcher = [] if ranks == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = ["-m", "headway", "train", str(recipe_file), "--out", str(run.path), "--resume"]
    output_file = folder / "output.txt"
    with open(output_file, "w", encoding="utf-8") as output:
        process = subprocess.Popen(
            [sys.executable, *launcher, *command],
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=end_with_parent(),
        )
    log_size, changed_at = -1, time.monotonic()
    try:
        while process.poll() is None:
            if kill_step is not None and _last_logged_step(run) >= kill_step:
                _kill(process)
                return process.returncode == -signal.SIGKILL
            if (size := run.log_file.stat().st_size if run.log_file.exists() else 0) != log_size:
                log_size, changed_at = size, time.monotonic()
            elif time.monotonic() - changed_at > STALL_SECONDS:
                raise HeadwayError(f"{run.path} has logged nothing for {STALL_SECONDS:.0f} seconds; see {output_file}")
            time.sleep(0.005)
    finally:
        if process.poll() is None:
            _kill(process)
    if process.returncode:
        text = output_file.read_text(encoding="utf-8", errors="replace").strip()
        raise HeadwayError(f"training ended with exit code {process.returncode}:\n{text[-2000:]}")
    return False


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """SIGKILL a process and its descendants; torchrun's workers have process groups of their own."""
    for descendant in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            descendant.kill()
    process.wait()


def _last_logged_step(run: Run) -> int:
    """The step of the last complete log line with a loss; reads only the end of the log."""
    try:
        with open(run.log_file, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return 0
    for line in reversed(lines):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and "loss" in record:
            return int(record["step"])
    return 0


def differences(a: Run, b: Run) -> list[str]:
    """The differences between the last checkpoints and the logs of two runs, in words; empty if there are none."""
    if a.checkpoint_steps()[-1:] != b.checkpoint_steps()[-1:]:
        return [f"the last checkpoints are of steps {a.checkpoint_steps()[-1:]} and {b.checkpoint_steps()[-1:]}"]
    step = a.checkpoint_steps()[-1]
    folders = [run.checkpoint_dir(step) for run in (a, b)]
    checksums = [json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))["files"] for folder in folders]
    lines = [
        f"checkpoints/step-{step}/{name} differs"
        for name in sorted({*checksums[0], *checksums[1]} - {PROGRESS_FILE})
        if checksums[0].get(name) != checksums[1].get(name) and not _has_same_tensors(*(f / name for f in folders))
    ]
    progress = [json.loads((folder / PROGRESS_FILE).read_text(encoding="utf-8")) for folder in folders]
    if _without_timings(progress[0]) != _without_timings(progress[1]):
        lines.append(f"checkpoints/step-{step}/{PROGRESS_FILE} differs")
    logs = [
        [_without_timings(record) for record in run.read_log() if record.get("event") not in ("start", "resume")]
        for run in (a, b)
    ]
    for record_a, record_b in zip(*logs, strict=False):
        if record_a != record_b:
            lines.append(f"the logs differ first at step {record_a.get('step')}: {record_a} and {record_b}")
            break
    if len(logs[0]) != len(logs[1]):
        lines.append(f"the logs have {len(logs[0])} and {len(logs[1])} lines")
    return lines


def _has_same_tensors(a: Path, b: Path) -> bool:
    """Whether two safetensors files hold the same tensors, bit for bit, in whatever order."""
    if a.suffix != ".safetensors" or not (a.is_file() and b.is_file()):
        return False
    tensors_a, tensors_b = load_file(a), load_file(b)
    return tensors_a.keys() == tensors_b.keys() and all(
        tensor.dtype == tensors_b[name].dtype and tensor.numpy().tobytes() == tensors_b[name].numpy().tobytes()
        for name, tensor in tensors_a.items()
    )


def _without_timings(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in TIMING_KEYS}

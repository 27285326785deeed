"""Is a resumed run the run? Train once undisturbed, once killed (SIGKILL) at random steps and resumed; compare.

Both are processes of their own, as a user would start them. Equal means every byte: weights, what the optimiser
remembers, the random numbers' state, and every number of the log but those that are timings.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from headway.config import Recipe, TokenizerConfig
from headway.errors import HeadwayError
from headway.files import CHECKSUMS, write_text
from headway.runs import Run

TIMINGS = {"seconds", "tokens_per_second", "mfu", "memory"}  # of a line of the log: what differs from run to run
PATIENCE = 600.0  # seconds without a new line of the log after which a run is given up


@dataclass
class ResumeReport:
    """What was found."""

    steps: int
    ranks: int
    kills: list[int] = field(default_factory=list)  # the last step each life that was killed had logged
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
    say: Callable[[str], None] = lambda line: None,
) -> ResumeReport:
    """Train in `folder`/undisturbed and `folder`/killed, and compare."""
    train = recipe.train.replace(
        steps=steps, max_seconds=None, log_every=1, save_every=max(1, steps // 7), keep_checkpoints=0
    )
    if ranks > 1 and train.parallel == "none":
        train = train.replace(parallel="ddp")
    file = Run(folder).recipe_file
    write_text(file, recipe.replace(train=train).to_toml())
    report = ResumeReport(steps, ranks)
    undisturbed, killed = Run(folder / "undisturbed"), Run(folder / "killed")
    say(f"undisturbed: {steps} steps" + (f" on {ranks} ranks ({train.parallel})" if ranks > 1 else ""))
    _live(file, undisturbed, ranks, None, folder)
    made = _last_step(undisturbed)  # early stopping may have ended it before
    if recipe.tokenizer.path is None:  # one for both: making another would prove nothing, and WordPiece's ties differ
        same = TokenizerConfig(
            path=str(undisturbed.checkpoint_dir(made).absolute()), bpe_dropout=recipe.tokenizer.bpe_dropout
        )
        write_text(file, recipe.replace(train=train, tokenizer=same).to_toml())
    targets = sorted(random.Random(seed).sample(range(1, made), min(kills, max(made - 1, 0))))
    for target in targets:
        if _live(file, killed, ranks, target, folder):
            report.kills.append(_last_step(killed))
            say(f"killed after step {report.kills[-1]}")
        else:
            say(f"had ended before it could be killed after step {target}")
    _live(file, killed, ranks, None, folder)
    report.resumed_from = [r["step"] for r in killed.read_log() if r.get("event") == "resume"]
    report.differences = differences(undisturbed, killed)
    if not report.kills:
        report.differences.append("nothing was shown: no process was killed before it ended; try more --steps")
    return report


def _live(recipe: Path, run: Run, ranks: int, until: int | None, folder: Path) -> bool:
    """Start or resume a run; kill it as soon as it has logged a step from `until` on. Returns whether it was killed."""
    command = [sys.executable, "-m", "headway", "train", str(recipe), "--out", str(run.path), "--resume"]
    if ranks > 1:
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m", "headway"]
        command[1:3] = launch
    with open(folder / "output.txt", "w", encoding="utf-8") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
    seen, changed = -1, time.monotonic()
    try:
        while process.poll() is None:
            if until is not None and _last_step(run) >= until:
                _kill(process)
                return process.returncode == -signal.SIGKILL
            if (size := run.log_file.stat().st_size if run.log_file.exists() else 0) != seen:
                seen, changed = size, time.monotonic()
            elif time.monotonic() - changed > PATIENCE:
                raise HeadwayError(f"{run.path} has made no step for {PATIENCE:.0f} seconds; see {folder}/output.txt")
            time.sleep(0.005)
    finally:
        if process.poll() is None:
            _kill(process)
    if process.returncode:
        said = (folder / "output.txt").read_text(encoding="utf-8", errors="replace").strip()
        raise HeadwayError(f"training ended with exit code {process.returncode}:\n{said[-2000:]}")
    return False


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """End a process and all that it started, at once. torchrun's workers are in groups of their own."""
    for pid in [process.pid, *_descendants(process.pid)]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _descendants(pid: int) -> list[int]:
    parents = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it may end while we look
            parents[int(file.parent.name)] = int(file.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    found = [pid]
    for known in found:  # grows while it is walked
        found += [child for child, parent in parents.items() if parent == known]
    return found[1:]


def _last_step(run: Run) -> int:
    """Of the last whole line that is of a step, reading only the end of the log."""
    try:
        with open(run.log_file, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
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
    """In what two runs differ, in words; nothing where they are the same run."""
    found: list[str] = []
    if a.checkpoint_steps()[-1:] != b.checkpoint_steps()[-1:]:
        return [f"the last checkpoints are of steps {a.checkpoint_steps()[-1:]} and {b.checkpoint_steps()[-1:]}"]
    last = a.checkpoint_steps()[-1]
    sums = [json.loads((run.checkpoint_dir(last) / CHECKSUMS).read_text(encoding="utf-8"))["files"] for run in (a, b)]
    unlike = [name for name in sorted({*sums[0], *sums[1]}) if sums[0].get(name) != sums[1].get(name)]
    unlike = [
        name for name in unlike if not _same_tensors(a.checkpoint_dir(last) / name, b.checkpoint_dir(last) / name)
    ]
    found += [f"checkpoints/step-{last}/{name} differs" for name in unlike if name != "training.json"]
    facts = [json.loads((run.checkpoint_dir(last) / "training.json").read_text(encoding="utf-8")) for run in (a, b)]
    if _lasting(facts[0]) != _lasting(facts[1]):
        found.append(f"checkpoints/step-{last}/training.json differs")
    logs = [
        [_lasting(record) for record in run.read_log() if record.get("event") not in ("start", "resume")]
        for run in (a, b)
    ]
    for one, other in zip(*logs, strict=False):
        if one != other:
            found.append(f"the logs differ first at step {one.get('step')}: {one} and {other}")
            break
    if len(logs[0]) != len(logs[1]):
        found.append(f"the logs have {len(logs[0])} and {len(logs[1])} lines")
    return found


def _same_tensors(a: Path, b: Path) -> bool:
    """Whether two files hold the same tensors, bit for bit: their headers may list them in another order."""
    if a.suffix != ".safetensors" or not (a.is_file() and b.is_file()):
        return False
    one, other = load_file(a), load_file(b)
    return one.keys() == other.keys() and all(
        tensor.dtype == other[name].dtype and tensor.numpy().tobytes() == other[name].numpy().tobytes()
        for name, tensor in one.items()
    )


def _lasting(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in TIMINGS}

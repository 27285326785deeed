"""Damaged and hostile run folders: read, loaded and resumed.

Whatever is loaded has the weights of one of the checkpoints as they were saved, and a run that is resumed ends as the
undisturbed one did, unless the damage was signed with new checksums.
"""

import json
import random
import shutil
from pathlib import Path

import headway
from headway.errors import HeadwayError
from headway.files import write_checksums
from headway.models.serialization import find_model
from headway.run_reader import TrainingRun
from headway.runs import Run
from headway.training.resume_check import differences
from tests.fuzz import tiny_runs
from tests.fuzz.harness import Area
from tests.fuzz.mutations import mutate_bytes, mutate_json_text, remove, replace_file
from tests.training.recipes import make, train_until_power_cut

CHECKPOINT_FILES = ("training.json", "checksums.json", "config.json", "model.safetensors", "training.safetensors")
NAMES = (
    "step-007",
    "step-٣",
    "step--1",
    "step-99999999999999999999",
    "step-3.damaged",
    ".step-2.x.old",
    ".step-4.x.removed",
)
SHARE_RESUMED = 0.15  # resuming takes half a second


def _is_small(path: Path) -> bool:
    return path.is_file() and path.stat().st_size < 10**7


class Runs(Area):
    name, full_count, ci_count = "runs", 1_000, 15

    def prepare(self) -> None:
        train = {**tiny_runs.SHORT, "keep_checkpoints": 0}
        recipe = make(self.folder, model=tiny_runs.TINY, train=train, eval={"every_steps": 2})
        headway.train(recipe, out=self.folder / "undisturbed", quiet=True)
        train_until_power_cut(recipe, self.folder / "stopped", 5)
        self.weights = [self._weights(folder) for folder in Run(self.folder / "undisturbed").models()]

    @staticmethod
    def _weights(path: Path) -> bytes:
        return b"".join(p.detach().numpy().tobytes() for p in headway.load(path).parameters())

    def case(self, rng: random.Random) -> str:
        run = self.folder / "run"
        remove(run)
        shutil.copytree(self.folder / "stopped", run)
        is_signed = False
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            is_signed |= self._damage(run, rng)
        try:
            self._read(run)
            outcome = self._load(run, is_signed)
            if rng.random() < SHARE_RESUMED:
                outcome = self._resume(run, is_signed)
        finally:
            remove(run)
        return outcome

    def _damage(self, run: Path, rng: random.Random) -> bool:
        """Change something; returns whether the checksums of a checkpoint were made to fit."""
        checkpoints = sorted(run.glob("checkpoints/step-*"))
        checkpoint = rng.choice(checkpoints) if checkpoints else run
        file = rng.choice([run / "log.jsonl", run / "log.jsonl", *(checkpoint / name for name in CHECKPOINT_FILES)])
        is_signed = rng.random() < 0.4 and file.parent == checkpoint
        match rng.randrange(8):
            case 0 | 1 if _is_small(file):
                file.write_bytes(mutate_bytes(file.read_bytes(), rng))
            case 2 | 3 if file.suffix == ".json" and _is_small(file):
                try:
                    file.write_text(mutate_json_text(json.loads(file.read_text()), rng))
                except (ValueError, RecursionError):  # mutated before
                    file.write_text("{}")
            case 4 if _is_small(run / "log.jsonl"):
                lines = (run / "log.jsonl").read_text(errors="replace").splitlines() or [""]
                lines[rng.randrange(len(lines))] = mutate_json_text({"step": 3, "event": "start", "loss": 2.0}, rng)
                (run / "log.jsonl").write_text("\n".join(lines), errors="replace")
            case 5 if file.parent.is_dir():
                replace_file(file, rng)
            case 6 if checkpoint != run:
                target = checkpoint.with_name(rng.choice(NAMES))
                if not target.exists():
                    checkpoint.rename(target)
            case 7 if checkpoint != run:
                replace_file(checkpoint, rng)
        if is_signed and checkpoint.is_dir() and all(_is_small(path) for path in checkpoint.iterdir()):
            remove(checkpoint / "checksums.json")
            write_checksums(checkpoint)
        return is_signed

    def _read(self, run: Path) -> None:
        """Every property of an opened run has a value, whatever its files hold."""
        opened = TrainingRun(run)
        names = ("status", "steps", "seconds", "n_tokens", "n_params", "failure", "history", "validation", "samples")
        for name in (
            *names,
            "scores",
            "primary_score",
            "metadata",
            "last_metrics",
            "settings",
            "family",
            "checkpoints",
        ):
            getattr(opened, name)
        repr(opened)

    def _load(self, run: Path, is_signed: bool) -> str:
        try:
            best = find_model(run)
            assert best == TrainingRun(run).best.path
            weights = self._weights(run)
        except HeadwayError as error:
            return "refused" if str(error).strip() else "finding"
        assert is_signed or weights in self.weights, "other weights than were saved"
        return "loaded"

    def _resume(self, run: Path, is_signed: bool) -> str:
        headway.train(run, resume=True, quiet=True)
        lines = [] if is_signed else differences(Run(self.folder / "undisturbed"), Run(run))
        # Damaged lines of the log are dropped: it may be shorter, but no other file may differ.
        lines = [line for line in lines if not line.startswith("the logs")]
        assert not lines, "; ".join(lines)
        return "resumed"

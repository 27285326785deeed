"""A run's folder as a state machine: saved, pruned, killed at any file operation, damaged, resumed and read.

Whatever the order, a reader sees whole checkpoints only, the newest intact one is found, the best one is kept, and the
log has every step once.
"""

import json
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headway.errors import CheckpointError
from headway.files import new_directory, verify_checksums, write_checksums
from headway.runs import Run, best_checkpoint, read_progress
from tests.killing import killed_after

LIVES = 10**6  # file operations before the process dies: more than there are
KILLS = st.one_of(st.just(LIVES), st.integers(0, 40), st.integers(24, 40))  # a save takes 27, and 8 more per deletion
SCORES = st.sampled_from([1.0, 2.0, 3.0, 4.0])


class RunFolder(RuleBasedStateMachine):
    @initialize(kill=KILLS, keep=st.integers(0, 2), save_every=st.integers(1, 2))
    def create(self, kill, keep, save_every):
        """Killed or not: the second attempt succeeds, and a run that exists is never created again."""
        self.folder = Path(tempfile.mkdtemp())
        self.run, self.keep, self.save_every = Run(self.folder / "run"), keep, save_every
        self.step, self.damaged_steps = 0, set()
        self.scores = {}  # of every step that was saved, also of those deleted since
        recipe = "[train]\nsteps = 100\n"
        for operations in (kill, LIVES):
            try:
                with killed_after(operations), Run.create(self.run.path, recipe):
                    pass
            except CheckpointError:
                assert operations == LIVES
        assert self.run.recipe_file.read_text() == recipe
        self._save(3.0, LIVES)

    def _save(self, score, kill):
        """As the trainer does: a line of the log, the checkpoint, then the old ones are deleted. Returns whether the
        process lived."""
        step, best = self.step, self._best_step({**self.scores, self.step: score})
        is_done = False
        with killed_after(kill):
            self.run.log(step=step, loss=score)
            with new_directory(self.run.checkpoint_dir(step), overwrite=True) as partial:
                for name in ("config.json", "model.safetensors"):
                    (partial / name).write_text(f"{name} of step {step}, score {score}")
                progress = {"step": step, "score": {"selection_loss": score}}
                (partial / "training.json").write_text(json.dumps(progress))
                write_checksums(partial)
            self.run.prune(self.keep, best, self.save_every)
            is_done = True
        folder = self.run.checkpoint_dir(step)
        if folder.is_dir():
            self.scores[step] = read_progress(folder)["score"]["selection_loss"]
            self.damaged_steps.discard(step)
        return is_done

    @staticmethod
    def _best_step(scores):
        return min(scores, key=lambda step: (scores[step], -step))

    def _resume(self, kill=LIVES):
        """After a process died: find the checkpoint, and drop what is newer. If it is killed itself, resume again."""
        for operations in (kill, LIVES):
            with killed_after(operations):
                self.run.remove_partial()
                found = self.run.newest_intact()
                self.run.rewind(found, self.run.recipe_file.read_text())
        on_disk = self.run.checkpoint_steps()
        assert found == max(step for step in on_disk if step not in self.damaged_steps)
        assert max(on_disk) == found  # newer ones were damaged, and are set aside
        if self.damaged_steps - set(on_disk):  # the best one may be among those set aside
            self.scores = {step: self.scores[step] for step in on_disk}
        self.step, self.damaged_steps = found, self.damaged_steps & set(on_disk)
        assert not [path for path in self.run.checkpoints.iterdir() if path.name.startswith(".")]

    @rule(score=SCORES, kill=KILLS)
    def train_and_save(self, score, kill):
        self.step += 1
        if self._save(score, kill):
            assert self.run.checkpoint_dir(self.step).is_dir()
        else:
            self._resume()

    @rule(score=SCORES, kill=KILLS)
    def save_the_same_step_again(self, score, kill):
        """As after another evaluation. The log has its step already."""
        log = self.run.read_log()
        if not self._save(score, kill):
            self._resume()
        kept = [record for record in log if record["step"] <= self.step]
        self.run.log_file.write_text("".join(json.dumps(record) + "\n" for record in kept))

    @rule(text=st.sampled_from(["{", '{"step": 7, "lo', "\udcff", "[" * 5000]))
    def cut_a_line_of_the_log(self, text):
        with open(self.run.log_file, "ab") as file:
            file.write(text.encode("utf-8", "surrogateescape"))

    @rule(kill=KILLS)
    def resume_an_ended_run(self, kill):
        self._resume(kill)

    @precondition(lambda self: len(set(self.run.checkpoint_steps()) - self.damaged_steps) > 1)
    @rule(data=st.data())
    def damage(self, data):
        step = data.draw(st.sampled_from(sorted(set(self.run.checkpoint_steps()) - self.damaged_steps)))
        file = self.run.checkpoint_dir(step) / data.draw(st.sampled_from(["model.safetensors", "checksums.json"]))
        content = bytearray(file.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1
        file.write_bytes(content)
        self.damaged_steps.add(step)
        if data.draw(st.booleans()):
            self._resume()

    @invariant()
    def checkpoints_are_whole(self):
        for step in set(self.run.checkpoint_steps()) - self.damaged_steps:
            verify_checksums(self.run.checkpoint_dir(step))

    @invariant()
    def the_best_is_kept_and_found(self):
        folders = {folder: read_progress(folder) for folder in self.run.models()}
        assert best_checkpoint(folders) == self.run.checkpoint_dir(self._best_step(self.scores))

    @invariant()
    def the_log_has_every_step_once(self):
        steps = [record["step"] for record in self.run.read_log()]
        assert steps == list(range(self.step + 1))

    def teardown(self):
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


TestRunFolder = RunFolder.TestCase
TestRunFolder.settings = settings(max_examples=20, stateful_step_count=12, deadline=None, derandomize=True)

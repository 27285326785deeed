"""SIGKILL over the whole life of a run: preparing, training, saving, averaging, finishing. Each resume is bit-equal."""

import random
import shutil
from pathlib import Path

from tests.fuzz import tiny_runs, warm_processes
from tests.fuzz.harness import Area


class Kills(Area):
    """A run is killed one to three times, at a moment of the clock or just before a change on disk, then resumed."""

    name, full_count, ci_count = "kills", 220, 1
    max_seconds = 120.0

    def prepare(self) -> None:
        warm_processes.warm_up()
        self.recipes = tiny_runs.recipes(self.folder)
        self.undisturbed: dict[str, tuple[Path, int, float]] = {}  # run, changes on disk, seconds

    def case(self, rng: random.Random) -> str:
        name = rng.choice(list(self.recipes))
        recipe = self.recipes[name]
        reference, n_events, seconds = self._reference(name)
        case_folder = self.folder / "case"
        run, cache, output = case_folder / "run", case_folder / "cache", case_folder / "output"
        case_folder.mkdir()
        try:
            n_killed = 0
            for _ in range(rng.choice([1, 1, 2, 3])):
                kill_at = rng.randrange(1, n_events + 1) if rng.random() < 0.6 else None
                moment = warm_processes.random_moment(rng, seconds) if kill_at is None else 60.0
                process = warm_processes.start(tiny_runs.train, recipe, run, cache, kill_at, output=output)
                n_killed += warm_processes.sleep_and_kill(process, moment)
            warm_processes.finished(tiny_runs.train, recipe, run, cache, output=output)
            tiny_runs.check_same(reference, run)
            return f"killed {n_killed}"
        finally:
            shutil.rmtree(case_folder)

    def _reference(self, name: str) -> tuple[Path, int, float]:
        if name not in self.undisturbed:
            run, count_file = self.folder / "undisturbed" / name, self.folder / "count"
            run.parent.mkdir(exist_ok=True)
            arguments = (self.recipes[name], run, self.folder / f"cache of {name}", None, count_file)
            output = self.folder / "output"
            seconds = warm_processes.timed(lambda: warm_processes.finished(tiny_runs.train, *arguments, output=output))
            self.undisturbed[name] = (run, int(count_file.read_text()), seconds)
        return self.undisturbed[name]

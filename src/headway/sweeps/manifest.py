"""The manifest of a sweep: `base.toml`, the recipe it started from, and `sweep.json`, which settings are tried.

Points are derived from it, so a sweep that was killed knows what is left. On `--resume` the recipe and the fixed
settings must be the same, or runs could not be compared; values, and random points, may be added.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from headway.config import Recipe, load_recipe
from headway.errors import CheckpointError, ConfigError
from headway.file_reading import read_utf8
from headway.files import write_text
from headway.sweeps.points import SweepPoint, SweepRange, grid_points
from headway.sweeps.search import random_points
from headway.temporary_files import TemporaryFolder

MANIFEST_FILE, BASE_FILE = "sweep.json", "base.toml"
HALVING_EVALS = 9  # evaluations of a run under successive halving if the recipe has none: rungs at the 1st and 3rd


@dataclass(frozen=True)
class SweepManifest:
    """What a sweep tries."""

    recipe: str  # as the user named it
    base: str  # that recipe in full, as TOML
    settings: list[str] = field(default_factory=list)  # the same for all runs: ["train.steps=200"]
    grid: dict[str, list[Any]] = field(default_factory=dict)
    ranges: dict[str, SweepRange] = field(default_factory=dict)
    random: int = 0  # number of random points; 0: every point of the grid
    seed: int = 0  # of the random points
    halving: bool = False
    threads: int = 0  # of every run on a CPU; 0: as the recipe says, or not chosen yet

    @property
    def keys(self) -> list[str]:
        """The settings that vary."""
        return [*self.ranges, *self.grid]

    def points(self) -> list[SweepPoint]:
        if self.random:
            return random_points(self.ranges, self.grid, self.random, self.seed)
        if self.ranges:
            raise ConfigError(f"{next(iter(self.ranges))} has a range: say how many points to draw with --random N")
        if not self.grid:
            raise ConfigError("nothing to vary: add --grid train.lr=1e-3,3e-3, or --range and --random")
        return grid_points(self.grid)

    def recipes(self, *, imports: bool = False) -> dict[str, Recipe]:
        """The recipe of each point by the point's name.

        With `imports`, names in the settings may import the installed packages that declare them: only if the user
        has given the settings in this call, never if they come from sweep.json.
        """
        recipes = {}
        for point in self.points():
            recipe = self._recipe([*self.settings, *point.overrides], imports=imports)
            if self.threads and recipe.train.threads == "auto":
                recipe = recipe.replace(train=recipe.train.replace(threads=self.threads))
            if self.halving and not recipe.eval.every_steps and not recipe.eval.num_evals:
                recipe = recipe.replace(eval=recipe.eval.replace(num_evals=HALVING_EVALS))
            recipes[point.name] = recipe
        return recipes

    def _recipe(self, overrides: Sequence[str] = (), *, imports: bool = False) -> Recipe:
        with TemporaryFolder() as folder:
            file = folder / BASE_FILE
            file.write_text(self.base, encoding="utf-8")
            return load_recipe(file, overrides, imports=imports)

    def write(self, out_dir: Path) -> None:
        table = {key: value for key, value in asdict(self).items() if key != "base"}
        out_dir.mkdir(parents=True, exist_ok=True)
        write_text(out_dir / BASE_FILE, self.base)
        write_text(out_dir / MANIFEST_FILE, json.dumps(table, indent=1) + "\n")

    @classmethod
    def read(cls, out_dir: Path) -> "SweepManifest":
        try:
            table = json.loads(read_utf8(out_dir / MANIFEST_FILE))
            base = read_utf8(out_dir / BASE_FILE)
            msgspec.convert({**table, "base": base}, cls)  # raises ValueError if a field has another type
            ranges = {key: SweepRange(**bounds) for key, bounds in table.pop("ranges").items()}
            return cls(base=base, ranges=ranges, **table)
        except FileNotFoundError:
            raise CheckpointError(f"{out_dir} is not a sweep: it has no {MANIFEST_FILE}") from None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointError(f"{out_dir / MANIFEST_FILE} cannot be read: {error}") from None

    def extend(self, old: "SweepManifest", out_dir: Path) -> "SweepManifest":
        """This manifest in place of the old one. Raises unless it has every point of the old one, trained alike."""
        hint = "pass the old value, or choose another --out"
        if self._recipe() != old._recipe():
            raise ConfigError(
                f"{out_dir} was started with another recipe than {self.recipe} is now: restore it, or choose another "
                f"--out"
            )
        for name, option in (("settings", "--set"), ("halving", "--halving"), ("seed", "--seed")):
            before, now = getattr(old, name), getattr(self, name)
            if before != now:
                raise ConfigError(f"{out_dir} was started with {option} {_shown(before)}, not {_shown(now)}: {hint}")
        if (
            self.ranges != old.ranges
            or bool(self.random) != bool(old.random)
            or (self.random and self.grid != old.grid)
        ):
            raise ConfigError(f"{out_dir} was started with other ranges, or with a grid in place of --random: {hint}")
        if self.keys != old.keys:
            raise ConfigError(
                f"{out_dir} varies {', '.join(old.keys)}, not {', '.join(self.keys)}: --resume may add values of a "
                f"setting, not settings; choose another --out"
            )
        lost = {point.name for point in old.points()} - {point.name for point in self.points()}
        if lost:
            raise ConfigError(f"{out_dir} also has {sorted(lost)[0]}: --resume may add points, not drop them; {hint}")
        return replace(self, threads=old.threads)


def make_manifest(
    recipe: Recipe | str | Path,
    settings: Sequence[str],
    grid: Mapping[str, Sequence[Any]],
    ranges: Mapping[str, SweepRange],
    random: int,
    seed: int,
    halving: bool,
) -> SweepManifest:
    name = recipe.description or "a recipe" if isinstance(recipe, Recipe) else str(recipe)
    base = (recipe if isinstance(recipe, Recipe) else load_recipe(recipe)).to_toml()
    both = [key for key in ranges if key in grid]
    fixed = [setting for setting in settings if setting.partition("=")[0].strip() in {*grid, *ranges}]
    if both or fixed:
        raise ConfigError(f"{(both or fixed)[0]} is also varied by --grid or --range: give one of the two")
    if random < 0:
        raise ConfigError(f"--random {random} must be at least 1")
    lists = {key: [_plain(key, value) for value in values] for key, values in grid.items()}
    if empty := [key for key, values in lists.items() if not values]:
        raise ConfigError(f"--grid {empty[0]} has no values")
    return SweepManifest(name, base, list(settings), lists, dict(ranges), random, seed, halving)


def _plain(key: str, value: Any) -> Any:
    """A value as sweep.json will give it back: a tuple becomes a list."""
    try:
        plain = json.loads(json.dumps(value))
        _ = SweepPoint("", {key: plain}).overrides  # TOML, unlike JSON, has no null within a list or table
        return plain
    except (TypeError, ValueError):
        raise ConfigError(
            f"--grid {key}: {value!r:.60} is not a value that a recipe can hold: use numbers, texts, true, false, "
            f"lists and tables"
        ) from None


def is_sweep(path: str | Path) -> bool:
    return (Path(path) / MANIFEST_FILE).is_file()


def latest_sweep(folder: Path) -> Path | None:
    """The sweep in this folder that was started last."""
    files = folder.glob(f"*/{MANIFEST_FILE}")
    return max((file.parent for file in files), key=lambda path: (path / MANIFEST_FILE).stat().st_mtime, default=None)


def _shown(value: Any) -> str:
    return (", ".join(map(str, value)) or "nothing") if isinstance(value, list) else str(value)

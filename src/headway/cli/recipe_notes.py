"""Load a recipe for a command, and note the user's settings that have no effect."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.config import Recipe


def load_recipe_with_notes(recipe: str, overrides: Sequence[str], *, ignored: Iterable[str] = ()) -> "Recipe":
    """The recipe with its overrides. A note on stderr names each setting without effect in --set or in the user's TOML
    file; shipped recipes and runs are not checked. `ignored` are settings that this command does not use, or tables
    of them such as "eval"."""
    from headway.config import load_recipe
    from headway.config.recipe_loading import parse_setting
    from headway.config.setting_use import unused_settings
    from headway.display import print_status

    config = load_recipe(recipe, overrides)
    overridden = [parse_setting(override)[0] for override in overrides]
    notes = unused_settings(config, [*overridden, *_settings_in_file(recipe)])
    for name in overridden:
        if name in ignored or name.partition(".")[0] in ignored:
            notes.setdefault(name, f"{name} has no effect in this command")
    for note in notes.values():
        print_status(f"note        {note}")
    return config


def _settings_in_file(recipe: str) -> list[str]:
    """The settings in the user's TOML file; none for a shipped recipe or a run."""
    from headway.config import RECIPES, find_recipe
    from headway.config.recipe_loading import parse_toml
    from headway.config.setting_use import settings_in
    from headway.file_reading import read_utf8
    from headway.runs import Run

    file = find_recipe(recipe)
    if file.is_relative_to(RECIPES) or Run.exists(Path(recipe)):
        return []
    return settings_in(parse_toml(read_utf8(file)))

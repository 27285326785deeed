"""Plug-ins in the workers of a sweep, which start without anything that this process has registered.

A worker imports the modules of HEADWAY_PLUGINS, which `--plugin` sets, and the installed packages that declare a name
which this process has imported. What a script or notebook registers itself exists in its own process alone.
"""

import os
from collections.abc import Iterable

from headway.config import Recipe
from headway.config.recipe_loading import DECLARABLE_SETTINGS
from headway.entry_points import PLUGINS_VARIABLE, declared
from headway.errors import ConfigError
from headway.plugins import REGISTERED


def declared_plugins(recipe: Recipe) -> list[tuple[str, str]]:
    """The registered names of a recipe, as (kind, name), that an installed package declares."""
    return [(kind, name) for kind, name in _registered_plugins(recipe) if name in declared(kind)]


def check_worker_plugins(recipes: Iterable[Recipe]) -> None:
    """Raise if a recipe uses something that is registered in this process, but that no worker could import."""
    if os.environ.get(PLUGINS_VARIABLE):
        return
    for recipe in recipes:
        for kind, name in _registered_plugins(recipe):
            if name not in declared(kind):
                raise ConfigError(
                    f"the {kind} {name!r} is registered in this process alone, and several jobs run in processes of "
                    f"their own: use jobs=1, or register it in a module and name that in the environment variable "
                    f"{PLUGINS_VARIABLE}"
                )


def _registered_plugins(recipe: Recipe) -> list[tuple[str, str]]:
    """What a recipe uses that is not built in."""
    table = recipe.to_table()
    used = []
    for setting, kind in DECLARABLE_SETTINGS.items():
        section, _, key = setting.partition(".")
        used.append((kind, str(table[section].get(key))))
    used += [("dataset", name) for name in recipe.data.mix]
    if recipe.data.format == "auto":  # by the endings of files: any reader may be needed
        used += [plugin for plugin in REGISTERED if plugin[0] == "reader"]
    return sorted(set(used) & REGISTERED)

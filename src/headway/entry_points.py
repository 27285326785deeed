"""What installed packages offer to Headway: one entry-point group, imported only when you ask for a name.

A package declares a name of its own in its pyproject.toml, as "KIND.NAME", with the module that registers it:

    [project.entry-points.headway]
    "family.mixer" = "my_package.mixer"

The module is imported when you name `mixer` yourself: on the command line, as an argument of a function, in `--set`.
A name in a file (a recipe, a checkpoint) never imports anything.
"""

import os
import shlex
from collections.abc import Container
from functools import cache
from importlib.metadata import EntryPoint, entry_points

GROUP = "headway"
PLUGINS_VARIABLE = "HEADWAY_PLUGINS"  # modules to import before a command, separated by commas; `--plugin` adds to it


@cache
def declared(kind: str) -> dict[str, EntryPoint]:
    """The names of a kind that installed packages declare."""
    prefix = f"{kind}."
    return {e.name.removeprefix(prefix): e for e in entry_points(group=GROUP) if e.name.startswith(prefix)}


def load_declared(kind: str, name: object, known: Container[str] = ()) -> None:
    """Import the module that registers a name, if it is not known yet and an installed package declares it."""
    if isinstance(name, str) and name not in known and name in (offers := declared(kind)):
        offers[name].load()


def plugin_hint(kind: str, name: object) -> str:
    """How to make an unknown name from a file known: by the package that declares it, or by `--plugin`."""
    offer = declared(kind).get(str(name))
    if offer is None:
        return "If a plug-in registers it, name the plug-in: --plugin MODULE"
    package = offer.dist.name if offer.dist is not None else offer.module
    return f"The installed package {package} has it: add --plugin {offer.module}"


def plugin_options() -> str:
    """The `--plugin` options of the command that is running, to end a suggested command with: " --plugin mine"."""
    names = [name.strip() for name in os.environ.get(PLUGINS_VARIABLE, "").split(",") if name.strip()]
    return "".join(f" --plugin {shlex.quote(name)}" for name in names)

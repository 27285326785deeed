"""One run of a sweep in a process of its own (jobs.py starts it).

The first line of stdin is the job, {"recipe": TOML, "out": PATH, "declared": [[KIND, NAME], …]}, where `declared` are
the plug-ins of installed packages that the parent has imported. The only line of stdout is the answer,
{"interrupted": …, "failure": …}. The parent keeps stdin open: when it closes it, or dies, the run stops after the
current step and is saved, as after Ctrl-C; while it still prepares its data, it ends at once.
"""

import json
import os
import signal
import sys
import threading
import tomllib
from pathlib import Path

from headway.termination import exit_on_signals


def main() -> None:
    with exit_on_signals(has_deadline=True):
        _train_ordered()


def _train_ordered() -> None:
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    # Importing torch takes seconds, in which the parent may already want this process to end.
    from headway.config import recipe_from_table
    from headway.entry_points import load_declared
    from headway.plugins import load_plugin
    from headway.sweeps.train_point import train_point
    from headway.sweeps.worker_plugins import PLUGINS_VARIABLE
    from headway.training.callbacks import Callbacks

    for plugin in filter(None, os.environ.get(PLUGINS_VARIABLE, "").split(",")):
        load_plugin(plugin)
    for kind, name in order.get("declared", []):
        load_declared(kind, name)
    recipe = recipe_from_table(tomllib.loads(order["recipe"]))
    outcome = train_point(recipe, Path(order["out"]), Callbacks())
    print(json.dumps(outcome.__dict__))


def _stop_with_parent() -> None:
    # Returns when the parent closes the pipe, or the system does after its death. `sys.stdin.read()` would hold a lock
    # that the interpreter needs when it exits.
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()

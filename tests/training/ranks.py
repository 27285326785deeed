"""What the ranks of test_parallel.py do: train the recipes they are told to, one after the other.

    torchrun --nproc-per-node=N ranks.py JOBS.json

A job is {"recipe": TOML file, "out": folder, "resume": bool, "die": step at which the last rank kills itself, once}.
"""

import json
import os
import signal
import sys
from pathlib import Path

from headway.config import load_recipe
from headway.errors import HeadwayError
from headway.training import trainer as loop
from headway.training.train import train


def main() -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    is_first_life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    for job in json.loads(Path(sys.argv[1]).read_text()):
        if "die" in job and is_first_life and rank == size - 1:
            _die_at(job["die"])
        try:
            train(load_recipe(job["recipe"]), out=job["out"], resume=job.get("resume", False))
        except HeadwayError as error:
            print(f"rank {rank}: {error}", file=sys.stderr, flush=True)
            sys.exit(1)


def _die_at(step: int) -> None:
    real = loop.Trainer._descend

    def descend(trainer, work):
        if trainer.state.progress.step == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(trainer, work)

    loop.Trainer._descend = descend


if __name__ == "__main__":
    main()

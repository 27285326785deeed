"""What the ranks of test_distributed.py run: several training jobs in one torchrun start.

    torchrun --nproc-per-node=N ranks.py JOBS.json

A job is {"recipe": TOML file, "out": folder, "resume": bool, "die_at_step": the last rank kills itself there, once}.
After a restart by torchrun, finished jobs are skipped. `start_ranks` does without torchrun.
"""

import json
import multiprocessing
import os
import signal
import socket
import sys
from pathlib import Path

from headway.config import load_recipe
from headway.errors import HeadwayError
from headway.runs import Run
from headway.training.train import train
from headway.training.trainer import Trainer


def main(jobs: Path) -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    is_restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    for job in json.loads(jobs.read_text()):
        if is_restarted and any(record.get("event") == "end" for record in Run(job["out"]).read_log()):
            continue
        if "die_at_step" in job and not is_restarted and rank == size - 1:
            kill_at_step(job["die_at_step"])
        try:
            train(load_recipe(job["recipe"]), out=job["out"], resume=job.get("resume", False))
        except HeadwayError as error:
            print(f"rank {rank}: {error}", file=sys.stderr, flush=True)
            sys.exit(1)


def kill_at_step(step: int) -> None:
    """Have this process kill itself before it trains step `step` + 1."""
    original = Trainer.train_step

    def train_step(trainer, batch):
        if trainer.state.progress.step == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(trainer, batch)

    Trainer.train_step = train_step


def start_ranks(jobs: Path, ranks: int) -> None:
    """The jobs on so many ranks, which a process forks that has imported PyTorch: torchrun's import it each."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo"])  # the latter is imported by the first optimizer
    processes = [context.Process(target=_run_rank, args=(jobs, rank, ranks, port)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        process.kill()
    assert [process.exitcode for process in processes] == [0] * ranks


def _run_rank(jobs: Path, rank: int, ranks: int, port: int) -> None:
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    os.environ.update({name: str(number) for name, number in numbers.items()}, MASTER_ADDR="localhost")
    main(jobs)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Training beside other processes: the threads that `train.threads = "auto"` takes against fixed numbers of them.

    python benchmarks/busy_machine.py                  the recipe demo: idle, and beside a process that uses one core
    python benchmarks/busy_machine.py --seconds 5 --rounds 1 --busy 1

Each figure is a separate process that trains for the same time, with and without passive waiting
(OMP_WAIT_POLICY=passive): the median of the steps it has done, over rounds that are interleaved. The share is that of
the best fixed number of threads beside the same processes. Takes 12 minutes by default.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from headway.runs import Run

BUSY = "while True: pass"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="demo")
    parser.add_argument("--seconds", type=float, default=15.0, help="of training per figure")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, os.cpu_count() or 1], help="fixed numbers")
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1], help="processes that use one core each")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()

    fixed = sorted(set(options.threads))
    results = []
    for n_busy in options.busy:
        for is_passive in (False, True):
            steps: dict[int | str, list[int]] = {threads: [] for threads in [*fixed, "auto"]}
            taken = []
            for _ in range(options.rounds):
                for threads in steps:
                    with busy_processes(n_busy):
                        done, threads_taken = train(options.recipe, threads, options.seconds, is_passive=is_passive)
                    steps[threads].append(done)
                    taken += [threads_taken] if threads == "auto" else []
            medians = {threads: statistics.median(runs) for threads, runs in steps.items()}
            best = max(medians[threads] for threads in fixed)
            results.append({
                "busy": n_busy,
                "passive": is_passive,
                "steps": {str(threads): median for threads, median in medians.items()},
                "auto_threads": taken,
                "share_of_best": medians["auto"] / best,
            })  # fmt: skip
            if not options.json:
                print_row(results[-1], fixed, is_first=len(results) == 1)
    share_of_idle = {}
    for busy in results:
        idle = [r for r in results if r["busy"] == 0 and r["passive"] == busy["passive"]]
        if busy["busy"] and idle:
            share_of_idle[f"{busy['busy']} busy{', passive' if busy['passive'] else ''}"] = (
                busy["steps"]["auto"] / idle[0]["steps"]["auto"]
            )
    if options.json:
        conditions = {"cores": os.cpu_count(), "torch": torch.__version__, **vars(options)}
        print(json.dumps({"conditions": conditions, "results": results, "share_of_idle": share_of_idle}))
        return
    print(f"\n{os.cpu_count()} CPUs, torch {torch.__version__}, {options.recipe} for {options.seconds:g} s")
    for name, share in share_of_idle.items():
        print(f"auto beside {name}: {share:.0%} of its idle speed")


@contextmanager
def busy_processes(n: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(n)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def train(recipe: str, threads: int | str, seconds: float, *, is_passive: bool) -> tuple[int, int]:
    """Steps done in so many seconds, and the number of threads used."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OMP_")}
    if is_passive:
        environment["OMP_WAIT_POLICY"] = "passive"
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        settings = [f"train.max_seconds={seconds}", f"train.threads={threads}", "train.steps=1000000"]
        command = [sys.executable, "-m", "headway", "train", recipe, "--device", "cpu", "--out", str(run), "--json"]
        for setting in settings:
            command += ["--set", setting]
        process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if process.returncode:
            raise SystemExit(process.stderr)
        start = next(record for record in Run(run).read_log() if record.get("event") == "start")
        return int(json.loads(process.stdout)["steps"]), int(start["threads"])


def print_row(result: dict[str, Any], fixed: list[int], *, is_first: bool) -> None:
    if is_first:
        numbers = "".join(f"{threads:>5} thread{'s' if threads > 1 else ' '}" for threads in fixed)
        print(f"busy  waiting {numbers}    auto  (threads)   share of the best")
    steps = "".join(f"{result['steps'][str(threads)]:>13.0f}" for threads in fixed)
    taken = ",".join(map(str, result["auto_threads"]))
    waiting = "passive" if result["passive"] else "active "
    share = f"{result['share_of_best']:.0%}"
    print(
        f"{result['busy']:>4}  {waiting} {steps}{result['steps']['auto']:>8.0f}  {taken:>9}   {share:>17}", flush=True
    )


if __name__ == "__main__":
    main()

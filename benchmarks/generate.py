"""Generation against other libraries: the same random weights, prompts and number of tokens.

    python benchmarks/generate.py                      GPT-2 small, float32, CPU, 64 + 128 tokens, batch 1
    python benchmarks/generate.py --batch 8 --new 64
    python benchmarks/generate.py --peers transformers ctranslate2 llama.cpp      (benchmarks/generate_peers.py)
    python benchmarks/generate.py --device cuda --dtype bfloat16 --new 256 --kernels --peers transformers-static
    python benchmarks/generate.py --device cuda --dtype bfloat16 --new 256 --model llama-2-7b --batch 64

Rounds are interleaved, so that other load on the machine affects all. A ratio is the speed over that of transformers,
or over Headway's where transformers is not among the peers: the median over the rounds, since the bandwidth of a
virtual machine may change from one round to the next. "load" is the share of the CPUs that
other processes took meanwhile: above a few percent, trust none of it.

Each library runs in a process of its own, where the threads of the others cannot disturb it: once a process has more
threads than CPUs, OpenMP no longer spins between products, and a step of Headway takes 14.9 instead of 11.2 ms.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
from generate_peers import PEERS, Generate, UnavailableError

import headway
from headway.device_rates import synchronize
from headway.generation.decode_loop import DecodeLoop
from headway.models.base import Model
from headway.sampling import Pipeline


class Round(NamedTuple):
    seconds: float
    cpu_seconds: float
    tokens: torch.Tensor  # (B, n_new)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt2", help="a preset whose architecture transformers has")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=64, help="tokens in the prompt")
    parser.add_argument("--new", type=int, default=128, help="tokens to generate")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--kernels", action="store_true", help="on a GPU, also count kernels")
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=list(PEERS),
        default=["transformers"],
        metavar="NAME",
        help=f"libraries to compare with: {', '.join(PEERS)}",
    )
    options = parser.parse_args()

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        headway.create(options.model, device=options.device, dtype=options.dtype).save(Path(folder, "model"))
        connections = {name: start(name, Path(folder), options) for name in ("headway", *options.peers)}
        connections = {name: connection for name, connection in connections.items() if connection is not None}
        tokens = {name: run(connection).tokens for name, connection in connections.items()}  # warm-up
        kernels = {name: ask(connection, "kernels") for name, connection in connections.items() if options.kernels}
        started, busy = time.perf_counter(), busy_seconds()
        rounds: dict[str, list[Round]] = {name: [] for name in connections}
        for _ in range(options.rounds):
            for name, connection in connections.items():
                rounds[name].append(run(connection))
        own = sum(r.cpu_seconds for of_library in rounds.values() for r in of_library)
        load = (busy_seconds() - busy - own) / (time.perf_counter() - started) / (os.cpu_count() or 1)
        for connection in connections.values():
            connection.send("stop")
        for process in multiprocessing.active_children():
            process.join()

    equal = {name: (tokens["headway"] == tokens[name]).float().mean().item() for name in rounds}
    medians = {name: statistics.median(r.seconds for r in of_library) for name, of_library in rounds.items()}
    speed = {name: options.batch * options.new / seconds for name, seconds in medians.items()}
    base = rounds.get("transformers", rounds["headway"])
    ratio = {
        name: statistics.median(b.seconds / r.seconds for b, r in zip(base, of_library, strict=True))
        for name, of_library in rounds.items()
    }
    print(f"{'':14} {'tokens/s':>8} {'ratio':>7} {'equal tokens':>13}   seconds of each round")
    for name in rounds:
        times = ", ".join(f"{r.seconds:.2f}" for r in rounds[name])
        print(f"{name:14} {speed[name]:8.1f} {ratio[name]:6.2f}× {100 * equal[name]:11.1f} %   {times}")
    for name, n_kernels in kernels.items():
        print(f"{name:14} {n_kernels:8.1f} kernels and copies per new token, the prefill included")
    print(f"load of other processes: {100 * load:.1f} %")
    settings = {**vars(options), "torch": torch.__version__, "threads": torch.get_num_threads(), "load": load}
    print(json.dumps({**settings, "tokens_per_second": speed, "ratio": ratio, "equal": equal}))


def start(name: str, folder: Path, options: argparse.Namespace) -> Connection | None:
    """A process that generates with one library each time it is asked to; None if the library is unavailable."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    context.Process(target=serve, args=(theirs, name, folder, options), daemon=True).start()
    theirs.close()
    if (problem := ours.recv()) is not None:
        print(f"{name} is skipped: {problem}")
        return None
    return ours


def ask(connection: Connection, command: str) -> Any:
    connection.send(command)
    return connection.recv()


def run(connection: Connection) -> Round:
    seconds, cpu_seconds, rows = ask(connection, "run")
    return Round(seconds, cpu_seconds, torch.tensor(rows))


def serve(connection: Connection, name: str, folder: Path, options: argparse.Namespace) -> None:
    model = headway.load(folder / "model", device=options.device).eval()
    rng = torch.Generator().manual_seed(0)
    prompt = torch.randint(model.config.vocab_size, (options.batch, options.prompt), generator=rng)
    try:
        generate = {"headway": decode_loop, **PEERS}[name](model, prompt, options.new, folder)
    except UnavailableError as error:
        connection.send(str(error))
        return
    connection.send(None)
    while (command := connection.recv()) != "stop":
        if command == "kernels":
            connection.send(count_kernels(generate) / options.new)
            continue
        synchronize(model.device)
        started, cpu_started = time.perf_counter(), time.process_time()
        tokens = generate()
        synchronize(model.device)
        connection.send((time.perf_counter() - started, time.process_time() - cpu_started, tokens.tolist()))


def count_kernels(generate: Generate) -> int:
    """Kernels and copies that a GPU runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        generate()
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profile.events())


def decode_loop(model: Model, prompt: torch.Tensor, n_new: int, folder: Path) -> Generate:
    """Headway's own generation, as a peer."""

    def generate() -> torch.Tensor:
        rows = prompt.tolist()
        loop = DecodeLoop(model, rows, Pipeline().greedy(), n_new, seeds=range(len(rows)), lookahead=True)
        return torch.tensor([[token for _, _, token in loop.step()] for _ in range(n_new)]).T

    return generate


def busy_seconds() -> float:
    """CPU seconds of all processes since the machine started; NaN where there is no /proc."""
    try:
        user, nice, system = (int(n) for n in Path("/proc/stat").read_text().split()[1:4])
    except OSError:
        return float("nan")
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()

"""Tokenizing a gigabyte into shards: speed, peak memory, and recovery from SIGKILLs at random moments.

    python benchmarks/prepare.py --gigabytes 1 --kills 10

Generates text (JSON lines, or one text file with --format text), prepares it once uninterrupted while sampling the
resident memory of the process, then again while killing it repeatedly, and compares every shard.
"""

import argparse
import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORDS = """
the of and to in is that it was for on are as with his they at be this from have or by one had not but what all were
when we there can an your which their said if do will each about how up out them then she many some so these would
other into has more her two like him see time could no make than first been its who now people my made over did down
"""


def generate(file: Path, n_bytes: float, is_text: bool) -> None:
    rng, words = random.Random(1), WORDS.split()
    n_written = 0
    with open(file, "w", encoding="utf-8") as stream:
        while n_written < n_bytes:
            sentence = rng.choices(words, k=rng.randint(40, 400))
            sentence[rng.randrange(len(sentence))] = str(rng.randrange(10**9))
            text = " ".join(sentence).capitalize() + "."
            line = f"{text}\n" if is_text else json.dumps({"text": text}) + "\n"
            stream.write(line)
            n_written += len(line)


def peak_memory(pid: int) -> float:
    """Peak resident memory so far, in MB."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    peaks = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(peaks[0]) / 1024 if peaks else 0.0


def digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--format", choices=["jsonl", "text"], default="jsonl")
    parser.add_argument("--tokenizer", help="a folder or file; default: BPE of 8,000 tokens, trained on pydocs")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / ("text.txt" if options.format == "text" else "text.jsonl")
        generate(file, options.gigabytes * 1e9, options.format == "text")
        tokenizer = options.tokenizer or str(folder / "bpe")
        headway = [sys.executable, "-m", "headway"]
        if not options.tokenizer:
            train = [*headway, "tokenizer", "train", "pydocs", "--vocab-size", "8000", "--out", tokenizer]
            subprocess.run(train, check=True, capture_output=True)

        def command(cache: str) -> list[str]:
            arguments = ["--tokenizer", tokenizer, "--prepare", "--cache", str(folder / cache), "--json"]
            return [*headway, "data", str(file), *arguments]

        started, peak = time.monotonic(), 0.0
        process = subprocess.Popen(
            command("uninterrupted"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        while process.poll() is None:
            peak = max(peak, peak_memory(process.pid))
            time.sleep(0.1)
        seconds = time.monotonic() - started
        uninterrupted = json.loads(process.stdout.read())
        children_peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        size_mb = file.stat().st_size / 1e6
        n_tokens = sum(uninterrupted["tokens"].values())
        print(f"{size_mb:,.0f} MB of {options.format}, {os.cpu_count()} cores, seed {options.seed}")
        print(f"uninterrupted: {seconds:.1f} s, {size_mb / seconds:.1f} MB/s, {n_tokens:,} tokens")
        print(f"peak resident memory: {max(peak, children_peak):.0f} MB")

        for i in range(options.kills):
            process = subprocess.Popen(command("killed"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(rng.uniform(0.02, 0.3) * seconds)
            process.send_signal(signal.SIGKILL)
            process.wait()
            n_shards = len(list((folder / "killed").rglob("*.safetensors")))
            print(f"kill {i + 1}: {n_shards} shards so far")
        process = subprocess.run(command("killed"), check=True, capture_output=True, text=True)
        is_same = digests(Path(json.loads(process.stdout)["path"])) == digests(Path(uninterrupted["path"]))
        print(f"after {options.kills} kills: shards {'identical' if is_same else 'DIFFERENT'}")
        sys.exit(not is_same)


if __name__ == "__main__":
    main()

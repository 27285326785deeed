"""Reading data as a stream: peak memory with one very long line in every format, and the speed of many short lines.

    python benchmarks/streams.py                     every case: some minutes
    python benchmarks/streams.py csv jsonl           some of them
    python benchmarks/streams.py --megabytes 10      smaller

Each case runs `headway data` in a process of its own and prints its peak resident memory, imports included, and its CPU
time. Requirements: 400 MB for a line of 100 MB, 300 MB for a text of 1 GB, 2 MB/s for five million lines of 4 bytes.
"""

import argparse
import gzip
import json
import multiprocessing
import os
import random
import shutil
import string
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

WORD = "word "


def squad(text: str) -> str:
    questions = [{"id": "1", "question": "what?", "answers": [{"text": "word", "answer_start": 0}]}]
    return json.dumps({"data": [{"paragraphs": [{"context": text, "qas": questions}]}]})


LINES: dict[str, tuple[str, Callable[[str], str], list[str]]] = {  # case → file name, content, options
    "text": ("a.txt", lambda text: text, []),
    "lines": ("a.txt", lambda text: text + "\n", ["--format", "lines"]),
    "one word": ("a.txt", lambda text: text.replace(" ", "s") + "\n", ["--format", "lines"]),
    "csv": ("a.csv", lambda text: f'text\n"{text}"\n', []),
    "csv without quotes": ("a.csv", lambda text: f"text,label\n{text},x\n", ["--label", "label"]),
    "tsv": ("a.tsv", lambda text: f"text\tlabel\n{text}\tx\n", []),
    "pairs": ("a.tsv", lambda text: f"{text}\tx\ny\tz\n", ["--pairs", "1,2"]),
    "jsonl": ("a.jsonl", lambda text: json.dumps({"text": text}) + "\n", []),
    "conll": ("a.conll", lambda text: f"{text.replace(' ', 's')}\tO\nb\tO\n", []),
    "squad": ("a.json", squad, []),
    "misspellings": ("a.txt", lambda text: f"right: {text}\n", ["--format", "misspellings"]),
    "text.gz": ("a.txt.gz", lambda text: text, []),
    "jsonl.gz": ("a.jsonl.gz", lambda text: json.dumps({"text": text}) + "\n", []),
}


def measure(name: str, file: Path, *options: str) -> None:
    """Run `headway data` on a file and print what it took."""
    command = [sys.executable, "-m", "headway", "data", str(file), "--samples", "0", "--json", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    errors = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds, size = usage.ru_utime + usage.ru_stime, file.stat().st_size
    outcome = "" if process.returncode == 0 else f"  refused: {errors.splitlines()[-1]:.80}"
    speed = size / 1e6 / seconds
    print(f"{name:>24} {usage.ru_maxrss / 1024:6.0f} MB  {seconds:6.1f} s  {speed:6.1f} MB/s{outcome}", flush=True)


def measure_line(name: str, folder: Path, n_bytes: int) -> None:
    """One line of about `n_bytes`."""
    file_name, content, options = LINES[name]
    file = folder / file_name

    def write() -> None:
        data = content(WORD * (n_bytes // len(WORD))).encode()
        file.write_bytes(gzip.compress(data, 1) if file.suffix == ".gz" else data)

    # In a process of its own: the peak memory of a new process is at least that of the one that starts it.
    writer = multiprocessing.get_context("fork").Process(target=write)
    writer.start()
    writer.join()
    measure(name, file, *options)


def measure_short_lines(folder: Path, n_lines: int) -> None:
    rng = random.Random(1)
    for name, letters in (("short lines", string.ascii_lowercase), ("same lines", "a")):
        with open(folder / "short.txt", "w") as stream:
            stream.writelines("".join(rng.choices(letters, k=3)) + "\n" for _ in range(n_lines))
        measure(name, folder / "short.txt", "--format", "lines")


def measure_long_text(folder: Path, n_bytes: int) -> None:
    line = WORD * 20 + "\n"
    with open(folder / "long.txt", "w") as stream:
        for _ in range(n_bytes // (1000 * len(line))):
            stream.write(line * 1000)
    measure("long text", folder / "long.txt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(LINES)}, short lines, long text; default: all")
    parser.add_argument("--megabytes", type=int, default=100, help="of the long line; the other sizes follow")
    options = parser.parse_args()
    n_bytes = options.megabytes * 10**6
    folder = Path(tempfile.mkdtemp())
    try:
        for name in LINES:
            if not options.cases or name in options.cases:
                measure_line(name, folder, n_bytes)
        if not options.cases or "short lines" in options.cases:
            measure_short_lines(folder, n_bytes // 20)
        if not options.cases or "long text" in options.cases:
            measure_long_text(folder, n_bytes * 10)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

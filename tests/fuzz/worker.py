"""The process that runs the cases of an area: `python -m tests.fuzz.worker LOCATION SEED START STOP FOLDER PIPE`."""

import json
import os
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.fuzz.harness import load_area, run_cases


def main(location: str, seed: str, start: str, stop: str, folder: str, pipe: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # `nohup make fuzz &` would have the cases ignore both
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # KeyboardInterrupt: the area is closed
    os.set_inheritable(int(pipe), False)  # a process that a case starts must not keep the pipe open
    send = lambda message: os.write(int(pipe), (json.dumps(message) + "\n").encode())  # noqa: E731
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as scratch:
        area = load_area(location)(Path(scratch))
        run_cases(
            area,
            range(int(start), int(stop)),
            int(seed),
            lambda case: send({"begin": case}),
            lambda result: send(asdict(result)),
        )


if __name__ == "__main__":
    main(*sys.argv[1:])

"""`python -m tests.fuzz [AREA…]`: run the fuzzers, print a table and every finding.

The full number of cases of every area comes first; if time is left, further cases follow. `make fuzz` gives an hour.
"""

import argparse
import json
import queue
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.fuzz import AREAS
from tests.fuzz.harness import AreaReport, CaseResult, load_area, run_cases, watch

CHUNKS = 4  # of an area's cases in the first round: each is a process of its own
SHOWN_FINDINGS = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("areas", nargs="*", metavar="AREA", help=f"areas to run (default: all): {', '.join(AREAS)}")
    parser.add_argument("--seconds", type=float, default=3600, help="time to spend (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of all cases (default: %(default)s)")
    parser.add_argument("--case", type=int, help="repeat this case of one area in this process, with its traceback")
    parser.add_argument("--once", action="store_true", help="end after the full number of cases")
    parser.add_argument("--json", type=Path, help="write the report to this file")
    parser.add_argument("--log", type=Path, help="append what the processes print to this file")
    options = parser.parse_args()
    if unknown := set(options.areas) - set(AREAS):
        parser.error(f"no area named {', '.join(sorted(unknown))}; there are {', '.join(AREAS)}")
    if options.case is not None:
        if len(options.areas) != 1:
            parser.error("--case needs one AREA")
        return repeat(AREAS[options.areas[0]], options.seed, options.case)
    start = time.monotonic()
    reports = run(options.areas or list(AREAS), options, start + options.seconds)
    seconds = time.monotonic() - start
    print_table(reports, seconds)
    if options.json:
        document = {
            "seed": options.seed,
            "seconds": seconds,
            "areas": [report.to_dict() for report in reports.values()],
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 1 if any(report.findings for report in reports.values()) else 0


def repeat(location: str, seed: int, case: int) -> int:
    """Run one case here."""
    with tempfile.TemporaryDirectory() as folder:
        results: list[CaseResult] = []
        run_cases(load_area(location)(Path(folder)), range(case, case + 1), seed, lambda case: None, results.append)
    print(results[0].traceback or results[0].finding or results[0].outcome)
    return 1 if results[0].finding else 0


def run(names: list[str], options: argparse.Namespace, deadline: float) -> dict[str, AreaReport]:
    """Run the areas on several threads, each of which watches one process at a time."""
    reports = {name: AreaReport(name) for name in names}
    full_counts = {name: load_area(AREAS[name]).full_count for name in names}
    chunks: queue.SimpleQueue[tuple[str, range]] = queue.SimpleQueue()
    for number in range(CHUNKS):
        for name in names:
            size = -(-full_counts[name] // CHUNKS)
            chunks.put((name, range(number * size, (number + 1) * size)))
    lock = threading.Lock()

    def work() -> None:
        while time.monotonic() < deadline:
            try:
                name, cases = chunks.get_nowait()
            except queue.Empty:
                return
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                report = watch(
                    AREAS[name], cases, seed=options.seed, folder=Path(folder), deadline=deadline, log=options.log
                )
            with lock:
                reports[name].merge(report)
                print_progress(reports[name], full_counts[name], report)
            if not options.once:  # more of the same, after everything that waits
                beyond = cases.start + CHUNKS * len(cases)
                chunks.put((name, range(beyond, beyond + len(cases))))

    threads = [threading.Thread(target=work) for _ in range(options.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return reports


def print_progress(report: AreaReport, full_count: int, latest: AreaReport) -> None:
    print(f"{report.name:12} {report.n_cases:7,} of {full_count:,} cases, {len(report.findings)} findings", flush=True)
    for result in latest.findings[:SHOWN_FINDINGS]:
        print(f"  case {result.case}: {result.finding[:300]}", flush=True)
    if len(latest.findings) > SHOWN_FINDINGS:
        print(f"  and {len(latest.findings) - SHOWN_FINDINGS} more", flush=True)


def print_table(reports: dict[str, AreaReport], seconds: float) -> None:
    print(f"\n{'area':12} {'cases':>7} {'refused':>8} {'slowest':>8} {'memory':>8} {'findings':>8}  outcomes")
    for report in reports.values():
        labels = [f"{label} {n:,}" for label, n in report.outcomes.most_common() if label not in ("refused", "finding")]
        print(
            f"{report.name:12} {report.n_cases:7,} {report.outcomes['refused']:8,} {report.slowest:6.1f} s "
            f"{report.peak_bytes / 1e6:5.0f} MB {len(report.findings):8,}  {', '.join(labels[:6])}"
        )
    n_cases = sum(report.n_cases for report in reports.values())
    n_findings = sum(len(report.findings) for report in reports.values())
    print(f"{n_cases:,} cases in {seconds / 60:.1f} minutes, {n_findings:,} findings")


if __name__ == "__main__":
    sys.exit(main())

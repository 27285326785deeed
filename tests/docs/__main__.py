"""Run the pages, also the blocks that the tests leave out: `make docs-check`.

python -m tests.docs                       every page
python -m tests.docs docs/attention.md     some pages
python -m tests.docs --unmarked            only what the tests run
python -m tests.docs --count               how many blocks there are, and what marks they have
"""

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

from tests.docs.blocks import Block, find_pages, page_name, read_blocks, read_commands
from tests.docs.files import copy_folder, make_page_folder
from tests.docs.session import RUN_LANGUAGES, Session, arrow_comments


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.docs", description="Run the code of the documentation.")
    parser.add_argument("pages", nargs="*", type=Path, help="pages; default: all")
    parser.add_argument("--unmarked", action="store_true", help="leave marked blocks out, as the tests do")
    parser.add_argument("--count", action="store_true", help="count the blocks and their marks, and exit")
    arguments = parser.parse_args()
    pages = [page.resolve() for page in arguments.pages] or find_pages()
    if arguments.count:
        count_blocks(pages)
        return 0
    return run_pages(pages, run_marked=not arguments.unmarked)


def count_blocks(pages: list[Path]) -> None:
    blocks = [block for page in pages for block in read_blocks(page) if block.language in RUN_LANGUAGES]
    languages = Counter(block.language for block in blocks)
    marked = [block for block in blocks if "docs-check" in block.marks]
    print(f"{len(blocks)} blocks: {', '.join(f'{n} {language}' for language, n in languages.items())}")
    compared = [block for block in blocks if not block.marks.keys() & {"docs-check", "output"} and has_output(block)]
    print(f"{len(blocks) - len(marked)} are run by the tests; the output of {len(compared)} is compared")
    print(f"{len(marked)} are marked:")
    for reason, n in Counter(block.marks["docs-check"] for block in marked).most_common():
        print(f"  {n:3}  {reason}")
    print("outputs that are not compared:")
    unmarked = [block for block in blocks if "docs-check" not in block.marks and "output" in block.marks]
    for reason, n in Counter(block.marks["output"] for block in unmarked).most_common():
        print(f"  {n:3}  {reason}")


def has_output(block: Block) -> bool:
    """Whether the page says what the block prints."""
    if block.language == "python":
        return bool(block.output or arrow_comments(block))
    return any(command.output for command in read_commands(block))


def run_pages(pages: list[Path], run_marked: bool) -> int:
    n_failed = 0
    with tempfile.TemporaryDirectory(prefix="headway-docs-") as folder:
        os.environ["HEADWAY_CACHE"] = f"{folder}/cache"
        given = make_page_folder(Path(folder, "given"))
        for number, page in enumerate(pages):
            page_folder = Path(folder, f"page-{number}")
            copy_folder(given, page_folder)
            os.chdir(page_folder)
            start = time.process_time()
            report = Session(page, run_marked=run_marked, on_message=partial(print, flush=True)).run()
            seconds = time.process_time() - start
            n_failed += len(report.failures)
            skipped = f", {len(report.skipped)} not run" if report.skipped else ""
            print(f"{page_name(page)}: {report.n_run} blocks run{skipped}, {seconds:.1f} s of CPU time", flush=True)
            print("".join(f"{failure}\n" for failure in report.failures), end="", flush=True)
            os.chdir(folder)
    print(f"{n_failed} failures" if n_failed else "every block prints what its page says")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())

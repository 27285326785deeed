"""Running a command line in this process."""

import shlex

from headway.cli import main


def run(command: str, capsys) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    try:
        main(shlex.split(command))
        code = 0
    except SystemExit as end:
        code = end.code or 0
    out, err = capsys.readouterr()
    return code, out, err

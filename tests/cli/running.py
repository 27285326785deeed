"""Run command lines in this process."""

import shlex

from headway.cli import main


def run(command: str, capsys) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    code = exit_code(command)
    out, err = capsys.readouterr()
    return code, out, err


def exit_code(command: str) -> int:
    try:
        main(shlex.split(command))
    except SystemExit as end:
        return end.code or 0
    return 0

"""Run command lines in this process."""

import shlex

import headway
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


def train_until(recipe_file, run, ranks, kill_step, folder):
    """In place of the processes of `check resume` (tests/training/test_resume.py has those): train in this process, and
    stop by an exception after `kill_step`."""

    class PowerCut(BaseException):
        pass

    def cut(progress):
        if progress.step == kill_step:
            raise PowerCut

    try:
        headway.train(headway.load_recipe(recipe_file), out=run.path, resume=True, on_step=cut)
    except PowerCut:
        return True
    return False

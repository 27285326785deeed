"""Every command in the tables of docs/lectures.md runs, its bold numbers are printed, and its files exist."""

import re

import pytest

from tests.cli.running import run
from tests.docs.blocks import DOCS, ROOT

PAGE = DOCS / "lectures.md"


def rows():
    """(line number, file, command or "", what you see) of each row of the tables."""
    for number, line in enumerate(PAGE.read_text(encoding="utf-8").splitlines(), 1):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 4 and cells[0] != "idea" and not set(cells[0]) <= set("-"):
            command = re.search(r"`headway ([^`]+)`", cells[2])
            yield number, cells[1].strip("`"), command[1] if command and "](" not in cells[2] else "", cells[3]


ROWS = list(rows())
COMMANDS = sorted({command for _, _, command, _ in ROWS if command})


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_prints_its_bold_numbers(command, workspace, monkeypatch, capsys):
    monkeypatch.chdir(workspace)
    monkeypatch.setenv("COLUMNS", "160")
    code, out, err = run(command, capsys)
    lines = [number for number, _, other, _ in ROWS if other == command]
    assert code == 0, f"docs/lectures.md:{lines[0]}: headway {command}\n{err}"
    assert out
    printed = out + err
    for number, _, other, seen in ROWS:
        for value in re.findall(r"\*\*(.+?)\*\*", seen) if other == command else ():
            pattern = rf"(?<![\d.,]){re.escape(value)}(?![\d]|[.,]\d)" if value[0].isdigit() else re.escape(value)
            assert re.search(pattern, printed), f"docs/lectures.md:{number}: {value} is not in the output\n{printed}"


def test_the_files_exist():
    for number, name, _, _ in ROWS:
        place = ROOT / name if name.startswith("examples/") else ROOT / "src" / "headway" / name
        assert place.exists(), f"docs/lectures.md:{number}: there is no {name}"


def test_no_idea_is_without_a_command_or_a_page():
    for number, _, command, _ in ROWS:
        line = PAGE.read_text(encoding="utf-8").splitlines()[number - 1]
        assert command or re.search(r"\]\(\w+\.md[)#]", line), f"docs/lectures.md:{number}: no command and no page"

"""Every page runs from top to bottom, and prints what it says."""

import re
import shlex

import pytest

from headway.cli import app
from tests.docs.blocks import Block, find_pages, page_name, read_blocks, read_commands, unattached_marks
from tests.docs.files import copy_folder, make_page_folder
from tests.docs.session import RUN_LANGUAGES, Session

SHELLS = ("", "sh", "bash", "shell", "zsh", "shell-session")
PYTHONS = ("py", "python3", "pycon", "ipython")
PAGES = find_pages()
PAGES_WITH_CODE = [page for page in PAGES if any(block.language in RUN_LANGUAGES for block in read_blocks(page))]


@pytest.fixture(scope="module")
def page_folder(workspace, tmp_path_factory):
    return make_page_folder(tmp_path_factory.mktemp("docs") / "page", workspace)


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=page_name)
def test_the_page_runs_and_prints_what_it_says(page, page_folder, tmp_path, monkeypatch):
    copy_folder(page_folder, tmp_path)
    monkeypatch.chdir(tmp_path)
    report = Session(page).run()
    if report.failures:
        pytest.fail("\n".join(report.failures), pytrace=False)
    code = [block for block in read_blocks(page) if block.language in RUN_LANGUAGES]
    assert report.n_run + len(report.skipped) == len(code), "a block is neither run nor marked"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_and_python_are_in_blocks_that_are_run(page):
    for block in read_blocks(page):
        assert block.language not in SHELLS, f"{block.place()}: write `console`, and `$` before each command"
        assert block.language not in PYTHONS, f"{block.place()}: write `python`"
        if block.language == "text":
            commands = [line for line in block.lines if line.text.startswith(("$ ", "headway ", "python ", "pip "))]
            assert not commands, f"{block.place(commands[0].number)}: put commands into a `console` block"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_mark_is_directly_above_a_block(page):
    assert [f"{page_name(page)}:{line.number}" for line in unattached_marks(page)] == []


# ── blocks that are not run ───────────────────────────────────────────────────────────────────────────────────────

VERBS = app.parser
MARKED = [block for page in PAGES for block in read_blocks(page) if "docs-check" in block.marks]


@pytest.mark.parametrize("block", [block for block in MARKED if block.language == "console"], ids=Block.place)
def test_the_commands_of_a_marked_block_exist_with_their_options(block):
    for command in read_commands(block):
        words = shlex.split(command.text, comments=True)
        if "headway" not in words:
            continue
        words = words[words.index("headway") + 1 :]
        verb = VERBS
        while hasattr(verb, "commands"):
            assert words[0] in verb.commands, f"{block.place(command.line)}: no command {words[0]!r}"
            verb = verb.commands[words.pop(0)]
        options = {option for parameter in verb.params for option in parameter.opts}
        unknown = [word for word in words if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in options]
        assert not unknown, f"{block.place(command.line)}: no option {unknown[0]}"


@pytest.mark.parametrize("block", [block for block in MARKED if block.language == "python"], ids=Block.place)
def test_the_python_of_a_marked_block_compiles(block):
    compile(block.code, block.place(), "exec")

"""The code blocks of a page, with the marks above them and the output that they expect."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
GENERATED = ("_build", "_ext", "reference")
MARKS = ("docs-check", "output", "tolerance")
FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+)(?P<language>\S*)")
MARK = re.compile(r"^ *<!-- *(?P<name>[\w-]+): *(?P<value>.+?) *-->$")
CONTINUED = re.compile(r"\\$")


@dataclass(frozen=True)
class Line:
    """A line of a page, with its number."""

    number: int
    text: str


@dataclass(frozen=True)
class Command:
    """A command of a console block, and the lines that the page says it prints."""

    line: int
    text: str
    output: tuple[Line, ...]


@dataclass(frozen=True)
class Block:
    """A code block. `before` is the text between it and the block above."""

    page: Path
    language: str
    lines: tuple[Line, ...]
    marks: dict[str, str] = field(default_factory=dict)
    before: str = ""
    output: tuple[Line, ...] = ()  # of a Python block: the text block directly below it

    @property
    def line(self) -> int:
        return self.lines[0].number if self.lines else 0

    @property
    def code(self) -> str:
        return "".join(f"{line.text}\n" for line in self.lines)

    def place(self, line: int | None = None) -> str:
        """Where it is: docs/attention.md:57"""
        return f"{page_name(self.page)}:{line or self.line}"


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name


def find_pages() -> list[Path]:
    """README.md and every page of docs/, except for those that `make docs` generates."""
    pages = (page for page in DOCS.rglob("*.md") if page.relative_to(DOCS).parts[0] not in GENERATED)
    return [ROOT / "README.md", *sorted(pages)]


def read_blocks(page: Path) -> list[Block]:
    """The code blocks of a page, in order."""
    blocks: list[Block] = []
    for block in _blocks(page):
        is_output = block.language == "text" and not _without_marks(block.before).strip()
        if is_output and blocks and blocks[-1].language == "python":
            above = blocks.pop()
            marks = above.marks | block.marks
            block = Block(page, "python", above.lines, marks, above.before, output=block.lines)
        blocks.append(block)
    return blocks


def unattached_marks(page: Path) -> list[Line]:
    """Marks that are above no block, and so have no effect."""
    attached = sum(len(block.marks) for block in _blocks(page))
    marks = [Line(n, line) for n, line in enumerate(_page_lines(page), 1) if _mark(line)]
    return [] if len(marks) == attached else marks


def _blocks(page: Path) -> Iterator[Block]:
    lines = _page_lines(page)
    start = previous_end = 0
    while start < len(lines):
        fence = FENCE.match(lines[start])
        if not fence:
            start += 1
            continue
        end = next(i for i in range(start + 1, len(lines)) if lines[i].strip() == fence["ticks"])
        indent = len(fence["indent"])
        code = tuple(Line(i + 1, lines[i][indent:]) for i in range(start + 1, end))
        before = lines[previous_end:start]
        yield Block(page, fence["language"], code, _marks_above(before), "\n".join(before))
        start = previous_end = end + 1


def _page_lines(page: Path) -> list[str]:
    return page.read_text(encoding="utf-8").splitlines()


def _mark(line: str) -> re.Match[str] | None:
    mark = MARK.match(line)
    return mark if mark and mark["name"] in MARKS else None


def _marks_above(before: list[str]) -> dict[str, str]:
    marks = {}
    for line in reversed(before):
        if mark := _mark(line):
            marks[mark["name"]] = mark["value"]
        elif line.strip():
            break
    return marks


def _without_marks(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not _mark(line))


def read_commands(block: Block) -> list[Command]:
    """The commands of a console block: lines after `$`, continued where they end with a backslash."""
    commands: list[Command] = []
    lines = list(block.lines)
    while lines:
        line = lines.pop(0)
        if not line.text.startswith("$ "):
            if not commands:
                raise AssertionError(f"{block.place(line.number)}: a console block starts with `$ ` and a command")
            last = commands.pop()
            commands.append(Command(last.line, last.text, (*last.output, line)))
            continue
        text = line.text[2:]
        while CONTINUED.search(text) and lines:
            text = CONTINUED.sub("", text) + lines.pop(0).text.strip()
        commands.append(Command(line.number, text, ()))
    return commands

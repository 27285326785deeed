"""What `check_homework` found: one `PartResult` per part, and the `HomeworkReport` of all."""

import textwrap
from dataclasses import asdict, dataclass
from typing import Any, Literal

PartStatus = Literal["right", "wrong", "not done yet", "crashed", "missing"]

COLUMNS = 100  # of a printed report
INDENT = " " * 14


@dataclass(frozen=True)
class PartResult:
    """The outcome of one part. `mistakes` are names of known mistakes, `message` says what is wrong and how."""

    name: str
    symbol: str  # its name in the file
    status: PartStatus
    statement: str
    mistakes: tuple[str, ...] = ()
    message: str = ""
    line: int | None = None  # of the student's file, where it crashed or is not done yet
    difference: float | None = None  # the largest, from the reference

    def __str__(self) -> str:
        label = self.status if self.status in ("right", "not done yet") else self.status.upper()
        lines = [f"{label:<14}{self.name:<22}{self.statement}"]
        if self.mistakes:
            lines += textwrap.wrap(f"mistake: {', '.join(self.mistakes)}", COLUMNS, initial_indent=INDENT)
        for text in self.message.splitlines():
            lines += textwrap.wrap(text, COLUMNS, initial_indent=INDENT, subsequent_indent=INDENT)
        return "\n".join(lines)


@dataclass(frozen=True)
class HomeworkReport:
    file: str
    results: tuple[PartResult, ...]

    @property
    def passed(self) -> bool:
        return all(result.status == "right" for result in self.results)

    @property
    def mistakes(self) -> list[str]:
        """The names of all mistakes found, in the order of the parts."""
        return list(dict.fromkeys(name for result in self.results for name in result.mistakes))

    def __getitem__(self, name: str) -> PartResult:
        """The result of a part by its name, or by its name in the file."""
        return next(result for result in self.results if name in (result.name, result.symbol))

    def __str__(self) -> str:
        counts = {
            status: sum(result.status == status for result in self.results)
            for status in ("right", "wrong", "crashed", "missing", "not done yet")
        }
        verdict = ", ".join(f"{n} {status}" for status, n in counts.items() if n)
        return "\n".join([*map(str, self.results), f"homework: {verdict}"])

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"file": self.file, "passed": self.passed, "mistakes": self.mistakes,
                "parts": [asdict(result) for result in self.results]}  # fmt: skip

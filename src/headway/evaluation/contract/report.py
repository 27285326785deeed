"""What `check_contract` found: one `PropertyResult` per property, and the `ContractReport` of all."""

import textwrap
from dataclasses import asdict, dataclass
from typing import Any, Literal

from headway.evaluation.contract.probe import ModelKind

CheckStatus = Literal["passed", "failed", "note", "skipped"]

COLUMNS = 100  # of a printed report


@dataclass(frozen=True)
class PropertyResult:
    """The outcome of one property. `message` says what was found, `hint` what usually causes it."""

    name: str
    status: CheckStatus
    statement: str
    message: str = ""
    hint: str = ""
    row: int | None = None
    position: int | None = None
    difference: float | None = None  # in nats; for an encoder, in its own numbers
    may_follow_from: tuple[str, ...] = ()  # failed properties that may be the cause

    def __str__(self) -> str:
        label = {"passed": "ok", "failed": "FAILED", "note": "note", "skipped": "skipped"}[self.status]
        lines = [f"{label:<9}{self.name:<15}{self.statement}"]
        details = [self.message, self.hint]
        if self.may_follow_from:
            details = [self.message, f"May follow from {', '.join(self.may_follow_from)}: repair that first."]
        indent = " " * 24
        for text in filter(None, details):
            lines += textwrap.wrap(text, COLUMNS, initial_indent=indent, subsequent_indent=indent)
        return "\n".join(lines)


@dataclass(frozen=True, repr=False)
class ContractReport:
    """What `check_contract` found. Print it to read it; its repr is one line."""

    model: str
    kind: ModelKind
    batch_size: int
    length: int
    seed: int
    atol: float
    results: tuple[PropertyResult, ...]

    @property
    def passed(self) -> bool:
        """Whether no property fails. Notes and skipped properties do not count."""
        return not self.findings

    @property
    def findings(self) -> list[PropertyResult]:
        """The properties that fail, causes before consequences."""
        failed = [result for result in self.results if result.status == "failed"]
        return sorted(failed, key=lambda result: bool(result.may_follow_from))

    @property
    def notes(self) -> list[PropertyResult]:
        """What is not part of the contract but worth knowing, such as parameters without a gradient."""
        return [result for result in self.results if result.status == "note"]

    def __getitem__(self, name: str) -> PropertyResult:
        """The result of a property by its name."""
        return next(result for result in self.results if result.name == name)

    def __repr__(self) -> str:
        return f"ContractReport({self.model}: {self._verdict})"

    def __str__(self) -> str:
        size = f"{self.batch_size} × {self.length} random tokens"
        head = f"{self.model}, {self.kind}: {size}, seed {self.seed}, tolerance {self.atol:.0e}"
        return "\n".join([head, *map(str, self.results), f"contract: {self._verdict}"])

    @property
    def _verdict(self) -> str:
        counts = {status: sum(result.status == status for result in self.results) for status in ("passed", "skipped")}
        names = ", ".join(result.name for result in self.findings)
        verdict = f"{counts['passed']} properties hold" if counts["passed"] != 1 else "1 property holds"
        if self.findings:
            verdict += f", {len(self.findings)} {'fails' if len(self.findings) == 1 else 'fail'} ({names})"
        return verdict + (f", {counts['skipped']} skipped" if counts["skipped"] else "")

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"passed": self.passed, **asdict(self)}

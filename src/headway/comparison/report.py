"""A comparison in words and pictures: a table for the terminal, the same in Markdown, and a picture."""

from collections.abc import Sequence
from pathlib import Path

from headway.analysis.comparison_plots import PlotLine, draw_compute, draw_lengths
from headway.comparison.compare import Comparison, ModelResult

TITLES = {"bits_per_byte": "bits per byte", "perplexity": "perplexity", "exact_match": "exact match", "bleu": "BLEU"}


def text_table(found: Comparison) -> str:
    """Everything, for a terminal."""
    parts = [_about(found), "", _aligned(_head(found), [_cells(found, row) for row in found.rows], left=1)]
    if lengths := _length_rows(found):
        parts += ["", _length_title(found), "", _aligned(*lengths)]
    for row in found.rows:
        if row.sample:
            lines = "\n".join(f"    {_printable(line)}" for line in row.sample.splitlines() if line.strip())
            parts += ["", f"{row.name} writes:", "", lines]
    return "\n".join(parts)


def markdown(found: Comparison) -> str:
    """The same for a document."""
    parts = [_about(found), _piped(_head(found), [_cells(found, row) for row in found.rows])]
    if lengths := _length_rows(found):
        parts += [_length_title(found), _piped(*lengths)]
    for row in found.rows:
        if row.sample:
            quoted = "\n".join(f"> {line}" for line in row.sample.splitlines() if line.strip())
            parts += [f"{row.name} writes:", quoted]
    return "\n\n".join(parts) + "\n"


def draw(found: Comparison, file: str | Path) -> Path:
    """Bits per byte against the operations of training; of pairs, what is right against the length of the source."""
    if found.kind == "text":
        lines = [
            PlotLine(
                _named(row),
                [point.flops for point in row.curve] or [row.flops] * bool(row.flops),
                [point.score for point in row.curve] or [row.scores["bits_per_byte"]],
            )
            for row in found.rows
        ]
        return draw_compute(lines, file, ylabel="bits per byte of held-out text")
    lines = [
        PlotLine(
            _named(row),
            [(some.least + some.most) / 2 for some in row.by_length],
            [getattr(some, found.metric) * (100 if found.metric == "exact_match" else 1) for some in row.by_length],
        )
        for row in found.rows
    ]
    ylabel = "exact match, %" if found.metric == "exact_match" else "BLEU"
    return draw_lengths(lines, file, ylabel=ylabel, longest=found.longest, xlabel="tokens of the source")


def _named(row: ModelResult) -> str:
    return f"{row.name} ({row.year})" if row.year else row.name


def _about(found: Comparison) -> str:
    part = "of the test part" if found.part == "test" else "held out"
    what = f"{found.data}, {found.budget}; scored on {found.size} {part}"
    how = f"windows of {found.context} of {found.vocab_size:,} tokens" if found.kind == "text" else ""
    return f"{what}{f', {how}' if how else ''}"


def _head(found: Comparison) -> list[str]:
    return ["year", "model", "parameters", "tokens", "FLOPs", "seconds", *map(TITLES.__getitem__, _scores(found))]


def _scores(found: Comparison) -> list[str]:
    return [name for name in TITLES if name in found.rows[0].scores]


def _cells(found: Comparison, row: ModelResult) -> list[str]:
    forms = {"bits_per_byte": "{:.4f}", "perplexity": "{:,.2f}", "exact_match": "{:.1%}", "bleu": "{:.2f}"}
    return [
        str(row.year or ""),
        row.name,
        f"{row.n_params:,}",
        f"{row.n_tokens:,}",
        f"{row.flops:.2g}" if row.flops else "0",
        f"{row.seconds:.1f}",
        *(forms[name].format(row.scores[name]) for name in _scores(found)),
    ]


def _length_title(found: Comparison) -> str:
    longest = f"; the longest learned from has {found.longest}" if found.longest else ""
    return f"{TITLES[found.metric]} by the number of tokens of the source{longest}"


def _length_rows(found: Comparison) -> tuple[list[str], list[list[str]]] | None:
    """A row for each range of lengths, a column for each contestant."""
    ranges = sorted({(some.least, some.most, some.n) for row in found.rows for some in row.by_length})
    if not ranges:
        return None
    form = "{:.1%}" if found.metric == "exact_match" else "{:.2f}"
    table = []
    for least, most, n in ranges:
        cells = [f"{least}-{most}" if least < most else str(least), f"{n:,}"]
        for row in found.rows:
            here = [some for some in row.by_length if (some.least, some.most, some.n) == (least, most, n)]
            cells.append(form.format(getattr(here[0], found.metric)) if here else "")
        table.append(cells)
    return ["tokens", "sentences", *(row.name for row in found.rows)], table


def _printable(line: str) -> str:
    """Nothing that a terminal would obey."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)


def _aligned(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int | None = None) -> str:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row in (head, *rows):
        cells = [
            cell.ljust(w) if i == left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _piped(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = "| " + " | ".join("---" if i == 1 else "---:" for i in range(len(head))) + " |"
    lines = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in (head, *rows)]
    return "\n".join([f"| {lines[0]} |", rule, *(f"| {line} |" for line in lines[1:])])

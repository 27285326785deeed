"""Tables for the terminal: columns side by side, shortened or left out until they fit the width."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

GAP = "  "
MIN_TEXT_WIDTH = 16  # text columns are not shortened below it


@dataclass(frozen=True)
class Column:
    title: str
    cells: Sequence[str]
    is_text: bool = False  # flush left, and shortened where the table is too wide; numbers are flush right
    keeps_end: bool = False  # shorten at the beginning: the end of a path tells more
    rank: int = 0  # columns of the highest rank are left out first; those of rank 0 never are

    @property
    def width(self) -> int:
        return max(map(len, [self.title, *self.cells]))


def render_table(columns: Sequence[Column], width: int | None = None) -> str:
    """A line of titles and a line per row, none longer than `width` if the columns of rank 0 allow it."""
    kept = list(columns)
    if width is not None:
        kept = _shorten(kept, width)
        while _total(kept) > width and any(column.rank for column in kept):
            worst = max(column.rank for column in kept)
            kept.remove(next(column for column in reversed(kept) if column.rank == worst))
        kept = _shorten([column for column in columns if column.title in {k.title for k in kept}], width)
    rows = zip(*([column.title, *column.cells] for column in kept), strict=True)
    return "\n".join(GAP.join(_padded(c, cell) for c, cell in zip(kept, row, strict=True)).rstrip() for row in rows)


def _total(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + len(GAP) * (len(columns) - 1)


def _shorten(columns: list[Column], width: int) -> list[Column]:
    """Shorten the widest text column, then the next, until the table fits or none can give more."""
    columns = list(columns)
    while (excess := _total(columns) - width) > 0:
        i = max(range(len(columns)), key=lambda i: columns[i].width if columns[i].is_text else 0)
        target = max(MIN_TEXT_WIDTH, columns[i].width - excess)
        if not columns[i].is_text or columns[i].width <= target:
            break
        cells = [_shortened(cell, target, keeps_end=columns[i].keeps_end) for cell in columns[i].cells]
        columns[i] = replace(columns[i], cells=cells)
    return columns


def _shortened(text: str, width: int, *, keeps_end: bool) -> str:
    if len(text) <= width:
        return text
    return "…" + text[len(text) - width + 1 :] if keeps_end else text[: width - 1] + "…"


def _padded(column: Column, cell: str) -> str:
    return cell.ljust(column.width) if column.is_text else cell.rjust(column.width)

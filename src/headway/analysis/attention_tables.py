"""The steps of attention as small tables: a row per token, matrices that are too wide cut in the middle."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.cells import cell_len, set_cell_size
from torch import Tensor

from headway.analysis.attention_plots import SIDES, cut_label
from headway.analysis.layer_attention import TextAttentionSteps
from headway.analysis.worked_attention import AttentionSteps
from headway.errors import count

MAX_ROWS = 16  # tokens in a table: of more, the first and the last are shown
MAX_COLUMN_LABEL = 10  # characters of a token above a column
WEIGHT_DECIMALS = 2
GAP = "…"


@dataclass(frozen=True, eq=False)
class StepTable:
    """One step: its formula, what it is, and the matrix."""

    formula: str
    caption: str
    matrix: Tensor  # (rows, columns)
    rows: Sequence[str]
    columns: Sequence[str] | None = None  # None: numbered from 0
    is_weights: bool = False  # every row sums to 1, and the table shows it

    @property
    def title(self) -> str:
        n_rows, n_columns = self.matrix.shape
        return f"{self.formula}  ({n_rows} × {n_columns})" + (f"  {self.caption}" if self.caption else "")


def render_steps(steps: AttentionSteps, *, width: int = 80) -> str:
    """Every step as a table with lines of at most `width` characters; several heads one after the other."""
    return "\n\n".join(render_table(table, width=width) for table in step_tables(steps))


def render_text_steps(attention: TextAttentionSteps, *, width: int = 80) -> str:
    """The same for one head of a model, with a line above that says which."""
    size = f"of {attention.n_layers} × {attention.n_heads}, counted from 0"
    where = f"layer {attention.layer}, head {attention.head} ({size})"
    tables = step_tables(attention.steps, captions=_captions(attention), head=attention.head)
    return "\n\n".join([f"{SIDES[attention.side]}, {where}", *(render_table(table, width=width) for table in tables)])


def _captions(attention: TextAttentionSteps) -> dict[str, str]:
    """What the steps of a model are, where that depends on the model."""
    moved = {"rotary": ", rotated by position", "per-layer": ", with the position added"}.get(attention.positions, "")
    moved += ", of length 1" if attention.similarity == "cosine" else ""
    source = "memory" if attention.side == "cross" else "X"
    kinds = {"relative": "the learned bias of each distance", "alibi": "ALiBi: falls with the distance"}
    return {
        "X": "the layer's input" + (", normalised" if attention.is_normalized else ""),
        "Q": f"X · W_Q{moved}",
        "K": f"{source} · W_K{moved}",
        "V": f"{source} · W_V{', with the position added' if attention.positions == 'per-layer' else ''}",
        "bias": kinds.get(attention.positions, ""),
        "projected": "plus the bias: the layer's output" if attention.has_output_bias else "the layer's output",
    }


def step_tables(
    steps: AttentionSteps, *, captions: dict[str, str] | None = None, head: int | None = None
) -> list[StepTable]:
    """The tables in the order of the computation. `head` is the number of the head among those that `concat` holds."""
    captions = captions or {}
    tables: list[StepTable] = []
    if steps.X is not None:
        tables.append(StepTable("X", captions.get("X", ""), steps.X, steps.rows))
    if steps.memory is not None:
        tables.append(StepTable("memory", "the encoder's output", steps.memory, steps.columns))
    if steps.scores.dim() == 2:
        tables += _head_tables(steps, captions)
    else:
        for number in range(len(steps.scores)):
            tables += _head_tables(head_of(steps, number), captions, f"head {number}: ")
    if steps.concat is not None:
        n_heads = steps.concat.shape[-1] // steps.output.shape[-1]
        d_head = steps.output.shape[-1]
        columns_of_head = "" if head is None else f"; this head: columns {head * d_head} to {(head + 1) * d_head - 1}"
        caption = f"A V of all {n_heads} heads side by side{columns_of_head}"
        tables.append(StepTable("concat", caption, steps.concat, steps.rows))
    if steps.projected is not None:
        tables.append(StepTable("concat · W_O", captions.get("projected", ""), steps.projected, steps.rows))
    return tables


def head_of(steps: AttentionSteps, head: int) -> AttentionSteps:
    """The steps of one of several heads, without what the heads have in common."""
    return AttentionSteps(
        *(steps.Q[head], steps.K[head], steps.V[head], steps.scores[head], steps.scale, steps.scaled[head]),
        *(steps.mask[head], steps.masked[head], steps.weights[head], steps.output[head]),
        bias=None if steps.bias is None else steps.bias[head],
        rows=steps.rows,
        columns=steps.columns,
    )


def _head_tables(steps: AttentionSteps, captions: dict[str, str], prefix: str = "") -> list[StepTable]:
    rows, columns = steps.rows, steps.columns
    scaled, n_hidden = scale_formula(steps), int((~steps.mask).sum())
    is_changed = n_hidden > 0 or steps.bias is not None
    tables = [
        StepTable("Q", captions.get("Q", ""), steps.Q, rows),
        StepTable("K", captions.get("K", ""), steps.K, columns),
        StepTable("V", captions.get("V", ""), steps.V, columns),
    ]
    unmasked = "" if is_changed else "; nothing is masked"
    if steps.scale == 1:
        tables.append(StepTable("Q Kᵀ", f"scores, not scaled{unmasked}", steps.scores, rows, columns))
    else:
        tables.append(StepTable("Q Kᵀ", "scores", steps.scores, rows, columns))
        tables.append(StepTable(scaled, f"scaled{unmasked}", steps.scaled, rows, columns))
    if steps.bias is not None:
        tables.append(StepTable("bias", captions.get("bias", ""), steps.bias, rows, columns))
    if is_changed:
        formula = scaled + (" + bias" if steps.bias is not None else "")
        caption = f"masked: −∞ in {count(n_hidden, 'cell')}" if n_hidden else "nothing is masked"
        tables.append(StepTable(formula, caption, steps.masked, rows, columns))
    tables += [
        StepTable("A = softmax", "weights", steps.weights, rows, columns, is_weights=True),
        StepTable("A V", "output", steps.output, rows),
    ]
    return [StepTable(prefix + t.formula, t.caption, t.matrix, t.rows, t.columns, t.is_weights) for t in tables]


def scale_formula(steps: AttentionSteps) -> str:
    """Q Kᵀ / √64, or with a factor that is no such root."""
    if steps.scale == 1:
        return "Q Kᵀ"
    width = round(steps.scale**-2) if steps.scale > 0 else 0
    is_root = width > 0 and math.isclose(steps.scale, width**-0.5)
    return f"Q Kᵀ / √{width}" if is_root else f"Q Kᵀ · {steps.scale:g}"


# ── one table ─────────────────────────────────────────────────────────────────────────────────────────────────────


def render_table(table: StepTable, *, width: int = 80) -> str:
    """The title, the columns' names, and a line per row."""
    matrix = table.matrix
    decimals = WEIGHT_DECIMALS if table.is_weights else _decimals(matrix)
    row_indices = _shown(matrix.shape[0], MAX_ROWS)
    label_width = max((cell_len(cut_label(table.rows[i])) for i in row_indices if i is not None), default=0)
    names = [str(i) for i in range(matrix.shape[1])] if table.columns is None else list(table.columns)
    names = [cut_label(name, MAX_COLUMN_LABEL) for name in names]
    extra = ["sum"] if table.is_weights else []
    width_left = width - 2 - label_width - sum(2 + max(4, cell_len(name)) for name in extra)
    numbers = [[format_number(x, decimals) for x in row] for row in matrix.tolist()]
    sizes = [max(cell_len(name), *(cell_len(row[j]) for row in numbers)) for j, name in enumerate(names)]
    indices = _fitting(sizes, width_left)
    lines = [table.title, " " * (2 + label_width) + _line(names, indices, sizes) + "".join(f"  {e:>4}" for e in extra)]
    for i in row_indices:
        if i is None:
            lines.append("  " + GAP)
            continue
        label = set_cell_size(cut_label(table.rows[i]), label_width)
        total = f"  {float(matrix[i].sum()):4.2f}" if table.is_weights else ""
        lines.append(f"  {label}{_line(numbers[i], indices, sizes)}{total}")
    return "\n".join(line.rstrip() for line in lines)


def format_number(x: float, decimals: int) -> str:
    """A number with these decimals; −∞ as the sign, and no minus before zero."""
    if math.isinf(x):
        return "−∞" if x < 0 else "∞"
    text = f"{x:.{decimals}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def _decimals(matrix: Tensor) -> int:
    """As many that the largest number has three digits, but two if it is below 100, and at most four."""
    finite = matrix[matrix.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    least = 2 if largest < 100 else 1
    return least if largest == 0 else min(4, max(least, 2 - math.floor(math.log10(largest))))


def _shown(n: int, most: int) -> list[int | None]:
    """The indices of `n` things of which `most` are shown, with None for those between the first and the last."""
    return list(range(n)) if n <= most else [*range(most - 2), None, n - 1]


def _fitting(sizes: Sequence[int], width: int) -> list[int | None]:
    """The columns that fit: all, or the first ones, a gap and the last."""
    if sum(size + 2 for size in sizes) <= width:
        return list(range(len(sizes)))
    shown, used = 0, sizes[-1] + 2 + len(GAP) + 2
    while shown < len(sizes) - 2 and used + sizes[shown] + 2 <= width:
        used += sizes[shown] + 2
        shown += 1
    return [*range(shown), None, len(sizes) - 1]


def _line(cells: Sequence[str], indices: Sequence[int | None], sizes: Sequence[int]) -> str:
    parts = (GAP if j is None else " " * (sizes[j] - cell_len(cells[j])) + cells[j] for j in indices)
    return "".join(f"  {part}" for part in parts)


# ── plain scores ──────────────────────────────────────────────────────────────────────────────────────────────────


def render_scores(steps: AttentionSteps) -> str:
    """Scores, scaled scores and weights of one query, without tokens: a line each."""
    rows = {
        "scores": [_short(x) for x in steps.scores[0].tolist()],
        scale_formula(steps).removeprefix("Q Kᵀ").strip() or "/ √1": [_short(x) for x in steps.scaled[0].tolist()],
        "softmax": [f"{x:.{WEIGHT_DECIMALS}f}" for x in steps.weights[0].tolist()],
    }
    label_width = max(map(len, rows))
    sizes = [max(map(len, column)) for column in zip(*rows.values(), strict=True)]
    return "\n".join(
        label.ljust(label_width) + "".join(f"  {cell:>{size}}" for cell, size in zip(cells, sizes, strict=True))
        for label, cells in rows.items()
    )


def _short(x: float) -> str:
    return "−∞" if x == -torch.inf else f"{x:.6g}"

"""The five attention masks, as models use them (nn/masks.py): tables of ■ and ·, or of 0 and −∞, and a picture.

A mask is added to the scores before the softmax: 0 changes nothing, and −∞ makes a weight of exactly 0, so that the
remaining weights of the row still sum to 1.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headway.analysis.attention_tables import format_number
from headway.analysis.plotting import figure_text, hatch_cells, hatching, legend_entry, open_figure, set_title, theme
from headway.errors import InputError, count, suggest
from headway.nn import masks

MAX_SIZE = 40  # tokens: more do not fit a terminal
MAX_NUMBERED = 12  # tokens: of larger masks the cells have no numbers in the picture
VISIBLE, HIDDEN = "■", "·"


@dataclass(frozen=True, eq=False)
class MaskExample:
    """A mask of a few tokens, and what it is for."""

    kind: str
    purpose: str  # a sentence
    code: str  # how nn/masks.py makes it
    mask: Tensor  # (T, S) True = may be attended to
    rows: list[str]  # the tokens that attend
    columns: list[str]  # the tokens attended to

    @property
    def additive(self) -> Tensor:
        """0 where the mask is True, −∞ elsewhere: what is added to the scores. (T, S)"""
        return torch.zeros(self.mask.shape).masked_fill(~self.mask, -torch.inf)


def _causal(n: int, window: int) -> MaskExample:
    return MaskExample(
        "causal",
        "A decoder predicts the next token, so each token attends to itself and earlier tokens only.",
        f"masks.causal({n})",
        masks.causal(n),
        *_tokens(n),
    )


def _padding(n: int, window: int) -> MaskExample:
    length = _n_real(n)
    return MaskExample(
        "padding",
        f"A shorter text of a batch is filled up with padding; nothing attends to it. Here {length} of {n} tokens are "
        f"real.",
        f"masks.padding(torch.tensor([{length}]), {n})",
        masks.padding(torch.tensor([length]), n).expand(n, n),
        *_tokens(n, n_real=length),
    )


def _cross(n: int, window: int) -> MaskExample:
    length = _n_real(n)
    n_targets = max(1, n - 1)
    return MaskExample(
        "cross",
        "Each target token attends to the whole source, whatever its position, but not to the padding of the source.",
        f"masks.padding(torch.tensor([{length}]), {n}), for {count(n_targets, 'target token')}",
        masks.padding(torch.tensor([length]), n).expand(n_targets, n),
        [f"y{i + 1}" for i in range(n_targets)],
        _tokens(n, n_real=length)[1],
    )


def _document(n: int, window: int) -> MaskExample:
    first = (n + 1) // 2
    documents = torch.tensor([[0] * first + [1] * (n - first)])
    letters = [f"{'ab'[int(d)]}{i + 1 - first * int(d)}" for i, d in enumerate(documents[0])]
    return MaskExample(
        "document",
        "Several documents are packed into one row; a token attends to itself and earlier tokens of its own.",
        f"masks.document(documents) & masks.causal({n})",
        (masks.document(documents) & masks.causal(n))[0],
        letters,
        letters,
    )


def _sliding(n: int, window: int) -> MaskExample:
    return MaskExample(
        "sliding",
        f"Each token attends to the last {count(window, 'token')}, itself included: the cost of a token no "
        f"longer grows with the text.",
        f"masks.sliding_window({n}, window={window})",
        masks.sliding_window(n, window=window),
        *_tokens(n),
    )


KINDS = {"causal": _causal, "padding": _padding, "cross": _cross, "document": _document, "sliding": _sliding}


def example_masks(kinds: Sequence[str] | None = None, *, size: int = 5, window: int = 3) -> list[MaskExample]:
    """Masks of `size` tokens of these kinds, by default all five. `window` is that of the sliding mask."""
    if not 1 <= size <= MAX_SIZE:
        raise InputError(f"size={size}: choose 1 to {MAX_SIZE} tokens")
    if window < 1:
        raise InputError(f"window={window}: a token attends at least to itself, so choose 1 or more")
    for kind in kinds or ():
        if kind not in KINDS:
            raise InputError(f"no mask named {kind!r}.{suggest(kind, KINDS)} There are: {', '.join(KINDS)}")
    return [KINDS[kind](size, window) for kind in kinds or KINDS]


def _n_real(n: int) -> int:
    """How many tokens of the examples with padding are real."""
    return max(1, n - max(1, 2 * n // 5))


def _tokens(n: int, n_real: int | None = None) -> tuple[list[str], list[str]]:
    labels = [f"x{i + 1}" if n_real is None or i < n_real else "pad" for i in range(n)]
    return labels, labels


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def render_text(examples: Sequence[MaskExample], *, as_numbers: bool = False, width: int = 80) -> str:
    """Each mask as a table with its purpose: ■ may be attended to and · may not, or 0 and −∞."""
    return "\n\n".join(_render(example, as_numbers, width) for example in examples)


def _render(example: MaskExample, as_numbers: bool, line_width: int) -> str:
    width = max(map(len, example.rows))
    cells = [
        [format_number(x, 0) if as_numbers else VISIBLE if x == 0 else HIDDEN for x in row]
        for row in example.additive.tolist()
    ]
    size = max(len(cell) for row in (*cells, example.columns) for cell in row)
    lines = [*textwrap.wrap(f"{example.kind}: {example.purpose}", max(20, line_width)), f"  {example.code}", ""]
    lines.append(" " * (2 + width) + "".join(f" {label:>{size}}" for label in example.columns))
    for label, row in zip(example.rows, cells, strict=True):
        lines.append(f"  {label:<{width}}" + "".join(f" {cell:>{size}}" for cell in row))
    return "\n".join(lines)


# ── picture ───────────────────────────────────────────────────────────────────────────────────────────────────────


def plot(examples: Sequence[MaskExample], file: str | Path) -> Path:
    """Write the masks side by side, at most three in a row."""
    across = min(3, len(examples))
    down = -(-len(examples) // across)
    size = min(4.0, max(1.9, 0.3 * examples[0].mask.shape[1]))
    with open_figure(file, width=max(4.6, across * (size + 0.75)), height=down * (size + 0.75) + 0.7) as figure:
        draw(figure, examples)
    return Path(file)


def draw(figure: Any, examples: Sequence[MaskExample]) -> None:
    """Draw the masks into an empty figure."""
    from matplotlib.colors import ListedColormap

    across = min(3, len(examples))
    down = -(-len(examples) // across)
    panels = figure.subplots(down, across, squeeze=False)
    fill = theme().colour(0)
    for axes, example in zip(panels.flat, examples, strict=False):
        shown = torch.where(example.mask, 1.0, torch.nan).numpy()
        axes.imshow(shown, cmap=ListedColormap([fill]), aspect="equal")
        hatch_cells(axes, (~example.mask).tolist())
        if max(example.mask.shape) <= MAX_NUMBERED:
            _write_numbers(axes, example)
        axes.set_title(example.kind)
        axes.set_xticks(range(len(example.columns)), labels=list(map(figure_text, example.columns)))
        axes.set_yticks(range(len(example.rows)), labels=list(map(figure_text, example.rows)))
        axes.tick_params(length=0, labelsize=8 if max(example.mask.shape) <= 8 else 6)
        if len(example.columns) > 8:
            axes.tick_params(axis="x", labelrotation=90)
        axes.spines[:].set_visible(True)
        axes.set_xlabel("source token" if example.kind == "cross" else "key")
        axes.set_ylabel("target token" if example.kind == "cross" else "query")
    spare = list(panels.flat[len(examples) :])
    for axes in spare:
        axes.axis("off")
    entries = [
        legend_entry("patch", facecolor=fill, label="0: may be attended to"),
        legend_entry("patch", **hatching(), label="−∞: masked"),
    ]
    if spare:
        spare[0].legend(handles=entries, loc="center", fontsize=9, handlelength=1.6, handleheight=1.6)
    else:
        figure.legend(handles=entries, loc="outside lower center", ncols=2, handlelength=1.6, handleheight=1.4)
    set_title(
        figure,
        "Attention masks, added to the scores before the softmax"
        if across > 1
        else "An attention mask, added to the scores",
    )


def _write_numbers(axes: Any, example: MaskExample) -> None:
    box = {"facecolor": theme().background, "edgecolor": "none", "pad": 0.8}
    for t, row in enumerate(example.additive.tolist()):
        for s, value in enumerate(row):
            is_visible = value == 0
            colour = theme().background if is_visible else theme().text
            axes.text(s, t, format_number(value, 0), horizontalalignment="center", verticalalignment="center",
                      fontsize=8 if len(row) <= 8 else 6, color=colour, bbox=None if is_visible else box)  # fmt: skip

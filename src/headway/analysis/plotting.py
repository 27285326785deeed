"""The only module that imports matplotlib, which is an optional dependency: figures in one style, and their text.

    with open_figure("loss.png", width=7, height=4) as figure:
        axes = figure.subplots()
        axes.plot(…)

Figures are built without pyplot, so that the backend and the settings of your session stay as they are. The same
data give the same file, byte for byte: no dates are written into it.
"""

import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from headway.errors import InputError, install_command

DPI = 150
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# Fonts that are used, where they are installed, for characters that DejaVu Sans, matplotlib's own font, does not have.
FALLBACK_FONTS = (
    "Noto Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Zen Hei", "PingFang SC",
    "Hiragino Sans", "Apple SD Gothic Neo", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic", "Nirmala UI",
    "Arial Unicode MS",
)  # fmt: skip


# ── themes ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Theme:
    """The colours of a figure. Figures take every colour from `theme()`, so that each can be drawn light and dark."""

    background: str
    text: str
    grey: str  # secondary text and lines
    light_grey: str  # bars and points behind others
    shade: str  # areas behind the data
    grid: str
    hatch: str  # hatching of masked cells
    colours: tuple[str, ...]  # of lines and bars, in this order
    sequential: str  # colour map from nothing, near the background, to much
    diverging: str  # colour map from negative through 0, near the background, to positive

    def colour(self, i: int) -> str:
        return self.colours[i % len(self.colours)]


THEMES = {
    # Okabe & Ito's palette, which colour-blind readers can tell apart, without its yellow, which is pale on white.
    "light": Theme(
        background="white",
        text="black",
        grey="0.45",
        light_grey="0.85",
        shade="0.94",
        grid="0.88",
        hatch="0.7",
        colours=("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"),
        sequential="Blues",
        diverging="RdBu_r",
    ),
    # The same palette, lighter, on the background of GitHub's dark pages.
    "dark": Theme(
        background="#0d1117",
        text="#e6edf3",
        grey="#9aa4b0",
        light_grey="#3a424d",
        shade="#1b222b",
        grid="#2a323c",
        hatch="#59636e",
        colours=("#4fb3ff", "#ff8a4c", "#2fd0a0", "#f0a3cb", "#f5c04a", "#9bdcff", "#e6edf3"),
        sequential="headway-dark-blues",
        diverging="headway-dark-red-blue",
    ),
}
_DARK_MAPS = {
    "headway-dark-blues": ("#0d1117", "#12365c", "#1f6fb2", "#56b4ff", "#d6efff"),
    "headway-dark-red-blue": ("#9bdcff", "#2f86c9", "#161d26", "#c95a2f", "#ffc39b"),
}

_theme_name: ContextVar[str] = ContextVar("theme", default="light")


def theme() -> Theme:
    """The colours that figures are drawn in now."""
    return THEMES[_theme_name.get()]


@contextmanager
def use_theme(name: str) -> Iterator[None]:
    """Draw the figures of this block "light" or "dark"."""
    if name not in THEMES:
        raise InputError(f"no theme named {name!r}: choose {' or '.join(THEMES)}")
    token = _theme_name.set(name)
    try:
        yield
    finally:
        _theme_name.reset(token)


def _register_dark_maps(matplotlib: Any) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    for name, colours in _DARK_MAPS.items():
        if name not in matplotlib.colormaps:
            matplotlib.colormaps.register(LinearSegmentedColormap.from_list(name, colours))


# ── figures ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _matplotlib() -> Any:
    try:
        import matplotlib.figure
        import matplotlib.style
    except ImportError:
        raise InputError(f"plots need matplotlib: {install_command('plots')}") from None
    return matplotlib


@contextmanager
def figure_style() -> Iterator[None]:
    """The common style for the block: matplotlib's defaults, whatever the user's own settings, and our changes."""
    matplotlib = _matplotlib()
    _register_dark_maps(matplotlib)
    t = theme()
    style = {
        "figure.facecolor": t.background,
        "savefig.facecolor": t.background,
        "axes.facecolor": t.background,
        "axes.edgecolor": t.text,
        "axes.labelcolor": t.text,
        "axes.titlecolor": t.text,
        "text.color": t.text,
        "xtick.color": t.text,
        "ytick.color": t.text,
        "image.cmap": t.sequential,
        "figure.dpi": DPI,
        "font.family": list(_font_families()),
        "font.size": 9,
        "figure.titlesize": 10,
        "axes.titlesize": 9,
        "axes.labelsize": 9,
        "xtick.labelsize": 8,
        "ytick.labelsize": 8,
        "legend.fontsize": 8,
        "legend.frameon": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "grid.color": t.grid,
        "grid.linewidth": 0.6,
        "lines.linewidth": 1.5,
        "lines.markersize": 4,
        "hatch.linewidth": 0.4,
        "svg.hashsalt": "headway",  # ids in SVG files are random otherwise
        "pdf.fonttype": 42,  # TrueType, as journals ask
    }
    with matplotlib.style.context(["default", style]):
        yield


def new_figure(width: float, height: float) -> Any:
    """An empty figure of this size in inches. Draw in it inside `figure_style`."""
    return _matplotlib().figure.Figure(figsize=(width, height), layout="constrained")


@contextmanager
def open_figure(file: str | Path, *, width: float, height: float) -> Iterator[Any]:
    """A figure of this size in inches, which is written to `file` at the end of the block."""
    with figure_style():
        figure = new_figure(width, height)
        yield figure
        save_figure(figure, file)


def save_figure(figure: Any, file: str | Path) -> None:
    """Write a figure in the format of the file's suffix."""
    no_date = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    figure.savefig(file, dpi=DPI, metadata=no_date.get(Path(file).suffix.lower()))


def set_title(figure: Any, *paragraphs: str) -> None:
    """A title over the whole figure: each paragraph starts a line, and is wrapped to the figure's width."""
    characters = int(figure.get_figwidth() * 72 / 5.8)  # at the title's 10 points, characters are about 5.8 points wide
    lines = [line for text in paragraphs if text for line in textwrap.wrap(text, max(20, characters))]
    figure.suptitle("\n".join(figure_text(line) for line in lines), x=0.01, horizontalalignment="left")


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@lru_cache
def _font_families() -> tuple[str, ...]:
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    return ("DejaVu Sans", *(name for name in FALLBACK_FONTS if name in installed))


@lru_cache
def _has_glyph() -> Callable[[str], bool]:
    from matplotlib.font_manager import findfont, get_font

    fonts = [get_font(findfont(name)) for name in _font_families()]
    return lru_cache(lambda character: any(font.get_char_index(ord(character)) for font in fonts))


def figure_text(text: str) -> str:
    r"""Text as a figure can show it: characters that no font has become their code (\u4e2d), and dollar signs are
    escaped, because a pair of them would start matplotlib's math mode."""
    has_glyph = _has_glyph()
    text = "".join(
        character if character == "\n" or has_glyph(character) else character.encode("unicode_escape").decode()
        for character in text
    )
    return text.replace("$", r"\$")


def shorten(text: str, length: int) -> str:
    """The text on one line, cut to `length` characters."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


# ── labels that do not collide ────────────────────────────────────────────────────────────────────────────────────


def fit_tick_labels(panels: Sequence[Any]) -> None:
    """Rotate the labels of the x axis if they would touch, then keep every k-th label of both axes, with the smallest k
    at which none touch. Sizes are measured, so call this when everything else is drawn.

    `panels` share their axes; those whose axes are labelled all have the same ticks.
    """
    figure = panels[0].get_figure()
    labelled_x = [axes for axes in panels if axes.xaxis.get_tick_params()["labelbottom"]]
    labelled_y = [axes for axes in panels if axes.yaxis.get_tick_params()["labelleft"]]
    figure.draw_without_rendering()
    is_rotated = any(_label_step(axes.xaxis) > 1 for axes in labelled_x)
    if is_rotated:
        for axes in labelled_x:
            axes.xaxis.set_tick_params(labelrotation=90)
        figure.draw_without_rendering()
    for axis_group in ([axes.xaxis for axes in labelled_x], [axes.yaxis for axes in labelled_y]):
        step = max(map(_label_step, axis_group))
        if step > 1:
            labels = [label.get_text() for label in axis_group[0].get_ticklabels()]
            axis_group[0].set_ticks(axis_group[0].get_ticklocs()[::step], labels=labels[::step])
    if is_rotated:
        for label in (label for axes in labelled_x for label in axes.get_xticklabels()):
            is_single = len(label.get_text().strip("‘’")) == 1
            label.set_rotation(0 if is_single else 90)  # a single character is easier to read upright


def _label_step(axis: Any) -> int:
    """The smallest k at which no two neighbours among every k-th tick label touch."""
    boxes = [label.get_window_extent().padded(0.5) for label in axis.get_ticklabels() if label.get_text()]
    step = 1
    while any(box.overlaps(following) for box, following in pairwise(boxes[::step])):
        step += 1
    return step


def label_line_ends(axes: Any, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write the name of each line, given as (last x, last y, name, colour), to the right of the axes, at the height
    where the line ends or as near as the other names allow; a thin line leads to its end."""
    names = [
        axes.text(1.04, 0.5, figure_text(name), transform=axes.transAxes, verticalalignment="center", fontsize=8)
        for _, _, name, _ in ends
    ]
    axes.get_figure().draw_without_rendering()
    area = axes.get_window_extent()
    gap = 1.1 * max((name.get_window_extent().height for name in names), default=0) / area.height
    wanted = [(axes.transData.transform((x, y))[1] - area.y0) / area.height for x, y, _, _ in ends]
    for name, (x, y, _, colour), position in zip(names, ends, spread(wanted, gap), strict=True):
        name.set_y(position)
        leader = {"arrowstyle": "-", "color": colour, "linewidth": 0.8, "linestyle": ":", "shrinkA": 0, "shrinkB": 3}
        axes.annotate("", (x, y), (1.035, position), textcoords="axes fraction", arrowprops=leader)


def spread(positions: Sequence[float], gap: float) -> list[float]:
    """Positions moved as little as needed to be at least `gap` apart, in the same order.

    Neighbours that are too close form a group around the mean of where they want to be; groups that then touch are
    joined.
    """
    order = sorted(range(len(positions)), key=positions.__getitem__)
    groups: list[list[int]] = []

    def bounds(group: list[int]) -> tuple[float, float]:
        centre = sum(positions[i] for i in group) / len(group)
        return centre - gap * (len(group) - 1) / 2, centre + gap * (len(group) - 1) / 2

    for i in order:
        groups.append([i])
        while len(groups) > 1 and bounds(groups[-1])[0] - bounds(groups[-2])[1] < gap:
            last = groups.pop()
            groups[-1] += last
    moved = list(positions)
    for group in groups:
        for rank, i in enumerate(group):
            moved[i] = bounds(group)[0] + gap * rank
    return moved


def label_points(axes: Any, points: Sequence[tuple[float, float]], labels: Sequence[str], *, size: float = 8) -> None:
    """Write a label beside each point, where it covers no other label and no point; far ones get a thin line to theirs.
    Sizes are measured: draw everything else first, and settle the layout by `figure.draw_without_rendering()`."""
    figure = axes.get_figure()
    texts = [
        axes.annotate(figure_text(label), point, (0, 0), textcoords="offset points", ha="center", va="center",
                      fontsize=size)
        for point, label in zip(points, labels, strict=True)
    ]  # fmt: skip
    scale = figure.dpi / 72  # pixels per point of a font
    places = [axes.transData.transform(point) for point in points]
    boxes = [text.get_window_extent() for text in texts]
    radius = 4 * scale
    taken = [(x - radius, y - radius, x + radius, y + radius) for x, y in places]  # the points
    area = axes.get_window_extent()
    for text, (x, y), box, point in zip(texts, places, boxes, points, strict=True):
        width, height = box.width, box.height
        candidates = list(_label_places(x, y, width, height, radius))
        costs = [_overlap(place, taken) + _outside(place, area) for place in candidates]
        best = min(range(len(candidates)), key=lambda i: (round(costs[i], 3), i))
        left, bottom, right, top = candidates[best]
        taken.append(candidates[best])
        offset = ((left + right) / 2 - x, (bottom + top) / 2 - y)
        text.set_position((offset[0] / scale, offset[1] / scale))
        if best >= N_LABEL_SIDES:  # not on the innermost ring
            line = {"arrowstyle": "-", "color": theme().grey, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}
            edge = (min(max(x, left), right) - x, min(max(y, bottom), top) - y)
            axes.annotate("", point, (edge[0] / scale, edge[1] / scale), textcoords="offset points", arrowprops=line)


N_LABEL_SIDES = 8  # places around a point, at each distance
_SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
_Box = tuple[float, float, float, float]  # left, bottom, right, top


def _label_places(x: float, y: float, width: float, height: float, radius: float) -> Iterator[_Box]:
    """Boxes of this size around a point, the nearest first."""
    for ring in (1.0, 2.5, 4.5, 7.0):
        for across, up in _SIDES:
            left = x + across * (radius * ring + width / 2) - width / 2
            bottom = y + up * (radius * ring + height / 2) - height / 2
            yield left, bottom, left + width, bottom + height


def _overlap(box: _Box, others: Sequence[_Box]) -> float:
    """The area of a box that others cover."""
    return sum(
        max(0.0, min(box[2], other[2]) - max(box[0], other[0]))
        * max(0.0, min(box[3], other[3]) - max(box[1], other[1]))
        for other in others
    )


def _outside(box: _Box, area: Any) -> float:
    """The area of a box that lies outside the axes."""
    inside = max(0.0, min(box[2], area.x1) - max(box[0], area.x0)) * max(
        0.0, min(box[3], area.y1) - max(box[1], area.y0)
    )
    return (box[2] - box[0]) * (box[3] - box[1]) - inside


# ── parts of figures ──────────────────────────────────────────────────────────────────────────────────────────────


def log_ticks(axis: Any) -> None:
    """Label a logarithmic axis at powers of ten, and between them where it spans few."""
    from matplotlib import ticker

    low, high = sorted(axis.get_view_interval())
    subs = (1,) if high / low > 1e3 else (1, 2, 5) if high / low > 8 else (1, 2, 3, 4, 5, 6, 8)
    axis.set_major_locator(ticker.LogLocator(subs=subs))
    axis.set_major_formatter(ticker.LogFormatterSciNotation(minor_thresholds=(float("inf"), float("inf"))))
    axis.set_minor_formatter(ticker.NullFormatter())


def hatch_cells(axes: Any, masked: Sequence[Sequence[bool]]) -> Any:
    """Hatch the cells of a matrix that are True: row t at height t, column s at x = s, as `imshow` places them."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    rectangles = []
    for t, row in enumerate(masked):
        edges = [s for s in range(len(row) + 1) if (s < len(row) and row[s]) != (s > 0 and row[s - 1])]
        for left, right in zip(edges[::2], edges[1::2], strict=True):  # each run of masked cells
            corners = [(left, t), (right, t), (right, t + 1), (left, t + 1), (left, t)]
            rectangles.append(Outline([(x - 0.5, y - 0.5) for x, y in corners], closed=True))
    if not rectangles:
        return None
    outline = Outline.make_compound_path(*rectangles)
    return axes.add_patch(PathPatch(outline, **hatching()))


def hatching() -> dict[str, Any]:
    """The style of hatched cells: masked, or not there."""
    return {"facecolor": theme().background, "edgecolor": theme().hatch, "hatch": "/////", "linewidth": 0}


def legend_entry(kind: str, **style: Any) -> Any:
    """An artist that stands for others in a legend: a "patch" or a "line"."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    return Patch(**style) if kind == "patch" else Line2D([], [], **style)

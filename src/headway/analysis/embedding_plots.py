"""Nearest tokens and words in the plane, as tables for the terminal and as pictures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from headway.analysis.embedding_space import NearestTokens, NearToken, PlaneView, WordVectors
from headway.analysis.plotting import MARKERS, figure_text, label_points, legend_entry, open_figure, set_title, theme
from headway.errors import count
from headway.tables import Column, render_table

PANEL = 3.6  # inches
MAX_PANELS_PER_ROW = 3


def render_nearest(nearest: NearestTokens, by: str | None = None) -> str:
    """The neighbours by cosine and by dot product side by side, or one list with the values and ranks of both."""
    if by is not None:
        rows = nearest.by(by)
        second_measure = "dot" if by == "cosine" else "cosine"
        columns = [
            Column("token", [near.token for near in rows], is_text=True),
            Column("cosine", [f"{near.cosine:.3f}" for near in rows]),
            Column("dot", [f"{near.dot:.3f}" for near in rows]),
            Column(f"rank by {second_measure}", [f"{getattr(near, f'rank_by_{second_measure}'):,}" for near in rows]),
        ]
        return f"nearest to {nearest.token}, by {by}\n{render_table(columns)}"
    ranks = [str(i + 1) for i in range(len(nearest.by_cosine))]
    columns = [
        Column("rank", ranks),
        Column("by cosine", [near.token for near in nearest.by_cosine], is_text=True),
        Column("cosine", [f"{near.cosine:.3f}" for near in nearest.by_cosine]),
        Column("by dot product", [near.token for near in nearest.by_dot], is_text=True),
        Column("dot", [f"{near.dot:.3f}" for near in nearest.by_dot]),
    ]
    common = f"{nearest.n_common} of {count(len(ranks), 'token')} in both lists"
    return f"nearest to {nearest.token}: {common}\n{render_table(columns)}"


def plot_nearest(nearest: Sequence[NearestTokens], file: str | Path, *, model: str = "") -> Path:
    """Write a picture with a panel per token: its neighbours by both measures, the dot product against the cosine."""
    n_columns = min(len(nearest), MAX_PANELS_PER_ROW)
    n_rows = -(-len(nearest) // n_columns)
    with open_figure(file, width=0.6 + 4.6 * n_columns, height=1.1 + 3.9 * n_rows) as figure:
        panels = figure.subplots(n_rows, n_columns, squeeze=False)
        for axes, one in zip(panels.flat, nearest, strict=False):
            _draw_nearest(axes, one)
        for axes in panels.flat[len(nearest) :]:
            axes.remove()
        styles = [("o", 0, "among the nearest by cosine"), ("s", 1, "by dot product"), ("D", 2, "by both")]
        entries = [
            legend_entry("line", marker=marker, color=theme().colour(i), linestyle="", label=label)
            for marker, i, label in styles
        ]
        figure.legend(handles=entries, loc="outside lower right", ncols=3)
        set_title(figure, f"{model}: nearest tokens" if model else "Nearest tokens")
        figure.draw_without_rendering()  # the layout decides the size of the panels, by which labels are placed
        for axes, one in zip(panels.flat, nearest, strict=False):
            tokens = _either_list(one)
            label_points(axes, [(n.cosine, n.dot) for n in tokens], [n.token for n in tokens], size=7)
    return Path(file)


def _either_list(nearest: NearestTokens) -> list[NearToken]:
    return list({near.id: near for near in (*nearest.by_cosine, *nearest.by_dot)}.values())


def _draw_nearest(axes: Any, nearest: NearestTokens) -> None:
    by_cosine, by_dot = ({near.id for near in one} for one in (nearest.by_cosine, nearest.by_dot))
    for marker, i, ids in (("o", 0, by_cosine - by_dot), ("s", 1, by_dot - by_cosine), ("D", 2, by_cosine & by_dot)):
        points = [near for near in _either_list(nearest) if near.id in ids]
        axes.plot([p.cosine for p in points], [p.dot for p in points], marker, color=theme().colour(i), markersize=4.5)
    axes.set(
        xlabel=f"cosine with {figure_text(nearest.token)}", ylabel=f"dot product with {figure_text(nearest.token)}"
    )
    axes.set_title(figure_text(nearest.token))
    axes.margins(0.16)
    axes.grid()


# ── words in the plane ────────────────────────────────────────────────────────────────────────────────────────────


def render_vectors(vectors: WordVectors) -> str:
    """A table with the coordinates of every word in every view, and the variance that the plane explains."""
    columns = [Column("word", vectors.words, is_text=True)]
    lines = []
    for number, view in enumerate(vectors.views, 1):
        for axis in range(2):
            values = [f"{float(x) + 0.0:.3f}" for x in view.coordinates[:, axis]]
            columns.append(Column(f"{number}.{'xy'[axis]}", values))
        lines.append(f"{number}. {view.title}: {_explained(view)}")
    return "\n".join([*lines, "", render_table(columns)])


def _explained(view: PlaneView) -> str:
    x, y = view.explained
    return f"{x + y:.0%} of the variance in the plane ({x:.0%} along x, {y:.0%} along y)"


def plot_vectors(
    views: Sequence[PlaneView], labels: Sequence[str], file: str | Path, *, title: str = "", groups: Sequence[int] = ()
) -> Path:
    """Write a picture with a panel per view, each point labelled. `groups`, a number per point, gives points of a group
    the same colour and marker."""
    n_columns = min(len(views), MAX_PANELS_PER_ROW)
    n_rows = -(-len(views) // n_columns)
    with open_figure(file, width=max(5.0, 0.4 + PANEL * n_columns), height=0.5 + (PANEL + 0.2) * n_rows) as figure:
        panels = figure.subplots(n_rows, n_columns, squeeze=False)
        for axes, view in zip(panels.flat, views, strict=False):
            _draw_view(axes, view, labels, groups or [0] * len(labels))
        if not any(view.is_projected for view in views):  # a map that shrinks a direction is seen to shrink it
            _share_limits(panels.flat[: len(views)], views)
        for axes in panels.flat[len(views) :]:
            axes.remove()
        set_title(figure, title)
        figure.draw_without_rendering()
        for axes, view in zip(panels.flat, views, strict=False):
            label_points(axes, [(float(x), float(y)) for x, y in view.coordinates], labels)
    return Path(file)


def _draw_view(axes: Any, view: PlaneView, labels: Sequence[str], groups: Sequence[int]) -> None:
    for group in sorted(set(groups)):
        points = view.coordinates[[i for i in range(len(labels)) if groups[i] == group]]
        style = {"color": theme().colour(group), "marker": MARKERS[group % len(MARKERS)], "linestyle": ""}
        axes.plot(points[:, 0].tolist(), points[:, 1].tolist(), markersize=5, **style)
    name = "component" if view.is_projected else "dimension"
    for axis, number, fraction in ((axes.xaxis, 1, view.explained[0]), (axes.yaxis, 2, view.explained[1])):
        axis.set_label_text(f"{name} {number} ({fraction:.0%} of the variance)")
    axes.axhline(0, color=theme().grid, linewidth=0.8, zorder=0)
    axes.axvline(0, color=theme().grid, linewidth=0.8, zorder=0)
    axes.set_title(figure_text(view.title))
    axes.margins(0.2)


def _share_limits(panels: Sequence[Any], views: Sequence[PlaneView]) -> None:
    """Give all panels the same square area, with one unit as long as the other."""
    points = torch.cat([view.coordinates for view in views])
    centre = (points.amax(dim=0) + points.amin(dim=0)) / 2
    radius = 0.65 * float((points.amax(dim=0) - points.amin(dim=0)).max()) or 1.0
    for axes in panels:
        axes.set_aspect("equal")
        axes.set_xlim(float(centre[0]) - radius, float(centre[0]) + radius)
        axes.set_ylim(float(centre[1]) - radius, float(centre[1]) + radius)

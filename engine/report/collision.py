"""Figures of the collision model: what it fits in an analysis, and the model itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tallymill.engine.numbench.analysis.results import Analysis, CollisionFit, VisiblePoint
from tallymill.engine.numbench.collision.closed import visible_of_capacity
from tallymill.engine.numbench.factors import FREE, LAYOUTS
from tallymill.engine.report.canvas import (
    GRID,
    INK,
    Look,
    drawn,
    key,
    legend,
    legend_height,
    looks,
    panels,
    shade_stress,
    shortened,
)

MANY = 40
LIMIT: dict[str, Any] = {"color": INK, "linestyle": (0, (5, 3)), "linewidth": 1.0}


@drawn
def collision_figure(analysis: Analysis) -> Any | None:
    """Visible against requested objects of single-category images by layout, with the fits; a panel a system.

    The limits: y = n, where no two objects collide, and uniform placement into as many regions as free-form's A, which
    is free-form's own fit. What a coordination of 0 to 1 reaches, "if M were equal", lies between them and is shaded.
    With three systems or more, and many counts, a mark is the mean of four counts.
    """
    points = analysis.visible
    systems = [*dict.fromkeys(point.system for point in points)]
    if not systems:
        return None
    look = looks([*dict.fromkeys((*LAYOUTS, *(point.layout for point in points)))])
    fits = {(fit.system, fit.layout): fit for fit in analysis.collision}
    present = [name for name in look if any(point.layout == name for point in points)]
    entries = [
        (_entry(look[name], fits.get((systems[0], name)), len(systems) == 1), _key(look[name])) for name in present
    ]
    entries += [("y = n", key(**LIMIT)), ("λ between 0 and 1", key(color=GRID, linewidth=7))]
    columns = 1 if len(systems) < 3 else 2
    heights = [190.0 if columns == 1 else 130.0] * -(-len(systems) // columns)
    extra = legend_height([text for text, _ in entries]) + 26
    figure, axes = panels(heights, columns, extra=extra, sharex=True, sharey=True)
    last = max(point.count for point in points)
    top = 1.12 * max(max(point.hard for point in points), 2.0)
    for ax, system, name in zip(axes.flat, systems, shortened(systems, 24), strict=False):
        ax.set(xlim=(0, max(last + 1, 5)), ylim=(0, top))
        _limits(ax, fits.get((system, FREE)), last)
        for layout in present:
            own = [point for point in points if (point.system, point.layout) == (system, layout)]
            _layout(ax, own, fits.get((system, layout)), look[layout], last, columns > 1)
        shade_stress(ax, last, below=True)
        if len(systems) > 1:
            ax.set_title(name)
    for place in range(len(systems), axes.size):
        axes.flat[place].set_visible(False)
        axes.flat[place - columns].tick_params(labelbottom=True)
    figure.supxlabel("requested objects", fontsize="medium")
    figure.supylabel("visible objects (hard count)", fontsize="medium")
    legend(figure, entries)
    return figure


def _marks(points: Sequence[VisiblePoint], few: bool) -> list[tuple[float, float]]:
    """(requested, visible) to be marked: each count, or if ``few`` the means over four neighbours, by their images."""
    groups: dict[int, list[VisiblePoint]] = {}
    for point in points:
        groups.setdefault((point.count - 1) // 4 if few else point.count, []).append(point)
    marks = []
    for group in groups.values():
        images = sum(point.scored for point in group)
        sums = (math.fsum(getattr(point, name) * point.scored for point in group) for name in ("count", "hard"))
        if images:
            marks.append((next(sums) / images, next(sums) / images))
    return marks


def _entry(look: Look, fit: CollisionFit | None, alone: bool) -> str:
    """A layout in the legend; with its A where there is one system."""
    if fit is None or not alone:
        return look.name
    said = f"A = {fit.capacity:,.4g}" if fit.capacity is not None else "A infinite" if fit.verdict == "infinite" else ""
    return f"{look.name}, {said}" if said else look.name


def _key(look: Look) -> Any:
    return key(color=look.color, marker=look.marker, markersize=4)


def _limits(ax: Any, free: CollisionFit | None, last: int) -> None:
    n = np.linspace(0, last, 201)
    ax.plot(n, n, **LIMIT)
    if free is not None and free.capacity is not None:
        ax.fill_between(n, visible_of_capacity(n, free.capacity), n, color=GRID, alpha=0.45, linewidth=0, zorder=0)


def _layout(
    ax: Any, points: Sequence[VisiblePoint], fit: CollisionFit | None, look: Look, last: int, few: bool
) -> None:
    marks = np.array(_marks(points, few and len(points) > MANY)).reshape(-1, 2)
    size = 2.6 if len(marks) > MANY else 3.4 if few else 4.0
    ax.plot(*marks.T, color=look.color, marker=look.marker, linestyle="none", markersize=size, alpha=0.6)
    if fit is not None and fit.verdict != "no data":
        n = np.linspace(0, last, 201)
        ax.plot(n, visible_of_capacity(n, math.inf if fit.capacity is None else fit.capacity), color=look.color)

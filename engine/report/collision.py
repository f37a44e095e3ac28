"""Figures of the collision model: what it fits in an analysis, and the model itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tallymill.engine.numbench.analysis.results import Analysis, CollisionFit, VisiblePoint
from tallymill.engine.numbench.collision.closed import visible_of_capacity
from tallymill.engine.numbench.collision.curve import ModelCurve
from tallymill.engine.numbench.factors import FREE, LAYOUTS
from tallymill.engine.report.canvas import (
    INK,
    Look,
    drawn,
    hide_after,
    key,
    legend,
    legend_height,
    looks,
    panels,
    shade_stress,
    shortened,
)

MANY = 40
# How strongly the region between the limits is drawn.
REACH = 0.14
LIMIT: dict[str, Any] = {"color": INK, "linestyle": (0, (5, 3)), "linewidth": 1.0}


@drawn
def collision_figure(analysis: Analysis, *, broad: bool = False) -> Any | None:
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
    entries.append(("y = n", key(**LIMIT)))
    if any(layout == FREE and fit.capacity is not None for (_, layout), fit in fits.items()):
        entries.append(("λ between 0 and 1", key(color=look[FREE].color, alpha=REACH, linewidth=7)))
    columns = min(len(systems), 3) if broad else 1 if len(systems) < 3 else 2
    heights = [190.0 if broad or columns == 1 else 130.0] * -(-len(systems) // columns)
    extra = legend_height([text for text, _ in entries], broad=broad) + 30 + 16 * len(heights) * (len(systems) > 1)
    figure, axes = panels(heights, columns, extra=extra, broad=broad, sharex=True, sharey=True)
    last = max(point.count for point in points)
    top = 1.12 * max(max(point.hard for point in points), 2.0)
    for ax, system, name in zip(axes.flat, systems, shortened(systems, 24), strict=False):
        ax.set(xlim=(0, max(last + 1, 5)), ylim=(0, top))
        _limits(ax, fits.get((system, FREE)), last, look[FREE].color)
        for layout in present:
            own = [point for point in points if (point.system, point.layout) == (system, layout)]
            _layout(ax, own, fits.get((system, layout)), look[layout], last, len(systems) > 2)
        shade_stress(ax, last, below=True)
        if len(systems) > 1:
            ax.set_title(name)
    hide_after(axes, len(systems))
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


def _limits(ax: Any, free: CollisionFit | None, last: int, color: str) -> None:
    n = np.arange(last + 1)
    ax.plot(n, n, **LIMIT)
    if free is not None and free.capacity is not None:
        ax.fill_between(n, visible_of_capacity(n, free.capacity), n, color=color, alpha=REACH, linewidth=0, zorder=0)


def _layout(
    ax: Any, points: Sequence[VisiblePoint], fit: CollisionFit | None, look: Look, last: int, few: bool
) -> None:
    marks = np.array(_marks(points, few and len(points) > MANY)).reshape(-1, 2)
    size = 2.6 if len(marks) > MANY else 3.4 if few else 4.0
    ax.plot(*marks.T, color=look.color, marker=look.marker, linestyle="none", markersize=size, alpha=0.6)
    if fit is not None and fit.verdict != "no data":
        n = np.arange(last + 1)
        ax.plot(n, visible_of_capacity(n, math.inf if fit.capacity is None else fit.capacity), color=look.color)


@drawn
def model_figure(capacity: int, curves: Sequence[ModelCurve]) -> Any:
    """The model: visible against requested instances, and below what is lost beside its leading term, on log scales.

    Lines are the closed form, marks the means of the simulation with bars of one standard deviation of R.
    """
    names = [f"λ = {curve.coordination:g}" for curve in curves]
    look = looks(names)
    simulated = any(point.simulated is not None for curve in curves for point in curve.points)
    entries = [(name, key(color=look[name].color)) for name in look]
    if simulated:
        entries.append(("simulated, ± sd", key(color=INK, marker="o", linestyle="none", markersize=4)))
    entries += [("y = n", key(**LIMIT)), ("leading term", key(color=INK, linestyle=":"))]
    figure, axes = panels([200.0, 150.0], extra=legend_height([text for text, _ in entries]) + 40)
    visible, lost = axes[:, 0]
    last = max(point.count for curve in curves for point in curve.points)
    for curve, name in zip(curves, names, strict=True):
        _model(visible, lost, curve, look[name])
    visible.plot([0, last], [0, last], **LIMIT)
    top = max(point.expected for curve in curves for point in curve.points)
    if capacity <= 1.1 * top:
        visible.axhline(capacity, color=INK, linewidth=0.7)
    visible.set(xlim=(0, last * 1.02), ylim=(0, max(1.12 * top, 1.5)), title=f"visible, M = {capacity:,}")
    visible.set(xlabel="requested n", ylabel="E[R]")
    lost.set(title="lost, and the leading term q n(n−1)/2M", xlabel="requested n", ylabel="E[n − R]")
    if len({point.count for curve in curves for point in curve.points if point.deficit > 0}) > 1:
        _logarithmic(lost)
    legend(figure, entries)
    return figure


def _model(visible: Any, lost: Any, curve: ModelCurve, look: Look) -> None:
    counts = [point.count for point in curve.points]
    alone = {"marker": look.marker} if len(counts) == 1 else {}  # a line of one point is nothing
    visible.plot(counts, [point.expected for point in curve.points], color=look.color, **alone)
    step = -(-len(counts) // 20)
    marked = [point for point in curve.points[step - 1 :: step] if point.simulated is not None]
    visible.errorbar(
        [point.count for point in marked],
        [point.simulated for point in marked],
        [point.simulated_sd for point in marked],
        color=look.color,
        fmt=look.marker,
        markersize=3.4,
        elinewidth=0.8,
    )
    some = [point for point in curve.points if point.deficit > 0]
    lost.plot([point.count for point in some], [point.deficit for point in some], color=look.color, **alone)
    lost.plot([point.count for point in some], [point.leading for point in some], color=look.color, linestyle=":")
    found = [(point.count, point.count - (point.simulated or 0)) for point in marked]
    some_found = np.array([pair for pair in found if pair[1] > 0]).reshape(-1, 2)
    lost.plot(*some_found.T, color=look.color, marker=look.marker, linestyle="none", markersize=3.4)


def _logarithmic(ax: Any) -> None:
    """Both axes, with plain numbers."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    ax.set(xscale="log", yscale="log")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())

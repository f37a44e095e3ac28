"""Curves, and bars of failure families. Each figure is None where there is nothing to draw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tallymill.engine.estimates import Estimate
from tallymill.engine.numbench.analysis.results import ALL, Analysis, CurvePoint, Families
from tallymill.engine.numbench.factors import COMPOSITIONS, ordered
from tallymill.engine.report.canvas import (
    INK,
    MARKERS,
    ROW,
    SERIES,
    Look,
    drawn,
    ends_inside,
    hide_after,
    key,
    legend,
    legend_height,
    looks,
    panels,
    shade_stress,
    shortened,
)

FAMILIES = (
    ("none", SERIES[2], "no error"),
    ("cardinality", SERIES[1], "cardinality"),
    ("binding", SERIES[0], "binding"),
)
# With fewer points than this on a curve each is marked.
MARKED = 30
# Of more systems the curves have no bands, which would hide one another.
MOST_BANDS = 6
# Panels side by side.
MOST_COLUMNS = 3


@drawn
def curve_figure(analysis: Analysis, *, broad: bool = False) -> Any | None:
    """Score against requested count with the intervals as bands; a panel a composition, a colour a system.

    Counts above 50 are shaded as stress test. Of a single system b-NPS is drawn too, of many no bands. ``broad`` has
    panels abreast.
    """
    points = [point for point in analysis.curve if point.cw_nps.value is not None]
    if not points:
        return None
    compositions = ordered((point.composition for point in points), COMPOSITIONS)
    look = looks([row.system for row in analysis.systems] or [point.system for point in points])
    lines, entries = _lines([look[system] for system in look if any(point.system == system for point in points)], look)
    columns = min(len(compositions), MOST_COLUMNS) if broad else 1
    heights = [190.0 if broad else 160.0] * -(-len(compositions) // columns)
    extra = legend_height([text for text, _ in entries], broad=broad) + 20 + 16 * len(heights)
    figure, axes = panels(heights, columns, extra=extra, broad=broad, sharex=True, sharey=True)
    last = max(point.count for point in points)
    for ax, composition, title in zip(axes.flat, compositions, _titled(compositions), strict=False):
        for system, score, style in lines:
            own = [point for point in points if (point.system, point.composition) == (system, composition)]
            if own:  # a line of no points lies at the figure's corner, and would push all panels together
                _curve(ax, sorted(own, key=lambda point: point.count), score, style, bands=len(lines) <= MOST_BANDS)
        ax.set(title=title, ylim=(0, 1), xlim=(0, max(last + 1, 5)))
        shade_stress(ax, last)
    for ax in axes[:, 0]:
        ax.set_ylabel("cw-NPS" if lines[0][0] != lines[-1][0] else "score")
    hide_after(axes, len(compositions), "requested count")
    legend(figure, entries)
    return figure


def _lines(
    present: Sequence[Look], look: Mapping[str, Look]
) -> tuple[list[tuple[str, str, Look]], list[tuple[str, Any]]]:
    """What is drawn in each panel, (system, score, look), and the legend's entries."""
    systems = [system for system in look if look[system] in present]
    if len(systems) == 1:
        lines = [
            (systems[0], "cw_nps", Look("cw-NPS", SERIES[0], MARKERS[0], "-")),
            (systems[0], "b_nps", Look("b-NPS", SERIES[1], MARKERS[1], "-")),
        ]
    else:
        lines = [(system, "cw_nps", look[system]) for system in systems]
    return lines, [
        (style.name, key(color=style.color, linestyle=style.dash, marker=style.marker)) for *_, style in lines
    ]


def _titled(compositions: Sequence[str]) -> list[str]:
    """Titles of panels: NumBench's own compositions have a noun, others (of a manifest) are called what they are."""
    names = shortened(compositions, 20)
    return [f"{name} category" if name in COMPOSITIONS else name for name in names]


@drawn
def families_figure(analysis: Analysis, *, broad: bool = False) -> Any | None:
    """Shares of images without error, with a cardinality error, with a binding error; a bar a range."""
    rows = [row for row in analysis.families if row.count_range != ALL and row.scored]
    compositions = ordered((row.composition for row in rows), COMPOSITIONS)
    compositions = [name for name in compositions if name != ALL] or compositions
    rows = [row for row in rows if row.composition in compositions]
    if not rows:
        return None
    lines = _places(rows)
    height = max(lines.values()) + 1
    columns = min(len(compositions), MOST_COLUMNS)
    heights = [ROW * height + 4] * -(-len(compositions) // columns)
    extra = legend_height([text for *_, text in FAMILIES], broad=broad) + 26 + 32 * len(heights)
    figure, axes = panels(heights, columns, extra=extra, broad=broad, sharey=True)
    for ax, composition, title in zip(axes.flat, compositions, shortened(compositions, 15), strict=False):
        _families(ax, [row for row in rows if row.composition == composition], lines)
        ax.set(title=title, xlim=(0, 1), ylim=(height - 0.4, -0.6))
        ax.set_xticks([0, 0.5, 1], ["0", "50 %", "100 %"])
        ends_inside(ax)
        ax.set_yticks([*lines.values()], [f"{_dashed(bar[1])}{' ‡' if bar[2] else ''}" for bar in lines])
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="y", visible=False)
    _systems(axes[:, 0], lines)
    hide_after(axes, len(compositions))
    marked = " (‡ stress test)" if any(bar[2] for bar in lines) else ""
    figure.supxlabel(f"share of scored images{marked}", fontsize="medium")
    legend(figure, [(text, key(color=color, linewidth=7)) for _, color, text in FAMILIES])
    return figure


def _places(rows: Sequence[Families]) -> dict[tuple[str, str, bool], int]:
    """The line of each bar, by (system, count range, stress test); of several systems each has a line for its name."""
    bars = [*dict.fromkeys((row.system, row.count_range, row.stress_test) for row in rows)]
    systems = [*dict.fromkeys(system for system, *_ in bars)]
    bars.sort(key=lambda bar: systems.index(bar[0]))
    many = len(systems) > 1
    return {bar: place + (systems.index(bar[0]) + 1) * many for place, bar in enumerate(bars)}


def _systems(first: Iterable[Any], lines: Mapping[tuple[str, str, bool], int]) -> None:
    """Names of several systems above their bars, in the first column of panels."""
    systems = [*dict.fromkeys(system for system, *_ in lines)]
    if len(systems) < 2:
        return
    for system, name in zip(systems, shortened(systems, 26), strict=True):
        top = min(line for bar, line in lines.items() if bar[0] == system) - 1
        for ax in first:
            ax.text(0, top + 0.3, name, fontweight="bold", in_layout=False)


def _dashed(count_range: str) -> str:
    return count_range.replace("-", "–")


def _families(ax: Any, rows: Iterable[Families], lines: dict[Any, int]) -> None:
    for row in rows:
        left = 0.0
        for name, color, _ in FAMILIES:
            share = getattr(row, name) / row.scored
            ax.barh(lines[row.system, row.count_range, row.stress_test], share, 0.78, left, color=color)
            left += share
        at = lines[row.system, row.count_range, row.stress_test]
        _share_interval(ax, row.none_share, at, from_right=False)
        _share_interval(ax, row.binding_share, at, from_right=True)


def _share_interval(ax: Any, share: Estimate, at: int, *, from_right: bool) -> None:
    """An interval about the border of a bar's first part, or of its last."""
    if share.low is not None and share.high is not None:
        ends = (1 - share.high, 1 - share.low) if from_right else (share.low, share.high)
        ax.hlines([at], *ends, color=INK, linewidth=1.2)


def _curve(ax: Any, points: Sequence[CurvePoint], score: str, style: Look, *, bands: bool) -> None:
    counts = [point.count for point in points]
    estimates: list[Estimate] = [getattr(point, score) for point in points]
    values = [math.nan if one.value is None else one.value for one in estimates]
    low = [math.nan if one.low is None else one.low for one in estimates]
    high = [math.nan if one.high is None else one.high for one in estimates]
    marker = style.marker if len(counts) <= MARKED else "none"
    ax.plot(counts, values, color=style.color, linestyle=style.dash, marker=marker, clip_on=False)
    if bands:
        ax.fill_between(counts, low, high, color=style.color, alpha=0.16, linewidth=0)
    if bands and len(counts) == 1:  # a band of one point is nothing
        ax.vlines(counts, low, high, color=style.color)

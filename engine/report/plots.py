"""Figures of an analysis. Each is None where there is nothing to draw; :func:`svg_of` and ``save_figure`` show them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from tallymill.engine.numbench.analysis.results import ALL, Analysis, Cell, Contrast, Estimate, Families
from tallymill.engine.numbench.factors import COMPOSITIONS, ordered
from tallymill.engine.report.canvas import (
    GRID,
    INK,
    ROW,
    SERIES,
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
from tallymill.engine.report.tables import shown_sensitivity

FAMILIES = (
    ("none", SERIES[2], "no error"),
    ("cardinality", SERIES[1], "cardinality"),
    ("binding", SERIES[0], "binding"),
)
# With fewer points than this on a curve each is marked.
MARKED = 30
# Panels side by side, where there are many compositions.
MOST_COLUMNS = 3


@drawn
def curve_figure(analysis: Analysis) -> Any | None:
    """Score against requested count with bands of the intervals; a panel a composition, a colour a system.

    Counts above 50 are shaded as stress test. Of a single system b-NPS is drawn too.
    """
    points = [point for point in analysis.curve if point.cw_nps.value is not None]
    if not points:
        return None
    compositions = ordered((point.composition for point in points), COMPOSITIONS)
    look = looks([row.system for row in analysis.systems] or [point.system for point in points])
    present = [system for system in look if any(point.system == system for point in points)]
    alone = len(present) == 1
    series = [("cw-NPS", SERIES[0], "cw_nps"), ("b-NPS", SERIES[1], "b_nps")] if alone else [("", "", "cw_nps")]
    names = [name for name, *_ in series] if alone else [look[system].name for system in present]
    figure, axes = panels([160.0] * len(compositions), extra=legend_height(names) + 14, sharex=True, sharey=True)
    last = max(point.count for point in points)
    for ax, composition, title in zip(axes[:, 0], compositions, _titled(compositions), strict=True):
        for system in present:
            own = sorted(
                (point for point in points if (point.system, point.composition) == (system, composition)),
                key=lambda point: point.count,
            )
            for _, color, score in series:
                style = Look("", color, "o", "-") if alone else look[system]
                _curve(ax, [point.count for point in own], [getattr(point, score) for point in own], style)
        ax.set(title=title)
        ax.set(ylabel="score" if alone else "cw-NPS", ylim=(0, 1), xlim=(0, max(last + 1, 5)))
        shade_stress(ax, last)
    axes[-1, 0].set_xlabel("requested count")
    artists = [key(color=color) for _, color, _ in series] if alone else [_key(look[system]) for system in present]
    legend(figure, [*zip(names, artists, strict=True)])
    return figure


def _titled(compositions: Sequence[str]) -> list[str]:
    """Titles of panels: NumBench's own compositions have a noun, others (of a manifest) are called what they are."""
    names = shortened(compositions, 40)
    return [f"{name} category" if name in COMPOSITIONS else name for name in names]


def layout_figure(analysis: Analysis) -> Any | None:
    """What each guided layout changes against free-form of the same core, with intervals."""
    return _contrast_figure(analysis, "layout")


def appearance_figure(analysis: Analysis) -> Any | None:
    """What modified appearance, and each group of modifiers, changes against the clean prompt of the same core."""
    return _contrast_figure(analysis, "appearance")


@drawn
def sensitivity_figure(analysis: Analysis) -> Any | None:
    """(best - worst) / best and best - worst by factor: of each system, and the mean; without intervals."""
    rows = [row for row in shown_sensitivity(analysis) if row.relative.value is not None]
    if not rows:
        return None
    factors = [*dict.fromkeys(row.factor for row in rows)]
    look = looks([row.system for row in analysis.systems])
    systems = [name for name in look if any(row.system == name for row in rows)]
    entries = [("mean of systems", key(color=INK, marker="D", linestyle="none"))]
    entries = [*entries, *((look[name].name, _dot(look[name])) for name in systems)] if len(systems) > 1 else []
    height = legend_height([text for text, _ in entries]) if entries else 0
    figure, axes = panels([24.0 * len(factors) + 10], 2, extra=height + 44, sharey=True)
    for ax, name, title in zip(
        axes[0], ("relative", "absolute"), ("(best − worst) / best", "best − worst"), strict=True
    ):
        for row in rows:
            at = factors.index(row.factor)
            if row.system == ALL and len(systems) > 1:
                _interval(ax, getattr(row, name), at - 0.12, INK, "D", size=6)
            elif row.system in systems:
                step = 0.3 * (systems.index(row.system) + 1) / len(systems) if len(systems) > 1 else 0.0
                style = look[row.system]
                _interval(ax, getattr(row, name), at + step, style.color, style.marker, bare=len(systems) > 1)
        ax.set(title=title, xlim=(0, 1), xticks=(0, 0.5, 1), ylim=(len(factors) - 0.4, -0.6))
        ax.set_yticks(range(len(factors)), [factor.replace("_", " ").replace(": ", ":\n") for factor in factors])
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="y", visible=False)
    if entries:
        legend(figure, entries)
    figure.supxlabel("cw-NPS over the levels of a factor", fontsize="medium")
    return figure


@drawn
def detector_figure(analysis: Analysis) -> Any | None:
    """cw-NPS of the ensemble and of each detector alone, over all images of a system (that it covers)."""
    found: dict[str, Cell] = {}
    for cell in (*analysis.overall, *analysis.cells):
        if (cell.composition, cell.count_range) == (ALL, ALL) and cell.cw_nps.value is not None:
            found.setdefault(cell.system, cell)
    detectors = [*dict.fromkeys(name for cell in found.values() for name in cell.single_cw)]
    if not detectors:
        return None
    look = looks(detectors)
    entries = [("ensemble", key(color=INK, marker="D", linestyle="none"))]
    entries += [(look[name].name, _dot(look[name])) for name in detectors]
    height = legend_height([text for text, _ in entries])
    step = min(0.7 / (len(detectors) + 1), 0.2)
    figure, axes = panels([(12.0 + 7 * len(detectors)) * len(found) + 8], extra=height + 34)
    ax = axes[0, 0]
    for at, cell in enumerate(found.values()):
        _interval(ax, cell.cw_nps, at - step * len(detectors) / 2, INK, "D", size=6)
        for place, (name, style) in enumerate(look.items(), 1):
            if name in cell.single_cw:
                at_detector = at + step * (place - len(detectors) / 2)
                _interval(ax, cell.single_cw[name], at_detector, style.color, style.marker)
    _rows(ax, shortened([*found], 18), len(found))
    ax.set(xlabel="cw-NPS over all scored images", xlim=(0, 1))
    legend(figure, entries)
    return figure


@drawn
def families_figure(analysis: Analysis) -> Any | None:
    """Shares of images without error, with a cardinality error, with a binding error; a bar a range."""
    rows = [row for row in analysis.families if row.count_range != ALL and row.scored]
    compositions = ordered((row.composition for row in rows), COMPOSITIONS)
    compositions = [name for name in compositions if name != ALL] or compositions
    if not compositions:
        return None
    bars = [
        *dict.fromkeys(
            (row.system, row.count_range, row.stress_test) for row in rows if row.composition in compositions
        )
    ]
    systems = [*dict.fromkeys(system for system, *_ in bars)]
    names = dict(zip(systems, shortened(systems, 26), strict=True))
    many = len(systems) > 1
    # A system's name has a line of its own above its bars.
    lines = {bar: place + (systems.index(bar[0]) + 1) * many for place, bar in enumerate(bars)}
    height = max(lines.values()) + 1
    texts = [text for *_, text in FAMILIES]
    columns = min(len(compositions), MOST_COLUMNS)
    heights = [ROW * height + 4] * -(-len(compositions) // columns)
    extra = legend_height(texts) + 24 + 22 * len(heights)
    figure, axes = panels(heights, columns, extra=extra, sharey=True)
    for ax in axes.flat[len(compositions) :]:
        ax.set_visible(False)
    for ax, composition, title in zip(axes.flat, compositions, shortened(compositions, 15), strict=False):
        _families(ax, [row for row in rows if row.composition == composition], lines)
        ax.set(title=title, xlim=(0, 1), ylim=(height - 0.4, -0.6))
        ax.set_xticks([0, 0.5, 1], ["0", "50 %", "100 %"])
        ax.set_yticks([*lines.values()], [f"{bar[1]}{' ‡' if bar[2] else ''}" for bar in bars])
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="y", visible=False)
    for system in systems if many else ():
        top = min(line for bar, line in lines.items() if bar[0] == system) - 1
        for ax in axes[:, 0]:
            ax.text(0, top + 0.3, names[system], fontweight="bold", in_layout=False)
    figure.supxlabel(
        "share of scored images" + (" (‡ stress test)" if any(bar[2] for bar in bars) else ""), fontsize="medium"
    )
    legend(figure, [(text, key(color=color, linewidth=7)) for _, color, text in FAMILIES])
    return figure


def _families(ax: Any, rows: Iterable[Families], lines: dict[Any, int]) -> None:
    for row in rows:
        left = 0.0
        for name, color, _ in FAMILIES:
            share = getattr(row, name) / row.scored
            ax.barh(lines[row.system, row.count_range, row.stress_test], share, 0.78, left, color=color)
            left += share


@drawn
def _contrast_figure(analysis: Analysis, factor: str) -> Any | None:
    rows = [row for row in analysis.contrasts if row.factor == factor and row.cw_nps.value is not None]
    if not rows:
        return None
    levels = [*dict.fromkeys(row.level for row in rows)]
    look = looks([row.system for row in analysis.systems] or [row.system for row in rows])
    systems = [name for name in look if any(row.system == name for row in rows)]
    height = legend_height([look[name].name for name in systems]) if len(systems) > 1 else 0
    figure, axes = panels([(12.0 + 8 * len(systems)) * len(levels) + 6], extra=height + 36)
    ax = axes[0, 0]
    for row in rows:
        _contrast(ax, row, levels.index(row.level), systems, look[row.system])
    ax.axvline(0, color=INK, linewidth=0.9)
    _rows(ax, [level.replace("_", " ") for level in levels], len(levels))
    ax.set_xlabel(f"cw-NPS minus that of {rows[0].reference}, same core")
    if len(systems) > 1:
        legend(figure, [(look[name].name, _dot(look[name])) for name in systems])
    return figure


def _contrast(ax: Any, row: Contrast, at: int, systems: Sequence[str], style: Look) -> None:
    step = 0.72 / len(systems)
    place = at + step * (systems.index(row.system) - (len(systems) - 1) / 2)
    _interval(ax, row.cw_nps, place, style.color, style.marker)


def _rows(ax: Any, names: Sequence[str], number: int) -> None:
    """Names of rows on the left, a thin line between rows."""
    ax.set_yticks(range(number), names)
    ax.set_ylim(number - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    for between in range(1, number):
        ax.axhline(between - 0.5, color=GRID, linewidth=0.6)


def _curve(ax: Any, counts: Sequence[int], scores: Sequence[Estimate], style: Look) -> None:
    values = [math.nan if score.value is None else score.value for score in scores]
    low = [math.nan if score.low is None else score.low for score in scores]
    high = [math.nan if score.high is None else score.high for score in scores]
    marker = style.marker if len(counts) <= MARKED else "none"
    ax.plot(counts, values, color=style.color, linestyle=style.dash, marker=marker, clip_on=False)
    ax.fill_between(counts, low, high, color=style.color, alpha=0.16, linewidth=0)
    if len(counts) == 1:  # a band of one point is nothing
        ax.vlines(counts, low, high, color=style.color)


def _interval(
    ax: Any, score: Estimate, at: float, color: str, marker: str, *, size: float = 5, bare: bool = False
) -> None:
    if score.value is None:
        return
    if score.low is not None and score.high is not None and not bare:
        ax.plot([score.low, score.high], [at, at], color=color, linewidth=1.4)
    ax.plot([score.value], [at], color=color, marker=marker, markersize=size, linestyle="none", clip_on=False)


def _key(style: Look) -> Any:
    return key(color=style.color, linestyle=style.dash, marker=style.marker)


def _dot(style: Look) -> Any:
    return key(color=style.color, linestyle="none", marker=style.marker)

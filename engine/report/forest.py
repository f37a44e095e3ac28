"""Figures of rows with marks and their intervals: contrasts, sensitivity, detectors; None without any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tallymill.engine.estimates import Estimate
from tallymill.engine.numbench.analysis.results import ALL, Analysis, Cell, Contrast
from tallymill.engine.report.canvas import (
    INK,
    Look,
    drawn,
    ends_inside,
    key,
    legend,
    legend_height,
    looks,
    panels,
    shortened,
)
from tallymill.engine.report.marks import dot, interval, name_rows
from tallymill.engine.report.tables import shown_sensitivity


def layout_figure(analysis: Analysis) -> Any | None:
    """What each guided layout changes against free-form of the same core, with intervals."""
    return _contrast_figure(analysis, "layout")


def appearance_figure(analysis: Analysis) -> Any | None:
    """What modified appearance, and each group of modifiers, changes against the clean prompt of the same core."""
    return _contrast_figure(analysis, "appearance")


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
    name_rows(ax, [level.replace("_", " ") for level in shortened(levels, 24)], len(levels))
    ax.locator_params(axis="x", nbins=5)
    ax.set_xlabel(f"cw-NPS minus that of {shortened([rows[0].reference], 24)[0]}, same core")
    if len(systems) > 1:
        legend(figure, [(look[name].name, dot(look[name])) for name in systems])
    return figure


def _contrast(ax: Any, row: Contrast, at: int, systems: Sequence[str], style: Look) -> None:
    step = 0.72 / len(systems)
    place = at + step * (systems.index(row.system) - (len(systems) - 1) / 2)
    interval(ax, row.cw_nps, place, style.color, style.marker)


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
    entries = [*entries, *((look[name].name, dot(look[name])) for name in systems)] if len(systems) > 1 else []
    height = legend_height([text for text, _ in entries]) if entries else 0
    figure, axes = panels([(22.0 + 3 * len(systems)) * len(factors) + 10], 2, extra=height + 44, sharey=True)
    for ax, name, title in zip(
        axes[0], ("relative", "absolute"), ("(best − worst) / best", "best − worst"), strict=True
    ):
        for row in rows:
            at = factors.index(row.factor)
            if row.system == ALL and len(systems) > 1:
                interval(ax, getattr(row, name), at - 0.12, INK, "D", size=6)
            elif row.system in systems:
                step = 0.3 * (systems.index(row.system) + 1) / len(systems) if len(systems) > 1 else 0.0
                style = look[row.system]
                interval(ax, getattr(row, name), at + step, style.color, style.marker, bare=len(systems) > 1)
        ax.set(title=title, xlim=(0, 1), ylim=(len(factors) - 0.4, -0.6))
        ax.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        ends_inside(ax)
        ax.set_yticks(range(len(factors)), [factor.replace("_", " ").replace(": ", ":\n") for factor in factors])
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="y", visible=False)
    if entries:
        legend(figure, entries)
    figure.supxlabel("cw-NPS over the levels of a factor", fontsize="medium")
    return figure


@drawn
def detector_figure(analysis: Analysis) -> Any | None:
    """cw-NPS of the ensemble and of each detector alone, over all images of a system (that it covers).

    Beside a detector that covers fewer images the ensemble's over these, as a hollow mark.
    """
    found: dict[str, Cell] = {}
    for cell in (*analysis.overall, *analysis.cells):
        if (cell.composition, cell.count_range) == (ALL, ALL) and cell.cw_nps.value is not None:
            found.setdefault(cell.system, cell)
    detectors = [*dict.fromkeys(name for cell in found.values() for name in cell.single_cw)]
    if not detectors:
        return None
    look = looks(detectors)
    entries = [("ensemble", key(color=INK, marker="D", linestyle="none"))]
    entries += [(look[name].name, dot(look[name])) for name in detectors]
    height = legend_height([text for text, _ in entries])
    step = min(0.7 / (len(detectors) + 1), 0.2)
    figure, axes = panels([(12.0 + 7 * len(detectors)) * len(found) + 8], extra=height + 34)
    ax = axes[0, 0]
    for at, cell in enumerate(found.values()):
        interval(ax, cell.cw_nps, at - step * len(detectors) / 2, INK, "D", size=6)
        for place, (name, style) in enumerate(look.items(), 1):
            if name in cell.single_cw:
                at_detector = at + step * (place - len(detectors) / 2)
                same = cell.ensemble_same.get(name, Estimate(None)).value
                if same is not None and cell.single_scored[name] != cell.scored:
                    ax.plot(same, at_detector, color=INK, marker="D", markersize=4, fillstyle="none", clip_on=False)
                interval(ax, cell.single_cw[name], at_detector, style.color, style.marker)
    name_rows(ax, shortened([*found], 24), len(found))
    ax.set(xlabel="cw-NPS over all scored images", xlim=(0, 1))
    legend(figure, entries)
    return figure

"""All figures of an analysis as SVG for the page, each with a title and a description in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from tallymill.engine.numbench.analysis.results import ALL, Analysis
from tallymill.engine.numbench.calibration import CalibrationResult
from tallymill.engine.report import forest, plots
from tallymill.engine.report.collision import collision_figure
from tallymill.engine.report.reliability import reliability_figure
from tallymill.engine.report.svg import Plot, svg_of

Make = Callable[[Analysis], Any]

# By the name that the page knows: how it is made, its title, what it shows.
_FIGURES: dict[str, tuple[Make, str, str]] = {
    "curve": (
        plots.curve_figure,
        "Score against requested count",
        "Mean scores by requested count, a panel a composition. The numbers are in the table below the figure.",
    ),
    "layout": (
        forest.layout_figure,
        "Guided layouts against free-form",
        "Differences of cw-NPS with intervals. The numbers are in the table of paired contrasts.",
    ),
    "appearance": (
        forest.appearance_figure,
        "Modified against clean prompts",
        "Differences of cw-NPS with intervals. The numbers are in the table of paired contrasts.",
    ),
    "sensitivity": (
        forest.sensitivity_figure,
        "Sensitivity to each factor",
        "Relative and absolute differences of best and worst level. The numbers are in the table below the figure.",
    ),
    "detectors": (
        forest.detector_figure,
        "The ensemble and its detectors alone",
        "cw-NPS of the ensemble and of each detector. The numbers are in the table below the figure.",
    ),
    "families": (
        plots.families_figure,
        "Failure families",
        "Shares of images without error, with a cardinality and with a binding error, by count range. The numbers are "
        "in the table below the figure.",
    ),
    "collision": (
        collision_figure,
        "Visible against requested objects",
        "Mean hard counts by layout and requested count with fitted curves. The fits are in the table below.",
    ),
}


# The systems that figures and the page's head show; more would hide one another.
MOST_SYSTEMS = 12
# Those of several panels, drawn once more for the width of a page.
_BROAD: dict[str, Make] = {
    "curve": partial(plots.curve_figure, broad=True),
    "families": partial(plots.families_figure, broad=True),
    "collision": partial(collision_figure, broad=True),
}


def figures_of(analysis: Analysis) -> dict[str, Plot]:
    """Figures by name, of all that have anything to show. ``MissingExtraError`` without matplotlib.

    They show the first ``MOST_SYSTEMS`` systems.
    """
    found = {}
    analysis = _of_first(analysis, MOST_SYSTEMS)
    for name, (make, title, description) in _FIGURES.items():
        figure = make(analysis)
        if figure is None:
            continue
        broad = _BROAD[name](analysis) if name in _BROAD and _panels(figure) > 1 else None
        found[name] = _plot(figure, broad, title, description)
    return found


def reliability_of(calibration: CalibrationResult) -> Plot:
    """The reliability plot of a calibration, likewise."""
    many = len(calibration.detectors) > 1
    return _plot(
        reliability_figure(calibration),
        reliability_figure(calibration, broad=True) if many else None,
        "Reliability of confidences",
        "Share of true boxes against confidence, raw and fitted, by detector. The measures are in the table below.",
    )


def _of_first(analysis: Analysis, number: int) -> Analysis:
    """The rows of the first systems, and those of "all" systems."""
    if len(analysis.systems) <= number:
        return analysis
    kept = {row.system for row in analysis.systems[:number]} | {ALL}
    tables = ("systems", "overall", "cells", "contrasts", "sensitivity", "families", "curve", "visible", "collision")
    rows: dict[str, Any] = {name: [row for row in getattr(analysis, name) if row.system in kept] for name in tables}
    return replace(analysis, **rows)


def _panels(figure: Any) -> int:
    return sum(ax.get_visible() for ax in figure.axes)


def _plot(narrow: Any, broad: Any | None, title: str, description: str) -> Plot:
    return Plot(svg_of(narrow, title, description), "" if broad is None else svg_of(broad, title, description))

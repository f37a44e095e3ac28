"""All figures of an analysis as SVG elements for the page, each with a title and a description in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tallymill.engine.numbench.analysis.results import Analysis
from tallymill.engine.numbench.calibration import CalibrationResult
from tallymill.engine.report import plots
from tallymill.engine.report.collision import collision_figure
from tallymill.engine.report.reliability import reliability_figure
from tallymill.engine.report.svg import svg_of

Make = Callable[[Analysis], Any]

# By the name that the page knows: how it is made, its title, what it shows.
_FIGURES: dict[str, tuple[Make, str, str]] = {
    "curve": (
        plots.curve_figure,
        "Score against requested count",
        "Mean scores by requested count, a panel a composition. The numbers are in the table below the figure.",
    ),
    "layout": (
        plots.layout_figure,
        "Guided layouts against free-form",
        "Differences of cw-NPS with intervals. The numbers are in the table of paired contrasts.",
    ),
    "appearance": (
        plots.appearance_figure,
        "Modified against clean prompts",
        "Differences of cw-NPS with intervals. The numbers are in the table of paired contrasts.",
    ),
    "sensitivity": (
        plots.sensitivity_figure,
        "Sensitivity to each factor",
        "Relative and absolute differences of best and worst level. The numbers are in the table below the figure.",
    ),
    "detectors": (
        plots.detector_figure,
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


def figures_of(analysis: Analysis) -> dict[str, str]:
    """SVG elements by name, of all figures that have anything to show. ``MissingExtraError`` without matplotlib."""
    found = {}
    for name, (make, title, description) in _FIGURES.items():
        figure = make(analysis)
        if figure is not None:
            found[name] = svg_of(figure, title, description)
    return found


def reliability_of(calibration: CalibrationResult) -> str:
    """The reliability plot of a calibration, likewise."""
    return svg_of(
        reliability_figure(calibration),
        "Reliability of confidences",
        "Share of true boxes against confidence, raw and fitted, by detector. The measures are in the table below.",
    )

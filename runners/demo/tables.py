"""The demo's result for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from tallymill.engine.numbench.calibration import DetectorCalibration
from tallymill.runners import console
from tallymill.runners.demo.demo import DemoResult

NOTES = """
asked, seen, counted  mean counts of one category in one image. Half of the images ask for two categories, and their
                      range goes by the larger count. seen: objects of which 30 % or more can truly be seen; counted:
                      the confidences of the boxes that count, added up and divided by the number of detectors.
cw-NPS, b-NPS         mean scores, 1 for a perfect count; b-NPS counts boxes at confidence 0.5, at any temperature.
tau                   makes a detector's confidences most nearly true on images whose boxes are known (NLL, ECE, Brier:
                      the smaller the truer). Truer need not be higher: boxes of hidden objects now count less.
The pictures show every box that counts; an object cut by a window of sliced inference can count twice.
"""


def demo_tables(result: DemoResult) -> list[Table]:
    """The result for a terminal: counts and scores by count range and layout, and the fitted temperatures."""
    return [_count_table(result), _fit_table(result.fits)]


def _count_table(result: DemoResult) -> Table:
    table = console.columns(
        ["range", "layout"],
        ["scored", "asked", "seen", "counted", "cw-NPS", "b-NPS"],
        title="Counts and scores, with the shipped → with the fitted temperatures",
        caption="* Stress test: more than 50 objects.",
        box=box.HEAVY_HEAD,
    )
    for row, after in zip(result.rows, result.rescored, strict=True):
        stress = int(row.count_range.partition("-")[0]) > 50
        table.add_row(
            row.count_range + ("*" if stress else ""),
            row.layout,
            f"{row.images - row.not_scored}/{row.images}",
            f"{row.requested:.1f}",
            f"{row.visible:.1f}",
            f"{row.soft:.1f}→{after.soft:.1f}",
            f"{row.cw_nps:.3f}→{after.cw_nps:.3f}",
            f"{row.b_nps:.3f}",  # hard counts do not depend on temperature
        )
    return table


def _fit_table(fits: Sequence[DetectorCalibration]) -> Table:
    table = console.columns(
        ["detector"],
        ["tau", "boxes", "true", "NLL", "ECE", "Brier"],
        title="Temperatures fitted on images of their own, before → after",
        box=box.HEAVY_HEAD,
    )
    for fit in fits:
        note = "" if fit.refused is None else f" (not used: {fit.refused.partition(':')[0]})"
        before, after = fit.before, fit.after
        changes = ((before.nll, after.nll), (before.ece, after.ece), (before.brier, after.brier))
        table.add_row(
            fit.detector,
            f"{fit.tau:.4f}{note}",
            str(fit.proposals),
            str(fit.positives),
            *(f"{was:.3f}→{now:.3f}" for was, now in changes),
        )
    return table

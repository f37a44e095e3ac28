"""What an analysis finds: one dataclass a table, one instance a row. Files, pages and plots are made from these.

Rows are ordered by system (in the order given), then by the factor's own order. ``None`` stands for a value that does
not exist (a mean over nothing); the row is there all the same, with its numbers of images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tallymill.engine.numbench.analysis.results.base import ALL, RESAMPLES
from tallymill.engine.numbench.analysis.results.counts import CollisionFit, Families, SignedError, VisiblePoint
from tallymill.engine.numbench.analysis.results.images import Coverage, Failure, Saturation, SystemRow, Uncovered
from tallymill.engine.numbench.analysis.results.people import Agreement, AgreementRow
from tallymill.engine.numbench.analysis.results.scores import (
    Cell,
    Contrast,
    CurvePoint,
    Difference,
    Level,
    Loss,
    Sensitivity,
)

__all__ = [
    "ALL",
    "RESAMPLES",
    "Agreement",
    "AgreementRow",
    "Analysis",
    "Cell",
    "CollisionFit",
    "Contrast",
    "Coverage",
    "CurvePoint",
    "Difference",
    "Failure",
    "Families",
    "Level",
    "Loss",
    "Saturation",
    "Sensitivity",
    "SignedError",
    "SystemRow",
    "Uncovered",
    "VisiblePoint",
]


@dataclass(frozen=True, slots=True)
class Analysis:
    """Everything that an analysis found. ``settings``: range_by, resamples, seed. ``runs``: what shaped each RUN.

    ``notes`` are sentences that a reader must have seen before the numbers: several images a prompt, images of other
    sizes, systems with different prompt sets, factors that the RUN does not know, and the like.
    """

    settings: dict[str, Any]
    runs: list[dict[str, Any]]
    notes: list[str]
    systems: list[SystemRow]
    overall: list[Cell]
    cells: list[Cell]
    differences: list[Difference]
    losses: list[Loss]
    levels: list[Level]
    contrasts: list[Contrast]
    sensitivity: list[Sensitivity]
    families: list[Families]
    signed_errors: list[SignedError]
    curve: list[CurvePoint]
    visible: list[VisiblePoint]
    collision: list[CollisionFit]
    saturation: list[Saturation]
    coverage: list[Coverage]
    uncovered: list[Uncovered]
    failures: list[Failure]
    agreement: Agreement | None = None

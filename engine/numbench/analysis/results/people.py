"""Detectors beside annotators."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AgreementRow:
    """What people saw beside what the detectors counted, over images of one count range (or "all").

    ``images`` have a count of every annotator for each requested category; ``scored`` of them have a score, and
    correlations, means and ``difference`` (the mean of |detector - human|) are over these. ``judged`` pairs of an image
    and a category enter Fleiss' ``kappa``. The human score is that of the consensus (median) counts in place of n^.
    ``ambiguous_any`` and ``ambiguous_most`` count images that an annotator, or more than half of them, marked as
    ambiguous (Table 6, visibility), None where the file has no marks. ``kappa_why`` and ``correlation_why`` say why a
    value is None.
    """

    system: str
    count_range: str
    stress_test: bool
    images: int
    scored: int
    judged: int
    kappa: float | None
    kappa_why: str | None
    pearson: float | None
    spearman: float | None
    correlation_why: str | None
    human_cw: float | None
    detector_cw: float | None
    difference: float | None
    ambiguous_any: int | None
    ambiguous_most: int | None


@dataclass(frozen=True, slots=True)
class Agreement:
    """Detectors against annotators: ``rows`` by system ("all" first where there are several), then by count range.

    ``annotators`` is the number of counts that each image and category needs. ``bin_width`` is the width of the bins
    that kappa takes counts by: 1 tells all counts apart, w puts 0, 1..w, w+1..2w and so on together.
    """

    annotations: str
    annotations_sha256: str
    annotators: int
    bin_width: int
    range_by: str
    rows: list[AgreementRow]
    notes: list[str]

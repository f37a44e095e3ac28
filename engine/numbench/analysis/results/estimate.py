"""A value with its interval."""

from __future__ import annotations

from dataclasses import dataclass

ALL = "all"
# Of cores, where nobody says how many.
RESAMPLES = 2_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A statistic with its 95 % percentile bootstrap interval.

    ``low`` and ``high`` are None without a bootstrap, where no resample gave a value, and where all that did gave the
    same: of one core, or of cores that score alike, resamples say nothing. ``null_resamples`` counts the resamples
    without a value.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    null_resamples: int = 0

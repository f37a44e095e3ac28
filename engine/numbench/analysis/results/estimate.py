"""A value with its interval."""

from __future__ import annotations

from dataclasses import dataclass

ALL = "all"
# Of cores, where nobody says how many.
RESAMPLES = 2_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A statistic with its 95 % percentile bootstrap interval.

    ``low`` and ``high`` are None without a bootstrap, and where no resample gave a value; ``null_resamples`` counts the
    resamples without one.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    null_resamples: int = 0

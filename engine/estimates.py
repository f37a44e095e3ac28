"""Values with their percentile intervals, by the name of a statistic and its place on the axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEVEL = 95.0
# Resamples that differ by no more are alike. What scores are sums of was rounded, to less than the first; counts came
# as float64, and of those with a large error the last bits are worth more: that follows the statistic itself.
ALIKE, ALIKE_SHARE = 1e-9, 1e-12


@dataclass(frozen=True, slots=True)
class Estimate:
    """A statistic with its 95 % percentile bootstrap interval.

    ``low`` and ``high`` are None without a bootstrap, where no resample gave a value, and where all that did gave the
    same: of one unit, or of units that score alike, resamples say nothing. ``null_resamples`` counts the resamples
    without a value.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    null_resamples: int = 0


class Estimates:
    """``point`` has each statistic with one leading axis of size 1, ``resampled`` the same with one of resamples."""

    def __init__(self, point: Mapping[str, NDArray[np.float64]], resampled: Mapping[str, NDArray[np.float64]]) -> None:
        self._point = point
        self._intervals = {name: _intervals(values) for name, values in resampled.items()}

    def __call__(self, name: str, *place: int) -> Estimate:
        """The estimate at one place."""
        value = _number(self._point[name][(0, *place)])
        if name not in self._intervals:
            return Estimate(value)
        low, high, nulls = (part[place] for part in self._intervals[name])
        return Estimate(value, _number(low), _number(high), int(nulls))


def _intervals(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Low and high ends over the resamples that have a value, NaN where these are all alike; how many have none."""
    missing = np.isnan(values)
    nulls = missing.sum(axis=0)
    ordered = np.sort(values, axis=0)  # NaN last
    number = len(values) - nulls
    tail = (100.0 - LEVEL) / 200.0
    low, high = (_quantile(ordered, number, share) for share in (tail, 1.0 - tail))
    last = np.take_along_axis(ordered, np.maximum(number - 1, 0)[None], axis=0)[0]
    differ = last - ordered[0] > ALIKE + ALIKE_SHARE * np.maximum(np.abs(ordered[0]), np.abs(last))
    return np.where(differ, low, np.nan), np.where(differ, high, np.nan), nulls


def _quantile(ordered: NDArray[np.float64], number: NDArray[np.int64], share: float) -> NDArray[np.float64]:
    """The quantile of the first ``number`` values along the first axis, between neighbours linearly."""
    at = share * np.maximum(number - 1, 0)
    below = np.floor(at).astype(np.int64)
    above = np.minimum(below + 1, np.maximum(number - 1, 0))
    a, b = (np.take_along_axis(ordered, place[None], axis=0)[0] for place in (below, above))
    # As numpy.percentile does it, so that anybody gets the same digits.
    part = at - below
    between: NDArray[np.float64] = np.where(part >= 0.5, b - (b - a) * (1.0 - part), a + (b - a) * part)
    return np.where(number > 0, between, np.nan)


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)

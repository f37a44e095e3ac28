"""Difficulty of edits: three ranks added up and cut at terciles (ABACUS, "Difficulty that reflects real scenes")."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tallymill.errors import UsageError

TIERS = ("easy", "medium", "hard")
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tiers:
    """``tier`` int64 [N] into ``TIERS``; ``difficulty`` float64 [N] in 0..3; ``cuts``: greatest of easy and medium."""

    tier: NDArray[np.int64]
    difficulty: Floats
    cuts: tuple[float, float]

    @property
    def names(self) -> list[str]:
        """The tier of each edit in words."""
        return [TIERS[place] for place in self.tier.tolist()]


def tiers(coverage: Floats, capacity: Floats, area: Floats, cuts: tuple[float, float] | None = None) -> Tiers:
    """The tier of each of N edits among the others.

    ``coverage`` [N] is the share of the image that instances cover, ``capacity`` [N] how many could be added, ``area``
    [N] the median area of the target's instances in pixels: the smaller, the harder. Each becomes a rank
    (r - 1/2) / N, of equal values the mean; their sum is cut at its terciles, or at ``cuts`` from another set. A sum
    that equals a cut belongs below it.

    Raises ``UsageError`` when there is nothing, a value is not finite, or cuts do not rise.
    """
    columns = [np.asarray(values, np.float64) for values in (coverage, capacity, area)]
    for name, values in zip(("coverage", "capacity", "area"), columns, strict=True):
        if not len(values) or values.shape != columns[0].shape:
            raise UsageError(f"{name}: {len(values)} values of {len(columns[0])} edits; each needs one")
        if not np.isfinite(values).all():
            at = int(np.flatnonzero(~np.isfinite(values))[0])
            raise UsageError(f"{name} of edit {at} is {values[at]}: it must be a number")
    coverage, capacity, area = columns
    doubled = _doubled(coverage) + _doubled(capacity) + _doubled(-area)
    difficulty = doubled / (2 * len(doubled))  # divided once: edits of equal sums have equal difficulty
    if cuts is None:
        low, high = np.quantile(difficulty, [1 / 3, 2 / 3])
        cuts = (float(low), float(high))
    if not cuts[0] <= cuts[1]:
        raise UsageError(f"cuts {cuts[0]} and {cuts[1]}: the second is below the first")
    return Tiers(np.searchsorted(np.array(cuts), difficulty, side="left"), difficulty, cuts)


def ranks(values: Floats) -> Floats:
    """(r - 1/2) / N of each of N values from the least, equal ones at their mean rank: float64 [N]."""
    return _doubled(values) / (2 * len(values))


def _doubled(values: Floats) -> NDArray[np.int64]:
    """2 r - 1 of each value: a mean of ranks is a half or a whole, so that this is whole."""
    _, place, times = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(times)  # of the equal ones the last rank, and last - times + 1 the first
    return np.asarray((2 * last - times)[place], np.int64)

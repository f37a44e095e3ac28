"""The collision model by simulation: instances put into regions one by one, many times over.

Nothing here knows the formulas of ``closed.py``; regions are told apart, and each is occupied or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.errors import MissingExtraError

# Of a trial the kernel keeps two numbers a region and two an instance; of all trials, a histogram a count.
MAX_REGIONS, MAX_INSTANCES, MAX_CELLS = 10_000_000, 1_000_000, 50_000_000


@dataclass(frozen=True, slots=True)
class Simulation:
    """How many regions were occupied, over all trials.

    ``counts`` int64 [K], ascending and each once; ``histogram`` int64 [K, min(largest count, M) + 1]: trials by the
    number of occupied regions, each row's sum being ``trials``. One trial serves all counts (the first n instances of
    it), so that the rows depend on one another, and each alone is as it should be.
    """

    capacity: int
    coordination: float
    trials: int
    seed: int
    counts: NDArray[np.int64]
    histogram: NDArray[np.int64]

    def mean(self) -> NDArray[np.float64]:
        """Mean of R, float64 [K]."""
        return np.asarray(self.histogram @ np.arange(self.histogram.shape[1]) / self.trials)

    def deviation(self) -> NDArray[np.float64]:
        """Standard deviation of R (of the sample, n - 1), float64 [K]; 0 for one trial."""
        off = np.arange(self.histogram.shape[1]) - self.mean()[:, None]
        return np.asarray(np.sqrt((self.histogram * off * off).sum(1) / max(self.trials - 1, 1)))

    def all_distinct(self) -> NDArray[np.float64]:
        """The share of trials with R = n, float64 [K]."""
        possible = self.counts < self.histogram.shape[1]
        found = self.histogram[np.arange(len(self.counts)), np.where(possible, self.counts, 0)]
        return np.asarray(np.where(possible, found, 0) / self.trials)


def simulate(
    counts: Sequence[int], capacity: int, coordination: float = 0.0, *, trials: int, seed: int = 0, threads: int = 1
) -> Simulation:
    """Place instances ``trials`` times: in an unused region with probability lambda if there is one, else uniformly.

    Each trial draws from a stream of its own, made of ``seed`` (0 to 2^64 - 1) and the trial's number, so that the
    result does not depend on ``threads``. Raises ``ValueError`` for numbers out of range, ``MissingExtraError``
    without numba.
    """
    wanted = np.unique(np.asarray(counts, np.int64))
    _check(wanted, capacity, coordination, trials, seed, threads)
    kernel = _kernel()
    edges = np.linspace(0, trials, min(threads, trials) + 1).astype(np.int64).tolist()

    def part(first: int, last: int) -> NDArray[np.int64]:
        histogram = np.zeros((len(wanted), min(int(wanted[-1]), capacity) + 1), np.int64)
        kernel(wanted, capacity, coordination, np.uint64(seed), first, last, histogram)
        return histogram

    with ThreadPoolExecutor(len(edges) - 1) as pool:
        parts = list(pool.map(part, edges[:-1], edges[1:]))
    return Simulation(capacity, coordination, trials, seed, wanted, np.sum(parts, axis=0))


def _check(wanted: NDArray[np.int64], capacity: int, coordination: float, trials: int, seed: int, threads: int) -> None:
    if not len(wanted) or wanted[0] < 0 or wanted[-1] > MAX_INSTANCES:
        raise ValueError(f"counts: must be some of 0..{MAX_INSTANCES:,}")
    if not 1 <= capacity <= MAX_REGIONS:
        raise ValueError(f"capacity M: must lie in 1..{MAX_REGIONS:,}")
    if not 0 <= coordination <= 1:
        raise ValueError("coordination lambda: must lie in 0..1")
    if trials < 1 or threads < 1 or not 0 <= seed < 1 << 64:
        raise ValueError("trials and threads: must be at least 1; seed: must lie in 0..2^64-1")
    if len(wanted) * min(wanted[-1], capacity) > MAX_CELLS:
        raise ValueError("counts: too many and too large to keep a histogram of each")


@cache
def _kernel() -> Callable[..., Any]:
    """The loop over trials, compiled."""
    with MissingExtraError.unless("numba", extra="numba"):
        import numba
    step = np.uint64(0x9E3779B97F4A7C15)

    # The finalizer of splitmix64 (Steele, Lea and Flood 2014): the stream of a trial is its values at key + i step.
    @numba.njit("uint64(uint64)", nogil=True)
    def mixed(bits):  # type: ignore[no-untyped-def]
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return bits ^ (bits >> np.uint64(31))

    @numba.njit("float64(uint64)", nogil=True)
    def fraction(bits):  # type: ignore[no-untyped-def]
        return np.float64(mixed(bits) >> np.uint64(11)) * 2.0**-53

    @numba.njit("void(int64[::1], int64, float64, uint64, int64, int64, int64[:, ::1])", nogil=True)
    def loop(counts, capacity, coordination, seed, first, last, histogram):  # type: ignore[no-untyped-def]
        # regions[:occupied] are the occupied ones; place is where each region stands in regions.
        regions, place = np.arange(capacity), np.arange(capacity)
        came_from = np.empty(min(capacity, counts[-1]), np.int64)
        for trial in range(first, last):
            state = mixed(mixed(seed + step) + np.uint64(trial) * step)
            occupied = placed = 0
            for k in range(len(counts)):
                while placed < counts[k]:
                    placed += 1
                    coordinated = occupied < capacity and fraction(state) < coordination
                    where = fraction(state + step)
                    state += step + step
                    if coordinated:
                        at = occupied + np.int64(where * (capacity - occupied))
                    else:
                        at = place[np.int64(where * capacity)]
                    if at >= occupied:
                        other, region = regions[occupied], regions[at]
                        regions[occupied], regions[at] = region, other
                        place[region], place[other] = occupied, at
                        came_from[occupied] = at
                        occupied += 1
                histogram[k, occupied] += 1
            while occupied > 0:  # back to the order that every trial begins with
                occupied -= 1
                at = came_from[occupied]
                other, region = regions[at], regions[occupied]
                regions[occupied], regions[at] = other, region
                place[region], place[other] = at, occupied

    compiled: Callable[..., Any] = loop
    return compiled

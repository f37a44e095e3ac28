"""The capacity A = M/q that a curve of visible against requested counts speaks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tallymill.engine.numbench.analysis.results import CollisionFit, VisiblePoint
from tallymill.engine.numbench.factors import FREE, LAYOUTS

FITTED, LEAST, INFINITE, NO_DATA = "fitted", "least", "infinite", "no data"
# 1/A is searched first on a grid, even in its logarithm: with odd data the error has more than one minimum.
GRID = np.concatenate(([0.0], np.geomspace(1e-12, 1.0, 481)))
HALVINGS = 80


@dataclass(frozen=True, slots=True)
class Fit:
    """The least-squares A of E[R] = A (1 - (1 - 1/A)^n).

    ``verdict`` "fitted"; "least": A = 1, the smallest that there is (M >= 1, q <= 1), for no more than one object is
    visible; "infinite"; or "no data": no weight at any n >= 2, and n = 1 says nothing of A. ``capacity`` is infinite
    for "infinite" and None for "no data"; ``rmse`` is weighted, in objects.
    """

    verdict: str
    capacity: float | None
    rmse: float | None
    points: int
    weight: float


def fit_capacity(requested: ArrayLike, visible: ArrayLike, weight: ArrayLike | None = None) -> Fit:
    """Fit A to visible counts: least squares, each point with its weight (images, say).

    ``requested`` whole numbers [P] of at least 1; ``visible`` [P] and ``weight`` [P] finite, the latter not negative,
    1 when not given. A is infinite when visible >= requested on average, and when no finite A comes nearer than
    y = n (above 10^12 none can be told from it). The result does not depend on the order of the points. Raises
    ``ValueError`` for other values.
    """
    n, seen, share = _points(requested, visible, weight)
    total = math.fsum(share)
    if not (share[n >= 2] > 0).any():
        return Fit(NO_DATA, None, None, len(n), total)
    unlimited = math.fsum(share * seen) >= math.fsum(share * n)
    inverse = 0.0 if unlimited else _least_squares(n, seen, share / total)
    errors = seen - _curve(n, inverse)[0]
    rmse = math.sqrt(math.fsum(share * errors * errors) / total)
    verdict = INFINITE if inverse == 0.0 else LEAST if inverse == 1.0 else FITTED
    return Fit(verdict, 1.0 / inverse if inverse else math.inf, rmse, len(n), total)


def fit_layouts(visible: Sequence[VisiblePoint]) -> list[CollisionFit]:
    """One row a system and layout: systems in the order of their points, layouts in the factor's own order.

    Fitted to the hard counts, each point weighted by its images.
    """
    rows = []
    for system in dict.fromkeys(point.system for point in visible):
        own = [point for point in visible if point.system == system]
        layouts = dict.fromkeys((*LAYOUTS, *(point.layout for point in own)))
        fits = {layout: _fit([point for point in own if point.layout == layout]) for layout in layouts}
        rows += [_row(system, layout, fit, fits[FREE]) for layout, fit in fits.items()]
    return rows


def coordination(free: Fit, layout: Fit) -> float | None:
    """lambda = 1 - A_free / A_layout, if M were equal and free placement uncoordinated.

    None where no lambda in 0..1 makes the two fits agree: free is infinite, a fit is missing, or the layout has less.
    """
    if free.capacity is None or layout.capacity is None or math.isinf(free.capacity):
        return None
    if layout.capacity < free.capacity:
        return None
    return 1.0 - free.capacity / layout.capacity


def _fit(points: list[VisiblePoint]) -> Fit:
    return fit_capacity(*([getattr(point, name) for point in points] for name in ("count", "hard", "scored")))


def _row(system: str, layout: str, fit: Fit, free: Fit) -> CollisionFit:
    finite = fit.capacity is not None and math.isfinite(fit.capacity)
    return CollisionFit(
        system=system,
        layout=layout,
        verdict=fit.verdict,
        capacity=fit.capacity if finite else None,
        coordination=None if layout == FREE else coordination(free, fit),
        rmse=fit.rmse,
        points=fit.points,
        scored=int(fit.weight),
    )


def _points(
    requested: ArrayLike, visible: ArrayLike, weight: ArrayLike | None
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """The points, checked and in one order."""
    wanted, seen = np.asarray(requested, np.float64), np.asarray(visible, np.float64)
    share = np.ones(wanted.shape) if weight is None else np.asarray(weight, np.float64)
    if not wanted.ndim == seen.ndim == share.ndim == 1 or not len(wanted) == len(seen) == len(share):
        raise ValueError("requested, visible and weight: must be three lists of one length")
    if not ((wanted >= 1) & (wanted == np.floor(wanted)) & np.isfinite(wanted)).all():
        raise ValueError("requested: must be whole numbers of at least 1")
    if not (np.isfinite(seen).all() and np.isfinite(share).all() and (share >= 0).all()):
        raise ValueError("visible and weight: must be finite, and no weight negative")
    order = np.lexsort((share, seen, wanted))
    return wanted[order].astype(np.int64), seen[order], share[order]


def _curve(n: NDArray[np.int64], inverse: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """E[R] at u = 1/A, and its derivative by u: sums of (1-u)^i, and of -i (1-u)^(i-1), over i = 0..n-1.

    Sums of terms of one sign, accurate from u = 0 to u = 1.
    """
    order = np.arange(int(n.max()))
    powers = (1.0 - inverse) ** order
    slopes = -order[1:] * powers[:-1]
    return np.cumsum(powers)[n - 1], np.concatenate(([0.0], np.cumsum(slopes)))[n - 1]


def _least_squares(n: NDArray[np.int64], seen: NDArray[np.float64], share: NDArray[np.float64]) -> float:
    """u = 1/A in [0, 1] of the least squared error: the best of a grid, then the error's slope halved to its zero."""

    def error(inverse: float) -> float:
        return float(share @ (seen - _curve(n, inverse)[0]) ** 2)

    def slope(inverse: float) -> float:
        curve, derivative = _curve(n, inverse)
        return float(share @ ((curve - seen) * derivative))

    best = int(np.argmin([error(inverse) for inverse in GRID]))
    if best == 0 or (best == len(GRID) - 1 and slope(1.0) <= 0):
        return float(GRID[best])
    low, high = (GRID[best - 1], GRID[best]) if slope(GRID[best]) > 0 else (GRID[best], GRID[best + 1])
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return min(float(GRID[best]), float(high), key=error)

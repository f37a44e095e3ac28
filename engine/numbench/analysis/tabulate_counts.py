"""The rows of the tables of counts: families, signed errors, visible counts, coverage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.estimates import Estimates
from tallymill.engine.exact_sum import rounded
from tallymill.engine.numbench.analysis.counting import ERRORS, FAMILIES, SIDES, Counting
from tallymill.engine.numbench.analysis.grid import Axes, Placing
from tallymill.engine.numbench.analysis.results import Coverage, Families, SignedError, VisiblePoint
from tallymill.engine.numbench.analysis.statistics import ratio, with_all
from tallymill.engine.numbench.analysis.tabulate import cells_on
from tallymill.engine.numbench.factors import STRESS_RANGES, count_range

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Counts:
    """What ``Counting`` found, on the axes: ``families`` and ``sides`` int64 [S, C+1, K+1, 3], "all" last.

    ``point`` has the statistics of ``error_statistics`` with a leading axis of size 1, from exact sums.
    """

    families: Ints
    sides: Ints
    point: dict[str, Floats]


def counts_on(axes: Axes, placing: Placing, counting: Counting) -> Counts:
    """Put what was counted on the axes."""

    def placed(values: NDArray[Any]) -> NDArray[Any]:
        return with_all(_placed(values, placing.systems, placing.compositions, axes), 2, 1)

    systems = len(placing.systems)
    families, sides = placed(counting.families(systems)), placed(counting.sides(systems))
    targets = sides.sum(axis=-1)
    errors = [ratio(_rounded(placed(sums)), targets) for sums in counting.errors(systems)]
    point = {
        "family": ratio(families, families.sum(axis=-1, keepdims=True)),
        "side": ratio(sides, targets[..., None]),
        "error": np.stack(errors, axis=-1),
    }
    return Counts(families, sides, {name: values[None] for name, values in point.items()})


def _rounded(sums: NDArray[np.object_]) -> Floats:
    return np.array([rounded(total) for total in sums.ravel().tolist()], np.float64).reshape(sums.shape)


def families(axes: Axes, counts: Counts, estimates: Estimates) -> list[Families]:
    """Table 6 by composition and range, "all" last."""
    found = []
    for s, c, k, names in cells_on(axes):
        of = counts.families[s, c, k].tolist()
        shares = (estimates("family", s, c, k, at) for at in range(len(FAMILIES)))
        found.append(Families(*names, names[2] in STRESS_RANGES, sum(of), *of, *shares))
    return found


def signed_errors(axes: Axes, counts: Counts, estimates: Estimates) -> list[SignedError]:
    """Signed errors by composition and range, "all" last."""
    found = []
    for s, c, k, names in cells_on(axes):
        of = counts.sides[s, c, k].tolist()
        values: dict[str, Any] = {name: estimates("error", s, c, k, at) for at, name in enumerate(ERRORS)}
        values |= zip(SIDES, of, strict=True)
        values |= {f"{name}_share": estimates("side", s, c, k, at) for at, name in enumerate(SIDES)}
        system, composition, name = names
        found.append(SignedError(system, composition, name, name in STRESS_RANGES, sum(of), **values))
    return found


def visible(axes: Axes, placing: Placing, counting: Counting) -> Iterator[VisiblePoint]:
    """Visible counts by layout and request, where there is an image."""
    systems = len(placing.systems)
    seen, hard, soft = (
        _placed(values, placing.systems, placing.layouts, axes, layouts=True)
        for values in (counting.seen(systems), *counting.visible(systems))
    )
    for s, layout, n in np.argwhere(seen > 0).tolist():
        number = int(seen[s, layout, n])
        mean_hard, mean_soft = (rounded(sums[s, layout, n]) / number for sums in (hard, soft))
        stress = count_range(n) in STRESS_RANGES
        yield VisiblePoint(axes.systems[s], axes.layouts[layout], n, number, mean_hard, mean_soft, stress)


def coverage(axes: Axes, placing: Placing, counting: Counting) -> Iterator[Coverage]:
    """Scored images by the number of detectors, where there is one."""
    found = _placed(counting.coverings(len(placing.systems)), placing.systems, placing.compositions, axes)
    for s, c, d in np.argwhere(found > 0).tolist():
        yield Coverage(axes.systems[s], axes.compositions[c], d, int(found[s, c, d]))


def _placed(values: NDArray[Any], systems: Ints, second: Ints, axes: Axes, *, layouts: bool = False) -> NDArray[Any]:
    """From codes to places: arrays of shape [S, codes, ...] to [S, C or L, ...]."""
    found = np.zeros(
        (len(axes.systems), len(axes.layouts if layouts else axes.compositions), *values.shape[2:]), values.dtype
    )
    s, c = np.broadcast_arrays(systems[:, None], second[None, : values.shape[1]])
    np.add.at(found, (s, c), values[:, : len(second)])
    return found

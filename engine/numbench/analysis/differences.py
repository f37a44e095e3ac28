"""What systems differ by: pairs of them, cell by cell of Table 4."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.estimates import Estimates
from tallymill.engine.numbench.analysis.cores import cores_both
from tallymill.engine.numbench.analysis.grid import Grid
from tallymill.engine.numbench.analysis.results import ALL, Difference
from tallymill.engine.numbench.factors import COUNT_RANGES, STRESS_RANGES

Floats = NDArray[np.float64]
# Up to so many systems are compared each with each, of more each with the first alone.
MOST_COMPARED = 12
_SCORES = ("cw_nps", "b_nps")


def differences_of(
    grid: Grid, cores: NDArray[np.int64], point: Mapping[str, Floats], resampled: Mapping[str, Floats]
) -> list[Difference]:
    """Each system minus each before it, over the cells of Table 4 and "all"; from the statistics of ``statistics``.

    ``cores`` are those of ``cores_of``.
    """
    axes = grid.axes
    pairs = pairs_of(len(axes.systems))
    if not pairs:
        return []
    both = cores_both(grid, 1 if len(axes.systems) > MOST_COMPARED else len(axes.systems))
    found = []
    for reference, system in pairs:
        estimates = Estimates(*(_minus(values, system, reference) for values in (point, resampled)))
        for c, composition in enumerate([*axes.compositions, ALL]):
            for k, name in enumerate([*COUNT_RANGES, ALL]):
                found.append(
                    Difference(
                        axes.systems[system],
                        axes.systems[reference],
                        composition,
                        name,
                        name in STRESS_RANGES,
                        int(cores[system, c, k]),
                        int(cores[reference, c, k]),
                        int(both[c, k, system, reference]),
                        *(estimates(score, c, k) for score in _SCORES),
                    )
                )
    return found


def pairs_of(systems: int) -> list[tuple[int, int]]:
    """(reference, system) in order of the system; of very many systems the first is the only reference."""
    pairs = sorted(combinations(range(systems), 2), key=lambda pair: (pair[1], pair[0]))
    return pairs if systems <= MOST_COMPARED else [pair for pair in pairs if pair[0] == 0]


def _minus(values: Mapping[str, Floats], system: int, reference: int) -> dict[str, Floats]:
    cells = {score: values[f"cell.{score}"] for score in _SCORES if f"cell.{score}" in values}
    return {score: of[:, system] - of[:, reference] for score, of in cells.items()}

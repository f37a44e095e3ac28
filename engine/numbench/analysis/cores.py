"""How many cores stand behind a mean, and behind the difference of two."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.numbench.analysis.grid import RANGES, Grid
from tallymill.engine.numbench.factors import range_codes

Ints = NDArray[np.int64]


def cores_of(grid: Grid) -> Ints:
    """Cores with a scored image: int64 [S, C+1, K+1], "all" last."""
    systems, compositions = grid.axes.shape[:2]
    found = np.zeros((systems, compositions + 1, RANGES + 1), np.int64)
    for c, k, _, system in _scored(grid):
        found[:, c, k] = np.bincount(system, minlength=systems)
    return found


def cores_both(grid: Grid, references: int) -> Ints:
    """Cores with a scored image of two systems, int64 [C+1, K+1, S, R] for the first R as references; "all" last.

    Memory grows with the leaves, not with cores times systems.
    """
    systems, compositions = grid.axes.shape[:2]
    marks = np.zeros(len(grid.leaves.names.settled), np.bool_)
    found = np.zeros((compositions + 1, RANGES + 1, systems, references), np.int64)
    for c, k, core, system in _scored(grid):
        for reference in range(references):
            own = core[system == reference]
            marks[own] = True
            found[c, k, :, reference] = np.bincount(system[marks[core]], minlength=systems)
            marks[own] = False
    return found


def _scored(grid: Grid) -> Iterator[tuple[int, int, Ints, Ints]]:
    """By cell (composition and range, "all" last), each core and system that have a scored image there, once."""
    systems, compositions = grid.axes.shape[:2]
    scored = np.flatnonzero(grid.leaves.number(0) > 0)
    place = grid.leaves.core[scored] * systems + grid.system[scored]
    order = np.argsort(place, kind="stable")
    scored, place = scored[order], place[order]
    composition, ranges = grid.composition[scored], range_codes(grid.count[scored])
    for c in range(compositions + 1):
        within = np.ones(len(scored), np.bool_) if c == compositions else composition == c
        for k in range(RANGES + 1):
            of = place[within if k == RANGES else within & (ranges == k)]
            core, system = np.divmod(of[np.diff(of, prepend=-1) != 0], systems)
            yield c, k, core, system

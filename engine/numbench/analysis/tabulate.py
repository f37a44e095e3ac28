"""The rows of the tables of scores, from estimates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.estimates import Estimates
from tallymill.engine.numbench.analysis.grid import Axes
from tallymill.engine.numbench.analysis.images import UNKNOWN
from tallymill.engine.numbench.analysis.pairs import PairedLevels
from tallymill.engine.numbench.analysis.results import (
    ALL,
    Cell,
    Contrast,
    CurvePoint,
    Level,
    Loss,
    Sensitivity,
)
from tallymill.engine.numbench.analysis.sensitivity import factors_of
from tallymill.engine.numbench.analysis.statistics import membership, with_all
from tallymill.engine.numbench.factors import COUNT_RANGES, STRESS_RANGES, count_range

Ints = NDArray[np.int64]


def cells(
    axes: Axes, numbers: Ints, cores: Ints, alone: NDArray[np.float64], estimates: Estimates
) -> tuple[list[Cell], list[Cell]]:
    """Table 4: one row a system over everything, and the rows by composition and count range, "all" last.

    ``alone`` [S, C, K, D] are images that each detector scored alone, ``cores`` those of ``cores_of``.
    """
    alone = with_all(alone, -2, -3)
    status = with_all(numbers.sum(axis=(-1, -2)), -1, -2)
    overall: list[Cell] = []
    found: list[Cell] = []
    for s, c, k, names in cells_on(axes):
        scored, error, uncovered = status[:, s, c, k].tolist()
        cell = Cell(
            *names,
            stress_test=names[2] in STRESS_RANGES,
            items=scored + error + uncovered,
            scored=scored,
            error=error,
            uncovered=uncovered,
            cores=int(cores[s, c, k]),
            cw_nps=estimates("cell.cw_nps", s, c, k),
            b_nps=estimates("cell.b_nps", s, c, k),
            gap=estimates("cell.gap", s, c, k),
            single_cw={name: estimates("cell.single_cw", s, c, k, d) for d, name in enumerate(axes.detectors)},
            single_scored={name: int(alone[s, c, k, d]) for d, name in enumerate(axes.detectors)},
            ensemble_same={name: estimates("cell.ensemble_same", s, c, k, d) for d, name in enumerate(axes.detectors)},
        )
        (overall if names[1:] == (ALL, ALL) else found).append(cell)
    return overall, found


def losses(axes: Axes, estimates: Estimates) -> list[Loss]:
    """The loss from the first range to the last, by composition."""
    compositions = [*axes.compositions, ALL]
    return [
        Loss(system, composition, estimates("loss.cw_nps", s, c), estimates("loss.b_nps", s, c))
        for s, system in enumerate(axes.systems)
        for c, composition in enumerate(compositions)
    ]


def levels(axes: Axes, numbers: Ints, estimates: Estimates) -> list[Level]:
    """Means by layout, appearance and modifier group, of those that are known."""
    factors = {"layout": axes.layouts, "appearance": axes.appearances, "modifier_group": axes.groups}
    status = {
        name: numbers.sum(axis=(2, 3, 5)) if name == "layout" else numbers.sum(axis=(2, 3, 4)) @ _looks_of(axes, name)
        for name in factors
    }
    found = []
    for s, system in enumerate(axes.systems):
        for name, words in factors.items():
            if set(words) <= {UNKNOWN}:
                continue
            for at, word in enumerate(words):
                items, scored = int(status[name][:, s, at].sum()), int(status[name][0, s, at])
                cw, b = (estimates(f"level.{name}.{score}", s, at) for score in ("cw_nps", "b_nps"))
                found.append(Level(system, name, word, items, scored, cw, b))
    return found


def _looks_of(axes: Axes, factor: str) -> Ints:
    words = axes.appearances if factor == "appearance" else axes.groups
    return membership(axes, factor, words).astype(np.int64)


def contrasts(
    axes: Axes, pairs: Sequence[PairedLevels], numbers: NDArray[np.float64], estimates: Estimates
) -> list[Contrast]:
    """The paired differences; ``numbers`` [S, X] of cores that have both sides."""
    return [
        Contrast(
            system,
            pair.factor,
            pair.name,
            pair.reference_name,
            int(numbers[s, x]),
            estimates("contrast.cw_nps", s, x),
            estimates("contrast.b_nps", s, x),
        )
        for s, system in enumerate(axes.systems)
        for x, pair in enumerate(pairs)
    ]


def curve(axes: Axes, numbers: NDArray[np.float64], estimates: Estimates) -> list[CurvePoint]:
    """Scores against count, where there is an image; ``numbers`` [S, C, 100]."""
    return [
        CurvePoint(
            axes.systems[s],
            axes.compositions[c],
            n + 1,
            count_range(n + 1) in STRESS_RANGES,
            int(numbers[s, c, n]),
            estimates("curve.cw_nps", s, c, n),
            estimates("curve.b_nps", s, c, n),
        )
        for s, c, n in np.argwhere(numbers > 0).tolist()
    ]


def sensitivity(
    axes: Axes, estimates: Estimates, cells_of: dict[str, Ints], chance: dict[str, NDArray[np.float64]]
) -> list[Sensitivity]:
    """By system and factor, and the means over systems; ``cells_of`` [S, 3] has by factor used, best 0, one level, and
    ``chance`` [S+1] what chance alone would show, where that was drawn.
    """
    found = []
    for s, system in enumerate([*axes.systems, ALL]):
        for name in factors_of(axes):
            counts = cells_of[name].sum(axis=0) if system == ALL and s == len(axes.systems) else cells_of[name][s]
            relative, absolute = (estimates(f"sensitivity.{name}.{kind}", s) for kind in ("relative", "absolute"))
            by_chance = float(chance[name][s]) if name in chance and not np.isnan(chance[name][s]) else None
            used, zero, one = counts.tolist()
            found.append(Sensitivity(system, name, relative, absolute, used, zero, one, by_chance))
    return found


def cells_on(axes: Axes) -> Iterator[tuple[int, int, int, tuple[str, str, str]]]:
    """The places of all cells of Table 4, "all" last on its axis, with the names of system, composition and range."""
    for s, system in enumerate(axes.systems):
        for c, composition in enumerate([*axes.compositions, ALL]):
            for k, name in enumerate([*COUNT_RANGES, ALL]):
                yield s, c, k, (system, composition, name)

"""Paired contrasts: what a level of a factor changes within one core, over the leaves that there are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.numbench.analysis.grid import CLEAN, MODIFIED, Axes, Grid
from tallymill.engine.numbench.analysis.images import UNKNOWN
from tallymill.engine.numbench.analysis.leaves import HIGH_UNIT, LOW_UNIT
from tallymill.engine.numbench.factors import FREE, GUIDED
from tallymill.engine.numbench.factors import MODIFIER_GROUPS as GROUPS

CW, B = 0, 1


@dataclass(frozen=True, slots=True)
class PairedLevels:
    """A contrast: images whose place in L x P has ``level`` against those of ``reference``, bool [L, P] each, paired
    along the other axis.
    """

    factor: str
    name: str
    reference_name: str
    level: NDArray[np.bool_]
    reference: NDArray[np.bool_]


def contrasts_of(axes: Axes) -> list[PairedLevels]:
    """Every contrast of the factors that are known: guided layouts against free, modified images against clean."""
    layouts, looks = np.array(axes.layouts), axes.looks
    shape = len(layouts), len(looks)

    def of_layouts(*names: str) -> NDArray[np.bool_]:
        return np.broadcast_to(np.isin(layouts, names)[:, None], shape)

    def of_looks(appearance: str, *groups: str | None) -> NDArray[np.bool_]:
        has = [look == appearance and (not groups or group in groups) for look, group in looks]
        return np.broadcast_to(np.array(has, np.bool_), shape)

    found = []
    if FREE in axes.layouts:
        sides = [*((name, (name,)) for name in axes.layouts if name not in (FREE, UNKNOWN)), ("guided", GUIDED)]
        found += [PairedLevels("layout", name, FREE, of_layouts(*names), of_layouts(FREE)) for name, names in sides]
    if CLEAN in axes.appearances:
        kinds: list[tuple[str, tuple[str, ...]]] = [(MODIFIED, ())]
        kinds += [(group, (group,)) for group in GROUPS if group in axes.groups]
        clean = of_looks(CLEAN)
        found += [PairedLevels("appearance", name, CLEAN, of_looks(MODIFIED, *groups), clean) for name, groups in kinds]
    return found


@dataclass(frozen=True, slots=True)
class Differences:
    """What contrast ``at`` finds in M pairs of a unit and a system, each once: ``unit`` and ``system`` int64 [M], and
    the mean of the differences of ``cw`` and ``b`` float64 [M].
    """

    at: int
    unit: NDArray[np.int64]
    system: NDArray[np.int64]
    cw: NDArray[np.float64]
    b: NDArray[np.float64]


def differences(
    grid: Grid, contrasts: list[PairedLevels], leaf: NDArray[np.int64], unit: NDArray[np.int64]
) -> Iterator[Differences]:
    """Each contrast of the units whose leaves are ``leaf`` int64 [L'], with their ``unit`` int64 [L'].

    In each level of the held factor that has both sides, the difference of the sides' means; of these the mean.
    """
    scored = grid.leaves.number(0)[leaf] > 0
    leaf, unit = leaf[scored], unit[scored]
    for factor in ("layout", "appearance"):
        held = grid.look if factor == "layout" else grid.layout
        pair = (unit * len(grid.axes.systems) + grid.system[leaf]) * 256 + held[leaf]
        order = np.argsort(pair, kind="stable")
        several = _several(pair[order])
        of, key = leaf[order][several], pair[order][several]
        place = grid.layout[of], grid.look[of]
        for at, contrast in enumerate(contrasts):
            if contrast.factor == factor:
                sides = contrast.level[place], contrast.reference[place]
                yield _differences(grid, at, of, key, sides)


def _several(keys: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Of ascending keys, those that stand more than once: a leaf by itself has nothing to be compared with."""
    same = keys[1:] == keys[:-1]
    found: NDArray[np.bool_] = np.concatenate([[False], same]) | np.concatenate([same, [False]])
    return found[: len(keys)]


def _differences(
    grid: Grid,
    at: int,
    leaf: NDArray[np.int64],
    key: NDArray[np.int64],
    sides: tuple[NDArray[np.bool_], NDArray[np.bool_]],
) -> Differences:
    """One contrast of leaves in ascending order of ``key``, which says the unit, the system and the held level."""
    keys, firsts, values = [], [], []
    for side in sides:
        own = key[side]
        first = np.flatnonzero(np.concatenate([[True], own[1:] != own[:-1]])[: len(own)])
        keys.append(own[first])
        firsts.append(first)
        values.append(_means(grid, leaf[side], first))
    both, one, other = np.intersect1d(keys[0], keys[1], assume_unique=True, return_indices=True)
    found = values[0][:, one] - values[1][:, other]
    own = both // 256
    first = np.flatnonzero(np.concatenate([[True], own[1:] != own[:-1]])[: len(own)])
    means = _added(found, first) / np.diff(first, append=len(own))
    systems = len(grid.axes.systems)
    return Differences(at, own[first] // systems, own[first] % systems, means[CW], means[B])


def _means(grid: Grid, leaf: NDArray[np.int64], first: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean cw and b float64 [2, G] of runs of leaves, from exact sums."""
    number = _added(grid.leaves.number(0)[leaf], first)
    sums = [[_added(part[leaf], first) for part in grid.leaves.sums(score)] for score in (CW, B)]
    return np.stack([(high * HIGH_UNIT + low * LOW_UNIT) / number for high, low in sums])


def _added(values: NDArray[Any], first: NDArray[np.int64]) -> NDArray[Any]:
    return np.add.reduceat(values, first, axis=-1) if len(first) else values[..., :0]

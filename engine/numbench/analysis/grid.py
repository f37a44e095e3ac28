"""Leaves by the axes of the tables: systems, compositions, count ranges, layouts, appearances."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.numbench.analysis.codes import Codes
from tallymill.engine.numbench.analysis.images import MULTIPLE, UNKNOWN, Factors
from tallymill.engine.numbench.analysis.leaves import COUNTS, HIGH_UNIT, LOW_UNIT, Leaves
from tallymill.engine.numbench.factors import (
    APPEARANCES,
    COMPOSITIONS,
    COUNT_RANGES,
    GREATEST_COUNT,
    LAYOUTS,
    range_codes,
)
from tallymill.engine.numbench.factors import MODIFIER_GROUPS as GROUPS

CLEAN, MODIFIED = APPEARANCES
RANGES = len(COUNT_RANGES)
Look = tuple[str | None, str | None]
T = TypeVar("T", bound=Hashable)
V = TypeVar("V", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Axes:
    """The levels of every axis in the order in which they are shown: the paper's, further ones by name, "unknown".

    A look is an appearance with its modifier group, which is None where it has none.
    """

    systems: list[str]
    compositions: list[str]
    layouts: list[str]
    looks: list[tuple[str, str | None]]
    detectors: list[str]

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """The sizes of systems, compositions, ranges, layouts and looks."""
        return len(self.systems), len(self.compositions), RANGES, len(self.layouts), len(self.looks)

    @property
    def appearances(self) -> list[str]:
        """The appearances, each once."""
        return list(dict.fromkeys(look for look, _ in self.looks))

    @property
    def groups(self) -> list[str]:
        """The modifier groups of modified images."""
        return list(dict.fromkeys(group or UNKNOWN for look, group in self.looks if look == MODIFIED))


@dataclass(frozen=True, slots=True)
class Placing:
    """For each code of ``Factors`` its place on an axis."""

    systems: NDArray[np.int64]
    compositions: NDArray[np.int64]
    layouts: NDArray[np.int64]
    looks: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over images, by axes after any leading ones (resamples).

    ``number`` [..., S, C, K, L, P]; ``cw`` and ``b`` the same with a last axis of units (``of_units``);
    ``single_number`` [..., S, C, K, D] and ``single_cw``, and ``same_cw`` of the ensemble over these images;
    ``curve_number`` [..., S, C, 100], ``curve_cw``, ``curve_b``;
    ``paired`` [..., S, X] cores that have both sides of contrast X, ``paired_cw`` and ``paired_b`` the sums of their
    differences.
    """

    number: NDArray[np.float64]
    cw: NDArray[np.float64]
    b: NDArray[np.float64]
    single_number: NDArray[np.float64]
    single_cw: NDArray[np.float64]
    same_cw: NDArray[np.float64]
    curve_number: NDArray[np.float64]
    curve_cw: NDArray[np.float64]
    curve_b: NDArray[np.float64]
    paired: NDArray[np.float64]
    paired_cw: NDArray[np.float64]
    paired_b: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Grid:
    """Leaves with their places on the axes, each int32 [L]. ``stratum`` is composition x range of the image."""

    axes: Axes
    leaves: Leaves
    system: NDArray[np.int32]
    composition: NDArray[np.int32]
    layout: NDArray[np.int32]
    look: NDArray[np.int32]
    count: NDArray[np.int32]
    stratum: NDArray[np.int32] = field(repr=False)

    @classmethod
    def of(cls, leaves: Leaves, axes: Axes, placing: Placing) -> Grid:
        """Place settled leaves."""
        composition = placing.compositions[leaves.attribute("composition")].astype(np.int32)
        return cls(
            axes=axes,
            leaves=leaves,
            system=placing.systems[leaves.attribute("system")].astype(np.int32),
            composition=composition,
            layout=placing.layouts[leaves.attribute("layout")].astype(np.int32),
            look=placing.looks[leaves.attribute("look")].astype(np.int32),
            count=leaves.attribute("count").astype(np.int32),
            stratum=composition * RANGES + leaves.attribute("stratum_range").astype(np.int32),
        )

    @property
    def cell(self) -> NDArray[np.int32]:
        """The place of each leaf in an array of shape S, C, K."""
        ranges = range_codes(self.count)
        return (self.system * len(self.axes.compositions) + self.composition) * RANGES + ranges

    @property
    def fine_cell(self) -> NDArray[np.int32]:
        """The place of each leaf in an array of shape S, C, K, L, P."""
        return (self.cell * len(self.axes.layouts) + self.layout) * len(self.axes.looks) + self.look

    def numbers(self) -> NDArray[np.int64]:
        """Images by status: int64 [3, S, C, K, L, P]."""
        shape = self.axes.shape
        return np.stack([added(self.leaves.number(s), self.fine_cell, shape) for s in range(COUNTS)])


def added(values: NDArray[np.int64], places: NDArray[Any], shape: Sequence[int]) -> NDArray[np.int64]:
    """Sums of whole numbers by place in an array of ``shape``."""
    found = np.zeros(int(np.prod(shape)), np.int64)
    np.add.at(found, places, values)
    return found.reshape(shape)


def axes_of(factors: Factors, leaves: Leaves, systems: dict[tuple[int, str | None], str], detectors: list[str]) -> Axes:
    """The axes of what was met. ``systems`` names every system, in order."""
    met = {name: set(np.unique(leaves.attribute(name)).tolist()) for name in ("composition", "layout", "look")}
    compositions = _levels(factors.compositions, met["composition"], COMPOSITIONS, (MULTIPLE,))
    layouts = _levels(factors.layouts, met["layout"], LAYOUTS)
    return Axes(list(systems.values()), compositions, layouts, _looks(factors.looks, met["look"]), detectors)


def placing_of(factors: Factors, axes: Axes, systems: dict[tuple[int, str | None], str]) -> Placing:
    """Where each code stands on the axes."""

    def places(codes: Codes[str | None], levels: list[str]) -> NDArray[np.int64]:
        return _places(codes, lambda level: level or UNKNOWN, levels)

    return Placing(
        systems=np.array([axes.systems.index(systems[of]) for of in factors.systems.levels], np.int64),
        compositions=places(factors.compositions, axes.compositions),
        layouts=places(factors.layouts, axes.layouts),
        looks=_places(factors.looks, lambda look: (look[0] or UNKNOWN, look[1]), axes.looks),
    )


def _places(codes: Codes[T], named: Callable[[T], V], levels: list[V]) -> NDArray[np.int64]:
    at = {level: place for place, level in enumerate(levels)}
    found = np.zeros(codes.limit + 1, np.int64)
    for code, level in enumerate(codes.levels):
        found[code] = at.get(named(level), 0)  # a level without images is nowhere
    if codes.full:
        found[:] = len(levels) - 1
    return found


def _levels(codes: Codes[str | None], met: set[int], known: tuple[str, ...], then: tuple[str, ...] = ()) -> list[str]:
    """Levels in order. A factor that is unknown of every image has that one level."""
    levels = {level for code, level in enumerate(codes.levels) if code in met}
    if codes.full or not levels - {None}:
        return [UNKNOWN]
    others = {level for level in levels if level is not None} - {*known, *then, UNKNOWN}
    last = [UNKNOWN] if {None, UNKNOWN} & levels else []
    return [*known, *(level for level in then if level in levels), *sorted(others), *last]


def _looks(codes: Codes[Look], met: set[int]) -> list[tuple[str, str | None]]:
    looks = {(look or UNKNOWN, group) for code, (look, group) in enumerate(codes.levels) if code in met}
    if codes.full:
        return [(UNKNOWN, None)]
    if {look for look, _ in looks} <= {UNKNOWN}:
        return sorted(looks, key=_rank) or [(UNKNOWN, None)]
    groups = GROUPS if any(group for _, group in looks) else (None,)
    return sorted(looks | {(CLEAN, None)} | {(MODIFIED, group) for group in groups}, key=_rank)


def _rank(look: tuple[str, str | None]) -> tuple[int, str, int, str]:
    appearance, group = look
    first = APPEARANCES.index(appearance) if appearance in APPEARANCES else 2 + (appearance == UNKNOWN)
    second = GROUPS.index(group) if group in GROUPS else len(GROUPS) + (group is None)
    return first, appearance, second, group or ""


def sums_of(grid: Grid, paired: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]) -> Sums:
    """The sums over all leaves; ``paired`` [S, X] are those of the contrasts (number, cw, b)."""
    axes, leaves = grid.axes, grid.leaves
    curve_places = (grid.system * len(axes.compositions) + grid.composition) * GREATEST_COUNT + grid.count - 1
    curve_shape = (*axes.shape[:2], GREATEST_COUNT)
    alone = range(len(axes.detectors))

    def units(score: int, places: NDArray[np.int32], shape: Sequence[int]) -> NDArray[np.float64]:
        return np.stack([added(part, places, shape) for part in leaves.sums(score)], axis=-1).astype(np.float64)

    def singles(parts: list[NDArray[np.float64]], *units: int) -> NDArray[np.float64]:
        return np.stack(parts, axis=3) if parts else np.zeros((*axes.shape[:3], 0, *units))

    return Sums(
        number=added(leaves.number(0), grid.fine_cell, axes.shape).astype(np.float64),
        cw=units(0, grid.fine_cell, axes.shape),
        b=units(1, grid.fine_cell, axes.shape),
        single_number=singles(
            [added(leaves.single_number(d), grid.cell, axes.shape[:3]).astype(np.float64) for d in alone]
        ),
        single_cw=singles([units(2 + d, grid.cell, axes.shape[:3]) for d in alone], 2),
        same_cw=singles([units(2 + len(alone) + d, grid.cell, axes.shape[:3]) for d in alone], 2),
        curve_number=added(leaves.number(0), curve_places, curve_shape).astype(np.float64),
        curve_cw=units(0, curve_places, curve_shape),
        curve_b=units(1, curve_places, curve_shape),
        paired=paired[0],
        paired_cw=paired[1],
        paired_b=paired[2],
    )


def of_units(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums from their last axis: whole numbers of 2^-27, and where there are two those of 2^-53 (rounded once)."""
    found: NDArray[np.float64] = sums[..., 0] * HIGH_UNIT
    return found + sums[..., 1] * LOW_UNIT if sums.shape[-1] == 2 else found

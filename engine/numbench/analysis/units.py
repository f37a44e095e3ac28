"""Cores inside (composition, range), the units that are resampled, and what each of them brings to the sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from tallymill.engine.exact_sum import ExactSums, rounded
from tallymill.engine.numbench.analysis.error_sums import ErrorUnits
from tallymill.engine.numbench.analysis.grid import Grid
from tallymill.engine.numbench.analysis.leaves import HIGH_UNIT, LOW_UNIT
from tallymill.engine.numbench.analysis.pairs import PairedLevels, contrasts_of, differences
from tallymill.engine.numbench.factors import range_codes

# Numbers that one block of units may have in its largest array.
_BLOCK = 1 << 21
# Leaves that are paired at once.
_LEAVES = 1 << 20


@dataclass(frozen=True, slots=True)
class Units:
    """Units with a scored image: those of unit u are the leaves ``order[first[u]:first[u+1]]`` of ``grid``.

    ``order`` int64 [L'], ``first`` int64 [U+1], ``stratum`` int32 [U], ascending; inside a stratum units stand by their
    core, or by its rank where cores were given one. ``errors`` are the rows of errors of the same units.
    """

    grid: Grid
    order: NDArray[np.int64]
    first: NDArray[np.int64]
    stratum: NDArray[np.int32]
    contrasts: list[PairedLevels]
    errors: ErrorUnits | None = None

    def __len__(self) -> int:
        return len(self.stratum)

    def strata(self) -> list[slice]:
        """The units of each stratum."""
        edges = (np.flatnonzero(np.diff(self.stratum)) + 1).tolist()
        pairs = zip([0, *edges], [*edges, len(self)], strict=True)
        return [slice(start, stop) for start, stop in pairs if stop > start]

    def blocks(self) -> Iterator[slice]:
        """Runs of units of one stratum that are worked on together."""
        s, _, k, layouts, looks = self.grid.axes.shape
        size = max(_BLOCK // (s * k * layouts * looks), 1)
        for stratum in self.strata():
            for begin in range(stratum.start, stratum.stop, size):
                yield slice(begin, min(begin + size, stratum.stop))

    def several(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """The leaves of units that have more than one, with their unit, some units at a time."""
        sizes = np.diff(self.first)
        unit = np.repeat(np.arange(len(self)), sizes)
        paired = np.flatnonzero(sizes[unit] > 1)
        order, unit = self.order[paired], unit[paired]
        begin = 0
        while begin < len(order):
            stop = min(begin + _LEAVES, len(order))
            stop = int(np.searchsorted(unit, unit[stop - 1], side="right"))
            yield order[begin:stop], unit[begin:stop]
            begin = stop


def cores_by_id(grid: Grid) -> NDArray[np.int64]:
    """The place of each core among all ids in order: int64 [cores]."""
    ids = np.asarray(pc.sort_indices(grid.leaves.names.settled), np.int64)
    rank = np.empty(len(ids), np.int64)
    rank[ids] = np.arange(len(ids))
    return rank


def units_of(grid: Grid, rank: NDArray[np.int64] | None = None) -> Units:
    """Order the leaves by unit, leaving out units without a scored image; ``rank`` int64 are the places of cores."""
    core = grid.leaves.core if rank is None else rank[grid.leaves.core]
    order = np.lexsort((core, grid.stratum))
    core, stratum = core[order], grid.stratum[order]
    new = np.concatenate([[True], (core[1:] != core[:-1]) | (stratum[1:] != stratum[:-1])])[: len(core)]
    first = np.flatnonzero(new)
    scored = np.add.reduceat(grid.leaves.number(0)[order], first) > 0 if len(first) else np.zeros(0, np.bool_)
    sizes = np.diff(first, append=len(core))
    kept = np.concatenate([[0], np.cumsum(sizes[scored])]).astype(np.int64)
    return Units(grid, order[np.repeat(scored, sizes)], kept, stratum[first[scored]], contrasts_of(grid.axes))


@dataclass(frozen=True, slots=True)
class Block:
    """What U consecutive units of one stratum bring to the sums, of the ranges K' in ``ranges`` only.

    ``number``, ``cw`` and ``b`` float64 [U, S, K', L, P]; ``single_number``, ``single_cw`` and ``same_cw``
    [U, S, K', D]; ``families``, ``sides`` [U, S, K', 3] and ``errors`` [U, S, K', P, 4], see ``ErrorUnits``;
    ``paired``, ``paired_cw``, ``paired_b`` [U, S, X]. ``rows`` int64 [2, R] has for each pair of a unit (in the block)
    and a count both, by count; ``curve`` float64 [3, R, S] their number, cw and b.
    """

    ranges: NDArray[np.int32]
    number: NDArray[np.float64]
    cw: NDArray[np.float64]
    b: NDArray[np.float64]
    single_number: NDArray[np.float64]
    single_cw: NDArray[np.float64]
    same_cw: NDArray[np.float64]
    families: NDArray[np.float64]
    sides: NDArray[np.float64]
    errors: NDArray[np.float64]
    paired: NDArray[np.float64]
    paired_cw: NDArray[np.float64]
    paired_b: NDArray[np.float64]
    rows: NDArray[np.int64]
    curve: NDArray[np.float64]


def block_of(units: Units, of: slice) -> Block:
    """The sums of each unit of a block, rounded once each."""
    grid, axes = units.grid, units.grid.axes
    leaf = units.order[units.first[of.start] : units.first[of.stop]]
    unit = np.repeat(np.arange(of.stop - of.start), np.diff(units.first[of.start : of.stop + 1]))
    systems, _, _, layouts, looks = axes.shape
    size = of.stop - of.start
    system, count = grid.system[leaf], grid.count[leaf]
    ranges, own = np.unique(range_codes(count), return_inverse=True)
    coarse, shape = (unit * systems + system) * len(ranges) + own, (size, systems, len(ranges))
    fine, fine_shape = (coarse * layouts + grid.layout[leaf]) * looks + grid.look[leaf], (*shape, layouts, looks)
    number, cw, b = (_sums(grid, leaf, which, fine, fine_shape) for which in (None, 0, 1))
    detectors = len(axes.detectors)
    alone = [
        [_sums(grid, leaf, which, coarse, shape, d) for which in (None, 2 + d, 2 + detectors + d)]
        for d in range(detectors)
    ]
    singles = [np.stack(parts, axis=-1) for parts in zip(*alone, strict=True)] or [np.zeros((*shape, 0))] * 3
    pairs, row = np.unique(count * size + unit, return_inverse=True)
    curve = np.stack([_sums(grid, leaf, w, row * systems + system, (len(pairs), systems)) for w in (None, 0, 1)])
    errors = [np.zeros((*shape, 0))] * 3 if units.errors is None else units.errors.block(of, systems, ranges)
    paired, paired_cw, paired_b = _paired(units, leaf, unit, (size, systems, len(units.contrasts)))
    return Block(
        ranges=ranges,
        number=number,
        cw=cw,
        b=b,
        single_number=singles[0],
        single_cw=singles[1],
        same_cw=singles[2],
        families=errors[0],
        sides=errors[1],
        errors=errors[2],
        paired=paired,
        paired_cw=paired_cw,
        paired_b=paired_b,
        rows=np.stack([pairs % size, pairs // size]),
        curve=curve,
    )


def paired_sums(units: Units) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Over all units: cores that have both sides of each contrast, and the sums of their differences, [S, X] each."""
    shape = len(units.grid.axes.systems), len(units.contrasts)
    size = shape[0] * shape[1]
    number = np.zeros(size)
    sums = ExactSums(), ExactSums()
    for leaf, unit in units.several() if size else ():
        for found in differences(units.grid, units.contrasts, leaf, unit):
            places = found.system * shape[1] + found.at
            number += np.bincount(places, minlength=size)
            for total, values in zip(sums, (found.cw, found.b), strict=True):
                total.add(values, places, size)
    cw, b = (np.array([rounded(total) for total in one.exact(size)], np.float64).reshape(shape) for one in sums)
    return number.reshape(shape), cw, b


def _paired(
    units: Units, leaf: NDArray[np.int64], unit: NDArray[np.int64], shape: tuple[int, int, int]
) -> NDArray[np.float64]:
    """Numbers and differences of the units of a block: float64 [3, U, S, X]."""
    dense = np.zeros((3, *shape))
    for found in differences(units.grid, units.contrasts, leaf, unit):
        dense[:, found.unit, found.system, found.at] = np.ones_like(found.cw), found.cw, found.b
    return dense


def _sums(
    grid: Grid,
    leaf: NDArray[np.int64],
    score: int | None,
    places: NDArray[np.int64],
    shape: tuple[int, ...],
    detector: int | None = None,
) -> NDArray[np.float64]:
    """Numbers of images (without ``score``; of a single ``detector`` with one), or sums of a score."""
    leaves, size = grid.leaves, int(np.prod(shape))
    if score is None:
        values = leaves.number(0) if detector is None else leaves.single_number(detector)
        return np.bincount(places, values[leaf], size).astype(np.float64).reshape(shape)
    high, low = (np.bincount(places, part[leaf], size) for part in leaves.sums(score))
    return (high * HIGH_UNIT + low * LOW_UNIT).reshape(shape)

"""Families and errors by core, for the resamples: what an image's counts are off by, as whole numbers.

Errors are kept in whole numbers of 2^-20 of an object (or of the request), each target's rounded once: 2^23 targets of
a core that are all off by 2^20 objects would be needed for a sum to leave 64 bits. The values that an analysis shows
are exact all the same; see ``Counting``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.numbench.analysis.counting import ERRORS, FAMILIES, RANGES, SIDES, Counted
from tallymill.engine.numbench.analysis.images import Images, counts_of
from tallymill.engine.numbench.analysis.keyed import Ints, KeyedSums, Part, packed
from tallymill.engine.numbench.factors import RangeBy, range_codes

Floats = NDArray[np.float64]
ERROR_BITS = {"composition": 5, "stratum_range": 2, "system": 8, "range": 2}
PLACES = 20
# Sums of floats that are whole numbers below 2^53 are exact.
_EXACT_BITS = 52
_SPLIT = np.cumsum([len(FAMILIES), len(SIDES)]).tolist()
ERROR_COLUMNS = len(FAMILIES) + len(SIDES) + len(ERRORS)


def error_part_of(images: Images, counted: Counted, range_by: RangeBy) -> Part:
    """The rows of a shard, by core, composition and range of the image, system, and range of what is counted.

    That is the image's for its family, and the target's own where each has its own. Values are scored images by family,
    their targets by side, and the sums of the errors of ``Counted``.
    """
    scored = images.status == 0
    image = np.concatenate([np.flatnonzero(scored), images.image[scored[images.image]]])
    stratum = range_codes(counts_of(images, range_by))
    attributes = packed(
        ERROR_BITS,
        {
            "composition": images.composition[image],
            "stratum_range": stratum[image],
            "system": images.system[image],
            "range": np.concatenate([stratum[scored], counted.target_cell % RANGES]),
        },
    )
    bits = sum(ERROR_BITS.values())
    keys, place = np.unique(images.core[image] << bits | attributes, return_inverse=True)
    of_image, of_target = np.split(place, [int(scored.sum())])
    values = np.zeros((ERROR_COLUMNS, len(keys)), np.int64)
    families, sides, errors = np.split(values, _SPLIT)
    np.add.at(families, (counted.family_cell % len(FAMILIES), of_image), 1)
    np.add.at(sides, (counted.side, of_target), 1)
    for column, error in zip(errors, counted.errors, strict=True):
        np.add.at(column, of_target, np.rint(np.ldexp(error, PLACES)).astype(np.int64))
    return Part(images.cores, keys >> bits, keys & ((1 << bits) - 1), values)


@dataclass(frozen=True, slots=True)
class ErrorUnits:
    """The rows of errors by the units that are resampled: those of unit u are ``order[first[u]:first[u+1]]``.

    ``system`` and ``range`` int32 [L] are places on the axes. ``shift`` is by how many bits errors are cut, so that no
    sum over a resample reaches 2^53.
    """

    rows: KeyedSums
    system: NDArray[np.int32]
    range: NDArray[np.int32]
    order: Ints
    first: Ints
    shift: int

    @classmethod
    def of(cls, rows: KeyedSums, compositions: Ints, systems: Ints, core: Ints) -> ErrorUnits:
        """Order settled rows. ``compositions`` and ``systems`` are places by code, ``core`` int64 the ranks of cores.

        Every unit has a scored image, and every scored image its errors, so that both have the same units in order.
        """
        stratum = compositions[rows.attribute("composition")] * RANGES + rows.attribute("stratum_range")
        own = core[rows.core]
        order = np.lexsort((own, stratum))
        own, stratum = own[order], stratum[order]
        new = np.concatenate([[True], (own[1:] != own[:-1]) | (stratum[1:] != stratum[:-1])])[: len(own)]
        first = np.append(np.flatnonzero(new), len(own))
        return cls(
            rows=rows,
            system=systems[rows.attribute("system")].astype(np.int32),
            range=rows.attribute("range").astype(np.int32),
            order=order,
            first=first,
            shift=_shift(rows.values[_SPLIT[-1] :], order, first[:-1]),
        )

    @property
    def unit(self) -> float:
        """What errors are whole numbers of."""
        return float(2.0 ** (self.shift - PLACES))

    def block(self, of: slice, systems: int, ranges: NDArray[np.int32]) -> tuple[Floats, Floats, Floats]:
        """Families, sides and errors of some units: float64 [U, S, K', 3 or 4], whole numbers, in ``ranges`` K'."""
        row = self.order[self.first[of.start] : self.first[of.stop]]
        size = of.stop - of.start
        unit = np.repeat(np.arange(size), np.diff(self.first[of.start : of.stop + 1]))
        places = (unit * systems + self.system[row]) * len(ranges) + np.searchsorted(ranges, self.range[row])
        number = size * systems * len(ranges)
        columns = [column[row].astype(np.float64) for column in self.rows.values]
        columns[_SPLIT[-1] :] = [np.rint(np.ldexp(column, -self.shift)) for column in columns[_SPLIT[-1] :]]
        sums: Floats = np.stack([np.bincount(places, column, number) for column in columns], axis=-1, dtype=np.float64)
        families, sides, errors = np.split(sums.reshape(size, systems, len(ranges), -1), _SPLIT, axis=-1)
        return families, sides, errors


def _shift(errors: list[Ints], order: Ints, first: Ints) -> int:
    """No resample takes more than as many units as there are, each at most the largest."""
    if not len(first):
        return 0
    most = max(int(np.add.reduceat(np.abs(column)[order], first).max()) for column in errors)
    return max((most * len(first)).bit_length() - _EXACT_BITS, 0)

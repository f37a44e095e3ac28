"""Families and errors by core, for the resamples: what an image's counts are off by, as whole numbers.

Each error is kept in two whole numbers, of 2^-20 of an object (or of the request) and the rest of 2^-53, so that only
what lies below that is rounded: 2^23 targets of a core that are all off by 2^20 objects would be needed for a sum to
leave 64 bits. The values that an analysis shows are exact; see ``Counting``.
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
HIGH_PLACES, LOW_PLACES = 20, 53
_REST_BITS = LOW_PLACES - HIGH_PLACES
# Resamples take errors to 2^-44 at least.
_RESAMPLED_PLACES = 44
# Sums of floats that are whole numbers below 2^53 are exact. A piece below the first may be larger by a bit in each of
# the four ranges of a unit.
_EXACT_BITS, _PIECE_BITS = 52, 50
_SPLIT = np.cumsum([len(FAMILIES), len(SIDES), len(ERRORS)]).tolist()
ERROR_COLUMNS = _SPLIT[-1] + len(ERRORS)


def error_part_of(images: Images, counted: Counted, range_by: RangeBy) -> Part:
    """The rows of a shard, by core, composition and range of the image, system, and range of what is counted.

    That is the image's for its family, and the target's own where each has its own. Values are scored images by family,
    their targets by side, and the sums of the errors of ``Counted``: first their high parts, then their rests.
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
    families, sides, highs, rests = np.split(values, _SPLIT)
    np.add.at(families, (counted.family_cell % len(FAMILIES), of_image), 1)
    np.add.at(sides, (counted.side, of_target), 1)
    for high, rest, error in zip(highs, rests, counted.errors, strict=True):
        whole = np.rint(np.ldexp(error, HIGH_PLACES))
        np.add.at(high, of_target, whole.astype(np.int64))
        left = error - np.ldexp(whole, -HIGH_PLACES)  # exact
        np.add.at(rest, of_target, np.rint(np.ldexp(left, LOW_PLACES)).astype(np.int64))
    return Part(images.cores, keys >> bits, keys & ((1 << bits) - 1), values)


@dataclass(frozen=True, slots=True)
class ErrorUnits:
    """The rows of errors by the units that are resampled: those of unit u are ``order[first[u]:first[u+1]]``.

    ``system`` and ``range`` int32 [L] are places on the axes. ``places`` int64 [P, 4] are negative exponents: an error
    is the sum of P pieces, piece p a whole number of 2^-places[p], of which no sum over a resample reaches 2^53.
    """

    rows: KeyedSums
    system: NDArray[np.int32]
    range: NDArray[np.int32]
    order: Ints
    first: Ints
    places: Ints

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
            places=_places(rows.values[_SPLIT[1] :], order, first[:-1]),
        )

    @property
    def units(self) -> Floats:
        """What the pieces of errors are whole numbers of: float64 [P, 4]."""
        return np.ldexp(1.0, -self.places)

    def block(self, of: slice, systems: int, ranges: NDArray[np.int32]) -> tuple[Floats, Floats, Floats]:
        """Families and sides float64 [U, S, K', 3] and errors [U, S, K', P, 4] of some units, all whole numbers.

        K' are the ranges in ``ranges``.
        """
        row = self.order[self.first[of.start] : self.first[of.stop]]
        size = of.stop - of.start
        unit = np.repeat(np.arange(size), np.diff(self.first[of.start : of.stop + 1]))
        places = (unit * systems + self.system[row]) * len(ranges) + np.searchsorted(ranges, self.range[row])
        sums = np.zeros((ERROR_COLUMNS, size * systems * len(ranges)), np.int64)
        for of_column, column in zip(sums, self.rows.values, strict=True):
            np.add.at(of_column, places, column[row])
        shaped = np.moveaxis(sums.reshape(-1, size, systems, len(ranges)), 0, -1)
        families, sides, highs, rests = np.split(shaped, _SPLIT, axis=-1)
        return families.astype(np.float64), sides.astype(np.float64), _pieces(highs, rests, self.places)


def _places(columns: list[Ints], order: Ints, first: Ints) -> Ints:
    """No resample takes more than as many units as there are, each at most the largest.

    Each error has its own places, and as many further pieces follow the first as bring the coarsest to 2^-44.
    """
    units = max(len(first), 1)
    sums = (_carried(high, rest)[0] for high, rest in zip(columns[: len(ERRORS)], columns[len(ERRORS) :], strict=True))
    most = [int(np.add.reduceat(np.abs(high)[order], first).max()) if len(first) else 0 for high in sums]
    top = np.array([HIGH_PLACES - max((m * units).bit_length() - _EXACT_BITS, 0) for m in most], np.int64)
    bits = _PIECE_BITS - units.bit_length()
    further = max(-((int(top.min()) - _RESAMPLED_PLACES) // bits), 1)
    return top + bits * np.arange(1 + further)[:, None]


def _carried(high: Ints, rest: Ints) -> tuple[Ints, Ints]:
    """The same sums with a rest of less than one of the high part."""
    return high + (rest >> _REST_BITS), rest & ((1 << _REST_BITS) - 1)


def _pieces(highs: Ints, rests: Ints, places: Ints) -> Floats:
    """Sums in two parts, [..., 4] each, as pieces [..., P, 4], of which the last is rounded."""
    high, rest = (part.astype(np.float64) for part in _carried(highs, rests))
    left = np.ldexp(high, -HIGH_PLACES)
    found = np.empty((*highs.shape[:-1], *places.shape))
    for at, of in enumerate(places):
        found[..., at, :] = np.rint(np.ldexp(left, of))
        left = left - np.ldexp(found[..., at, :], -of)
        if at == 0:  # of which only the high part has been taken
            left = left + np.ldexp(rest, -LOW_PLACES)
    return found

"""Sums over the images of one core, system, layout, appearance and count: what every mean and resample is made of.

They grow with the number of prompts, not of images. All are whole numbers, so that no order of images shows in them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.numbench.analysis.codes import Names
from tallymill.engine.numbench.analysis.error_sums import ERROR_BITS, ERROR_COLUMNS
from tallymill.engine.numbench.analysis.images import (
    LOW_BITS,
    SCORE_BITS,
    STATUSES,
    Images,
    counts_of,
    whole_scores,
)
from tallymill.engine.numbench.analysis.keyed import KeyedSums, Part, packed, runs_of
from tallymill.engine.numbench.factors import RangeBy, range_codes

# Bits of the attributes of a leaf, the last ones lowest. "stratum_range" is the range of the image, "count" that of the
# leaf: with each target by its own range they differ.
_BITS = {"composition": 5, "stratum_range": 2, "system": 8, "layout": 5, "look": 5, "count": 7}
_ATTRIBUTE_BITS = sum(_BITS.values())
_MAX_CORES = 1 << (63 - _ATTRIBUTE_BITS)
# Leaves are brought together when so many wait, or half as many as there are.
_WAITING = 2_000_000
COUNTS = len(STATUSES)


def part_of(images: Images, singles: Sequence[NDArray[np.int64]], range_by: RangeBy) -> Part:
    """The leaves of a shard. ``singles`` int64 [I] each: the scores of single detectors as ``Images.cw``, -1 for none.

    Their values are the numbers of images by status, the number that each of D detectors scored alone, and then the
    sums of the higher and of the lower bits of cw, of b, of the D detectors' scores, and D times of cw over the images
    that a detector scored.

    With ``range_by`` "per-target" they have an entry a target, for then each target counts as an image with a range and
    a score of its own.
    """
    count = counts_of(images, range_by)
    image, cw, b = np.arange(len(images)), images.cw, images.b
    own = count
    if range_by == "per-target":
        image, own, cw, b = _by_target(images)
    scored = images.status[image] == 0
    attributes = packed(
        _BITS,
        {
            "composition": images.composition[image],
            "stratum_range": range_codes(count)[image],
            "system": images.system[image],
            "layout": images.layout[image],
            "look": images.look[image],
            "count": own,
        },
    )
    alone = [scored & (single >= 0) for single in singles]
    numbers = [*(images.status[image] == status for status in range(COUNTS)), *alone]
    sums = [cw, b, *(np.where(has, single, 0) for has, single in zip(alone, singles, strict=True))]
    sums += [np.where(has, cw, 0) for has in alone]
    low = (1 << LOW_BITS) - 1
    values = np.stack(
        [*(n.astype(np.int64) for n in numbers), *(part for s in sums for part in (s >> LOW_BITS, s & low))]
    )
    order, starts = runs_of(images.core[image] << _ATTRIBUTE_BITS | attributes)
    first = order[starts]
    return Part(images.cores, images.core[image][first], attributes[first], _reduced(values[:, order], starts))


def target_scores(counted: NDArray[np.float64], requested: NDArray[np.int64]) -> NDArray[np.float64]:
    """Equation 8 for each target alone: max(0, 1 - |n^ - n| / n), float64 [T]."""
    return np.maximum(0.0, 1.0 - np.abs(counted - requested) / requested)


def _by_target(images: Images) -> tuple[NDArray[np.int64], ...]:
    """Image, count and the two scores of each target; an image without targets stands as one of count 1."""
    empty = np.flatnonzero(images.targets == 0)
    scored = images.status[images.image] == 0
    cw, b = (
        np.concatenate([whole_scores(target_scores(counted, images.requested), scored), np.zeros(len(empty), np.int64)])
        for counted in (images.soft, images.hard)
    )
    count = np.concatenate([images.requested, np.ones(len(empty), np.int64)])
    return np.concatenate([images.image, empty]), count, cw, b


class Leaves(KeyedSums):
    """The leaves of many shards: see ``part_of``. ``errors`` are the rows of ``error_part_of`` that came with them."""

    def __init__(self, detectors: int) -> None:
        super().__init__(_BITS, COUNTS + detectors + 2 * (2 + 2 * detectors))
        self.detectors = detectors
        self.names = Names()
        self.errors = KeyedSums(ERROR_BITS, ERROR_COLUMNS)

    def add(self, part: Part, errors: Part | None = None) -> None:
        """Add a shard's; ``errors`` have the same cores."""
        first = self.names.add(part.cores)
        self.take(part, first)
        if errors is not None:
            self.errors.take(errors, first)
        if self.waiting > max(_WAITING, len(self.core) // 2):
            self.settle()

    def settle(self) -> None:
        """Bring equal leaves together, and equal rows of errors."""
        final = self.names.settle()
        if len(self.names.settled) > _MAX_CORES:
            raise ValueError(f"more than {_MAX_CORES} prompts")
        self.gather(final)
        self.errors.gather(final)

    def number(self, status: int) -> NDArray[np.int64]:
        """Images of a status: int64 [L]."""
        return self.values[status]

    def single_number(self, detector: int) -> NDArray[np.int64]:
        """Images that a detector scored alone: int64 [L]."""
        return self.values[COUNTS + detector]

    def sums(self, score: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of cw (0), b (1), a single detector d (2 + d), or cw over the images that it scored (2 + D + d) the sums in
        units of 2^-27 and of 2^-53, to be added.
        """
        first = COUNTS + self.detectors + 2 * score
        return self.values[first], self.values[first + 1]


HIGH_UNIT, LOW_UNIT = 2.0 ** (LOW_BITS - SCORE_BITS), 2.0**-SCORE_BITS


def _reduced(values: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.add.reduceat(values, starts, axis=1) if len(starts) else values

"""Table 6's families, signed errors, and visible against requested counts, added up shard by shard."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.exact_sum import ExactSums
from tallymill.engine.numbench.analysis.images import MAX_LEVELS, Images, counts_of
from tallymill.engine.numbench.factors import COUNT_RANGES, GREATEST_COUNT, RangeBy, range_codes

FAMILIES = ("none", "cardinality", "binding")
SIDES = ("under", "exact", "over")
ERRORS = ("hard", "soft", "hard_relative", "soft_relative")
HALF = 0.5
# Counts are sums divided by the number of detectors: two that differ at all differ by far more than this.
SLACK = 1e-9
LEVELS, RANGES = MAX_LEVELS + 1, len(COUNT_RANGES)
DETECTORS = 256  # D is stored in a byte


@dataclass(frozen=True, slots=True)
class Counted:
    """What the scored images of one shard bring. Places are those of arrays of shape [systems, LEVELS, ...].

    ``family_cell`` int64 [I] into [S, C, K, 3]. ``target_cell`` int64 [T] into [S, C, K]; ``errors`` float64 [4, T]:
    hard and soft counts minus requested, and both as a share of it; ``side`` int64 [T] is 0, 1, 2 for under,
    exact, over. ``visible_cell`` int64 [V] into [S, L, 101], of clean images of one target; ``visible`` float64 [2, V]
    are their hard and soft counts. ``covering_cell`` int64 [I] into [S, LEVELS, 256], by the least D of an image.
    """

    family_cell: NDArray[np.int64]
    target_cell: NDArray[np.int64]
    errors: NDArray[np.float64]
    side: NDArray[np.int64]
    visible_cell: NDArray[np.int64]
    visible: NDArray[np.float64]
    covering_cell: NDArray[np.int64]


def counted_of(images: Images, range_by: RangeBy) -> Counted:
    """Compare what was counted with what was requested."""
    scored = images.status == 0
    place = images.system * LEVELS + images.composition
    ranges = range_codes(counts_of(images, range_by))
    image = images.image
    of = scored[image]
    image, requested, hard, soft = image[of], images.requested[of], images.hard[of], images.soft[of]
    own = range_codes(requested) if range_by == "per-target" else ranges[image]
    error = hard - requested
    first = (np.cumsum(images.targets[scored]) - images.targets[scored]).astype(np.int64)
    alone = (images.targets[image] == 1) & ~images.altered[image]  # modifiers change what is visible by design
    return Counted(
        family_cell=(place[scored] * RANGES + ranges[scored]) * len(FAMILIES) + families_of(error, first),
        target_cell=place[image] * RANGES + own,
        errors=np.stack([error, soft - requested, error / requested, (soft - requested) / requested]),
        side=1 + (error > HALF).astype(np.int64) - (error < -HALF),
        visible_cell=((images.system * LEVELS + images.layout)[image] * (GREATEST_COUNT + 1) + requested)[alone],
        visible=np.stack([hard[alone], soft[alone]]),
        covering_cell=place[scored] * DETECTORS + _least(images.covering[of], first),
    )


def _least(values: NDArray[np.int64], first: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.minimum.reduceat(values, first) if len(first) else np.zeros(0, np.int64)


def families_of(error: NDArray[np.float64], first: NDArray[np.int64]) -> NDArray[np.int64]:
    """The family of each image, int64 [I] into ``FAMILIES``.

    ``error`` float64 [T] are hard counts minus requested, ``first`` int64 [I] where each image's begin. None: every
    \\|error\\| is at most .5; binding: two targets or more and \\|sum of errors\\| at most .5; cardinality: else.
    """
    if not len(first):
        return np.zeros(0, np.int64)
    none = np.logical_and.reduceat(np.abs(error) <= HALF, first)
    binding = (np.diff(first, append=len(error)) >= 2) & (np.abs(np.add.reduceat(error, first)) <= HALF + SLACK)
    return np.where(none, 0, np.where(binding, 2, 1))


class Counting:
    """The sums of all shards."""

    def __init__(self) -> None:
        self._families: NDArray[np.int64] = np.zeros(0, np.int64)
        self._sides: NDArray[np.int64] = np.zeros(0, np.int64)
        self._seen: NDArray[np.int64] = np.zeros(0, np.int64)
        self._coverings: NDArray[np.int64] = np.zeros(0, np.int64)
        self._errors = [ExactSums() for _ in ERRORS]
        self._visible = [ExactSums() for _ in range(2)]

    def add(self, shard: Counted, systems: int) -> None:
        """Add a shard, in which there are ``systems`` systems so far."""
        cells = systems * LEVELS * RANGES
        points = systems * LEVELS * (GREATEST_COUNT + 1)
        self._families = _grown(self._families, shard.family_cell, cells * len(FAMILIES))
        self._sides = _grown(self._sides, shard.target_cell * 3 + shard.side, cells * 3)
        self._seen = _grown(self._seen, shard.visible_cell, points)
        self._coverings = _grown(self._coverings, shard.covering_cell, systems * LEVELS * DETECTORS)
        for sums, values in zip(self._errors, shard.errors, strict=True):
            sums.add(values, shard.target_cell, cells)
        for sums, values in zip(self._visible, shard.visible, strict=True):
            sums.add(values, shard.visible_cell, points)

    def families(self, systems: int) -> NDArray[np.int64]:
        """Images by family: int64 [S, C, K, 3], by code."""
        return _shaped(self._families, (systems, LEVELS, RANGES, len(FAMILIES)))

    def sides(self, systems: int) -> NDArray[np.int64]:
        """Targets that are under, exact, over: int64 [S, C, K, 3]."""
        return _shaped(self._sides, (systems, LEVELS, RANGES, 3))

    def errors(self, systems: int) -> list[NDArray[np.object_]]:
        """Of hard and soft errors, in objects and as shares, the exact sums (units of 2^-1200): object [S, C, K]."""
        shape = (systems, LEVELS, RANGES)
        return [np.array(sums.exact(int(np.prod(shape))), object).reshape(shape) for sums in self._errors]

    def coverings(self, systems: int) -> NDArray[np.int64]:
        """Scored images by the least D of their targets: int64 [S, C, 256], by code."""
        return _shaped(self._coverings, (systems, LEVELS, DETECTORS))

    def seen(self, systems: int) -> NDArray[np.int64]:
        """Images with one target: int64 [S, L, 101]."""
        return _shaped(self._seen, (systems, LEVELS, GREATEST_COUNT + 1))

    def visible(self, systems: int) -> list[NDArray[np.object_]]:
        """Of hard and soft counts the exact sums over these: object [S, L, 101]."""
        shape = (systems, LEVELS, GREATEST_COUNT + 1)
        return [np.array(sums.exact(int(np.prod(shape))), object).reshape(shape) for sums in self._visible]


def _grown(before: NDArray[np.int64], places: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    found = np.bincount(places, minlength=max(size, len(before)))
    found[: len(before)] += before
    return found


def _shaped(values: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.int64]:
    return np.pad(values, (0, int(np.prod(shape)) - len(values))).reshape(shape)
